"""Architectures that compression is tried on, each with what is expected of it, and the trial itself.

The tests assert on what the trials give, and benchmarks/support_matrix.py writes it down. All networks are built with random
weights, shallower or narrower than published where that makes no difference to what is tested.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression import Compressed, compress
from sparsefw.compression.artifact.plan import Split, Truncate
from sparsefw.compression.structure.channels import Channels, Side, tensors_of
from sparsefw.compression.structure.factorisation import truncate
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import as_matrices, call_on_copy, evaluating, set_weight
from sparsefw.compression.structure.removal import silence
from sparsefw.models import build, import_torchvision

OUTPUT = "the model's output"
TOGETHER = "all of its channels go together"
FILTERS, RANK, WEIGHTS = "filters", "rank", "weights"
KINDS = (FILTERS, RANK, WEIGHTS)


@dataclass(frozen=True)
class Architecture:
    """A network, an example of its inputs, and what compression makes of it.

    removable    the share of channels that can be removed, in percent
    left         parts of the reasons that the plan of filters gives for what it leaves; each must occur, and no other
    refused      kind -> part of the one line that refuses it, for kinds that the network does not support
    slow         too slow for the fast tests, export included
    export       also export it in the fast tests
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    removable: int
    left: tuple[str, ...] = (OUTPUT,)
    refused: dict[str, str] = field(default_factory=dict)
    onnx: str = ""  # why it cannot be exported, where it cannot
    needs: str = ""  # a package that may be missing
    note: str = ""  # how it differs from the published network
    slow: bool = False
    export: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if kind not in self.refused)

    @property
    def titled(self) -> str:
        """Its name, and how it differs from the published network."""
        return f"{self.name} ({self.note})" if self.note else self.name

    @property
    def missing(self) -> str:
        """Why it cannot be built here; empty where it can."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        return ""

    def make(self) -> nn.Module:
        """The network in evaluation mode, the same every time, as if it had been trained."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return awake(self.build()).eval()

    def inputs(self) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.example()


def awake(model: nn.Module) -> nn.Module:
    """No norm is the identity, no bias and no last layer is 0, in place: else much of what is wrong would not show."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)):
                for name, parameter in module.named_parameters(recurse=False):
                    nn.init.uniform_(parameter, 0.5, 1.5) if name == "weight" else nn.init.normal_(parameter, std=0.3)
            if isinstance(getattr(module, "running_mean", None), Tensor):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        for parameter in model.parameters():
            if parameter.is_floating_point() and float(parameter.abs().max()) < 1e-4:
                nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5)
    return model


class Net(nn.Module):
    """A network in one expression: named layers or parameters, and a function of the network and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)
        awake(self).eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def obstacle_of(channels: Channels) -> str:
    """The text of the reason; empty for removable channels."""
    return "" if channels.obstacle is None else channels.obstacle.text


def table(found: Sequence[Channels]) -> dict[str, tuple[int, str]]:
    """Sets of channels as "layer.side ..." -> (how many, why fixed); "x4" behind a side that has four slots for each.

    Numbers of modules that count the channels are left out.
    """
    rows: dict[str, tuple[int, str]] = {}
    for channels in found:
        sides = sorted(
            f"{site.layer}.{site.side}" + (f"x{len(site.slots[0])}" if len(site.slots[0]) > 1 else "")
            for site in channels.sites
            if site.side != Side.COUNT
        )
        assert " ".join(sides) not in rows, sides
        rows[" ".join(sides)] = (channels.count, obstacle_of(channels))
    return rows


@dataclass(frozen=True)
class Trial:
    """One kind of compression of one network: the line that refuses it, or the result and how far it is from what it should be.

    gap is relative to the largest output: for filters to the dense network with the same channels silent, for rank to the
    dense network with weights of the same rank, each in one layer; for weights there is nothing to compare with.
    """

    refused: str = ""
    small: Compressed | None = None
    gap: float = 0.0


def attempt(dense: nn.Module, inputs: Any, **amounts: float) -> Trial:
    try:
        small = compress(dense, example=inputs, **amounts)
    except ValueError as error:
        return Trial(refused=str(error))
    same = small.plan.prepare(copy.deepcopy(dense))
    silence(same, small.plan.edits)
    for edit in small.plan.edits:
        if isinstance(edit, (Split, Truncate)):
            layer = same.get_submodule(edit.layer)
            set_weight(layer, truncate(as_matrices(layer), edit.rank))
    comparable = "weights" not in amounts
    return Trial(
        small=small, gap=relative_gap(outputs(same, inputs), outputs(small.model, inputs)) if comparable else 0.0
    )


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    with evaluating(model):
        return tensors_of(call_on_copy(model, inputs))


def share_removable(found: Sequence[Channels]) -> float:
    """The share of removable channels, counted where they are written: a residual stream counts at every layer that adds."""

    def places(sets: Sequence[Channels]) -> int:
        return sum(len(slots) for channels in sets for site in channels.writers for slots in site.slots)

    return places([channels for channels in found if not channels.obstacle]) / max(1, places(found))


def image(size: int, batch: int = 2) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, 3, size, size)


def tokens() -> dict[str, Tensor]:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 6:] = 0
    return {"input_ids": torch.randint(2, 64, (2, 8)), "attention_mask": mask}


def vision(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    """torchvision's network of that name for ten classes."""
    return partial(build, f"torchvision:{name}", **{"num_classes": 10, **arguments})


def _convnext() -> nn.Module:
    import_torchvision()
    convnext = importlib.import_module("torchvision.models.convnext")
    plan = [convnext.CNBlockConfig(24, 48, 2), convnext.CNBlockConfig(48, 96, 2), convnext.CNBlockConfig(96, None, 2)]
    return convnext.ConvNeXt(plan, num_classes=10)


def _shallow(**arguments: Any) -> nn.Module:
    """torchvision's ResNet of bottlenecks, one per stage."""
    import_torchvision()
    resnet = importlib.import_module("torchvision.models.resnet")
    return resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=10, **arguments)


def _segmentation(name: str) -> nn.Module:
    """FCN or DeepLabV3 with an auxiliary head, put together as torchvision does."""
    backbone = _shallow(replace_stride_with_dilation=[False, True, True])
    layers = importlib.import_module("torchvision.models._utils").IntermediateLayerGetter
    fcn = importlib.import_module("torchvision.models.segmentation.fcn")
    deeplab = importlib.import_module("torchvision.models.segmentation.deeplabv3")
    kind, head = (fcn.FCN, fcn.FCNHead) if name == "fcn" else (deeplab.DeepLabV3, deeplab.DeepLabHead)
    features = layers(backbone, {"layer4": "out", "layer3": "aux"})
    return kind(features, head(2048, 5), fcn.FCNHead(1024, 5))


def _vit() -> nn.Module:
    models = import_torchvision().models
    return models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )


def _swin() -> nn.Module:
    models = import_torchvision().models
    return models.SwinTransformer(
        patch_size=[4, 4], embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=10
    )


def _transformer(name: str, config: str, **arguments: Any) -> nn.Module:
    with contextlib.suppress(ModuleNotFoundError):
        import_torchvision()  # which transformers would import in a way that not every build survives
    transformers = importlib.import_module("transformers")
    small = dict(vocab_size=64, bos_token_id=0, eos_token_id=1, pad_token_id=0, use_cache=False)
    return getattr(transformers, name)(getattr(transformers, config)(**small, **arguments))


_bert = partial(
    _transformer, "BertModel", "BertConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=16,
)  # fmt: skip
_gpt2 = partial(_transformer, "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=16)
_llama = partial(
    _transformer, "LlamaForCausalLM", "LlamaConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=64, max_position_embeddings=16,
)  # fmt: skip

TV, TIMM, HF = "torchvision", "timm", "transformers"
ZOO = (
    Architecture(
        "resnet18, cifar stem",
        partial(build, "resnet18", classes=10, stem="cifar", width=16),
        image(32),
        99,
        note="width 16",
        export=True,
    ),
    Architecture("resnet18", partial(build, "resnet18", classes=10, width=16), image(64), 99, note="width 16"),
    Architecture("resnet34", partial(build, "resnet34", classes=10, width=16), image(64), 100, note="width 16"),
    Architecture("resnet50", partial(build, "resnet50", classes=10, width=16), image(64), 100, note="width 16"),
    Architecture(
        "resnet101", partial(build, "resnet101", classes=10, width=8), image(32), 100, note="width 8", slow=True
    ),
    Architecture(
        "wide_resnet", partial(build, "wide_resnet", classes=10, depth=10, widen=2), image(32), 99, note="10x2"
    ),
    Architecture("pspnet_resnet18", partial(build, "pspnet_resnet18", width=16), image(65), 97, note="width 16"),
    Architecture(
        "pspnet_resnet101", partial(build, "pspnet_resnet101", width=8), image(33), 99, note="width 8", slow=True
    ),
    Architecture("vgg11_bn", partial(build, "vgg11_bn", classes=10, width=8), image(64), 99, note="width 8"),
    Architecture(
        "vit_tiny",
        partial(build, "vit_tiny", width=64, heads=4, depth=2),
        image(32),
        99,
        note="two layers of width 64",
        export=True,
    ),
    Architecture("mobilenet_v2", vision("mobilenet_v2"), image(64), 100, needs=TV),
    Architecture("mobilenet_v3_small", vision("mobilenet_v3_small"), image(64), 100, needs=TV),
    Architecture(
        "resnext 32x4d",
        partial(_shallow, groups=32, width_per_group=4),
        image(32),
        100,
        needs=TV,
        note="one block per stage",
        slow=True,
    ),
    Architecture("densenet121", vision("densenet121"), image(32), 100, needs=TV, slow=True),
    Architecture("efficientnet_b0", vision("efficientnet_b0"), image(32), 100, needs=TV, slow=True),
    Architecture("regnet_y_400mf", vision("regnet_y_400mf"), image(64), 100, needs=TV),
    Architecture("convnext", _convnext, image(64), 99, needs=TV, note="three stages of two blocks"),
    Architecture("shufflenet_v2_x0_5", vision("shufflenet_v2_x0_5"), image(64), 85, (OUTPUT, TOGETHER), needs=TV),
    Architecture("vit", _vit, image(32), 99, needs=TV, note="two layers of width 64", export=True),
    Architecture("swin", _swin, image(64), 99, needs=TV, note="two stages of two layers"),
    Architecture("FCN", partial(_segmentation, "fcn"), image(32), 100, needs=TV, note="one block per stage", slow=True),
    Architecture(
        "DeepLabV3", partial(_segmentation, "deeplab"), image(32), 100, needs=TV, note="one block per stage", slow=True
    ),
    Architecture(
        "timm vit_tiny_patch16",
        partial(build, "timm:vit_tiny_patch16_224", img_size=64, depth=2, num_classes=10),
        image(64),
        100,
        needs=TIMM,
        note="two layers",
    ),
    Architecture("timm resnet10t", partial(build, "timm:resnet10t", num_classes=10), image(64), 100, needs=TIMM),
    Architecture(
        "BERT",
        _bert,
        tokens,
        67,
        needs=HF,
        note="two layers of width 32",
        export=True,
    ),
    Architecture(
        "GPT-2",
        _gpt2,
        tokens,
        90,
        needs=HF,
        note="two layers of width 32",
        export=True,
    ),
    Architecture("Llama", _llama, tokens, 89, needs=HF, note="two layers of width 32"),
)
