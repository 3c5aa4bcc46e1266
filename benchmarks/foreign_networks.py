"""Networks of torchvision, timm and transformers that nobody here chose layers of, with an example of their inputs.

Published sizes where they run in seconds, small configurations elsewhere; random weights throughout.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.models import build, import_torchvision

AT_64 = """
    resnet26t seresnet18 skresnet18 res2net50_26w_4s res2next50 dpn48b densenet121 dla46_c ese_vovnet19b_dw
    mobilenetv1_100 mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mnasnet_small mixnet_s
    tf_efficientnet_lite0 tf_efficientnetv2_b0 fbnetc_100 ghostnet_050 ghostnetv2_100 rexnet_100 regnetx_002
    regnety_002 repvgg_a0 repghostnet_050 mobileone_s0 selecsls42 hrnet_w18_small cspresnet50 cspdarknet53 gernet_s
    nf_regnet_b0 nf_resnet26 eca_nfnet_l0 resnetv2_50 resnetv2_50x1_bit ecaresnet26t resnest14d lambda_resnet26t
    cs3darknet_s convnext_atto convnextv2_atto edgenext_xx_small poolformer_s12 poolformerv2_s12 repvit_m0_9
    starnet_s1 hgnetv2_b0 fasternet_t0 mambaout_femto inception_next_tiny focalnet_tiny_srf efficientvit_b0
    davit_tiny pvt_v2_b0 mobilevit_xxs mobilevitv2_050 xception41 shvit_s1 vgg11_bn
"""
OF_THEIR_SIZE = """
    vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 mixer_s32_224 gmlp_ti16_224 resmlp_12_224 visformer_tiny
    swin_tiny_patch4_window7_224 twins_svt_small pit_ti_224 xcit_nano_12_p16_224 cait_xxs24_224 levit_128s
    swinv2_tiny_window8_256 inception_v3 efficientvit_m0 mvitv2_tiny
"""
TORCHVISION: Mapping[str, dict[str, Any]] = {
    "alexnet": {},
    "vgg11": {},
    "squeezenet1_1": {},
    "googlenet": dict(aux_logits=False, init_weights=False),
    "mnasnet0_5": {},
    "swin_t": {},
    "vit_b_32": dict(image_size=64),
    "convnext_tiny": {},
    "regnet_x_400mf": {},
    "shufflenet_v2_x0_5": {},
    "resnext50_32x4d": {},
    "efficientnet_v2_s": {},
}
_ENCODER = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=32
)
_DECODER = dict(**_ENCODER, num_key_value_heads=2)
_GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=16)
_VISION = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
)
_STAGES = dict(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 64])
_T5 = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
_PAIR = dict(
    d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=64, decoder_ffn_dim=64,
)  # fmt: skip
_WINDOWS = dict(image_size=64, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4)
TEXT: Mapping[str, dict[str, Any]] = {
    "BertForSequenceClassification": _ENCODER,
    "BertForMaskedLM": _ENCODER,
    "RobertaForSequenceClassification": _ENCODER,
    "ElectraForSequenceClassification": dict(embedding_size=16, **_ENCODER),
    "AlbertForSequenceClassification": dict(embedding_size=16, **_ENCODER),
    "DebertaV2ForSequenceClassification": _ENCODER,
    "MPNetForSequenceClassification": _ENCODER,
    "DistilBertForSequenceClassification": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "GPT2LMHeadModel": _GPT,
    "GPTNeoXForCausalLM": _ENCODER,
    "OPTForCausalLM": dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32
    ),
    "BloomForCausalLM": dict(hidden_size=32, n_layer=2, n_head=4),
    "LlamaForCausalLM": _DECODER,
    "MistralForCausalLM": _DECODER,
    "Qwen2ForCausalLM": _DECODER,
    "Qwen3ForCausalLM": dict(**_DECODER, head_dim=8),
    "Phi3ForCausalLM": _DECODER,
    "GemmaForCausalLM": dict(**_DECODER, head_dim=8),
    "Olmo2ForCausalLM": _DECODER,
    "MixtralForCausalLM": dict(**_DECODER, num_local_experts=4),
    "T5EncoderModel": _T5,
    "Gemma2ForCausalLM": dict(**_DECODER, head_dim=8),
    "Qwen3MoeForCausalLM": dict(**_DECODER, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "GPTJForCausalLM": dict(**_GPT, rotary_dim=4),
    "PersimmonForCausalLM": _DECODER,
    "GraniteForCausalLM": _DECODER,
    "ConvBertForSequenceClassification": dict(embedding_size=32, **_ENCODER),
    "MobileBertForSequenceClassification": dict(embedding_size=16, intra_bottleneck_size=16, **_ENCODER),
}
TEXT_TO_TEXT: Mapping[str, dict[str, Any]] = {
    "T5ForConditionalGeneration": _T5,
    "BartForConditionalGeneration": _PAIR,
}
IMAGES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "ViTForImageClassification": (32, _VISION),
    "BeitForImageClassification": (32, dict(**_VISION, use_relative_position_bias=True, out_indices=[1, 2])),
    "Dinov2ForImageClassification": (32, _VISION),
    "SegformerForSemanticSegmentation": (64, dict(**_STAGES, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32)),
    "SwinForImageClassification": (64, _WINDOWS),
    "Swinv2ForImageClassification": (64, _WINDOWS),
    "ConvNextForImageClassification": (64, _STAGES),
    "PoolFormerForImageClassification": (64, _STAGES),
    "PvtForImageClassification": (64, dict(**_STAGES, image_size=64, num_attention_heads=[1, 2, 2, 4])),
}


@dataclass(frozen=True)
class Foreign:
    """A network and what makes an example of its inputs, given the network."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[nn.Module], Any]


def _image(size: int) -> Callable[[nn.Module], Tensor]:
    return lambda model: torch.randn(2, 3, size, size)


def _of_its_size(model: Any) -> Tensor:
    size = model.default_cfg["input_size"][-1]
    return torch.randn(1, 3, size, size)


def _tokens(model: nn.Module | None = None) -> dict[str, Tensor]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 6:] = 0
    return {"input_ids": torch.randint(2, 64, (2, 8)), "attention_mask": mask}


def _two_texts(model: nn.Module) -> dict[str, Tensor]:
    return {**_tokens(), "decoder_input_ids": torch.randint(2, 64, (2, 6))}


def _pixels(size: int) -> Callable[[nn.Module], dict[str, Tensor]]:
    return lambda model: {"pixel_values": torch.randn(2, 3, size, size)}


def _transformer(name: str, arguments: Mapping[str, Any], of_text: bool) -> nn.Module:
    import_torchvision()  # which transformers would import in a way that not every build survives
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, name)
    words = dict(vocab_size=64, bos_token_id=0, eos_token_id=1, pad_token_id=0, use_cache=False)
    return kind(kind.config_class(**(words if of_text else dict(num_labels=5)), **arguments))


def _text(name: str, arguments: Mapping[str, Any], example: Callable[[nn.Module], Any]) -> Foreign:
    return Foreign(f"transformers:{name}", partial(_transformer, name, arguments, True), example)


def _timm(name: str, example: Callable[[nn.Module], Any]) -> Foreign:
    return Foreign(f"timm:{name}", partial(build, f"timm:{name}", num_classes=10), example)


FOREIGN = (
    *(_timm(name, _image(64)) for name in AT_64.split()),
    *(_timm(name, _of_its_size) for name in OF_THEIR_SIZE.split()),
    *(
        Foreign(f"torchvision:{name}", partial(build, f"torchvision:{name}", num_classes=10, **arguments), _image(64))
        for name, arguments in TORCHVISION.items()
    ),
    *(_text(name, arguments, _tokens) for name, arguments in TEXT.items()),
    *(_text(name, arguments, _two_texts) for name, arguments in TEXT_TO_TEXT.items()),
    *(
        Foreign(f"transformers:{name}", partial(_transformer, name, arguments, False), _pixels(size))
        for name, (size, arguments) in IMAGES.items()
    ),
)
