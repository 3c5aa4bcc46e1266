"""A smaller network of transformers that its own from_pretrained reads, or one line that says why not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compression.zoo import HF, _bert, _gpt2, _llama, _transformer
from sparsefw import compress, load, save
from sparsefw.compression import as_pretrained
from sparsefw.compression.artifact.export import ExportError
from sparsefw.compression.structure.gaps import relative_gap
from vision import require_vision

TOKENS = torch.randint(64, (3, 9), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
_vit = partial(
    _transformer, "ViTForImageClassification", "ViTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, image_size=16, patch_size=4, num_labels=3,
)  # fmt: skip
_classifier = partial(
    _transformer, "BertForSequenceClassification", "BertConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=16,
)  # fmt: skip
_opt = partial(
    _transformer, "OPTForCausalLM", "OPTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
    max_position_embeddings=16, word_embed_proj_dim=32,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _available(monkeypatch):
    pytest.importorskip(HF)
    require_vision("torchvision:")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


def awake(model: nn.Module) -> nn.Module:
    """Scales and offsets of norms as after training."""
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.rand_like(p) if p.ndim == 1 else 0.02 * torch.randn_like(p)
    return model.eval()


@pytest.mark.parametrize(
    ("make", "amounts", "numbers"),
    [
        (_llama, {"heads": 0.5}, {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}),
        (_llama, {"neurons": 0.75}, {"intermediate_size": 16, "hidden_size": 32}),
        (_llama, {"filters": 0.5}, {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}),
        (_vit, {"heads": 0.5, "neurons": 0.5}, {"num_attention_heads": 2, "head_dim": 8, "intermediate_size": 32}),
        (_gpt2, {"neurons": 0.5}, {"n_inner": 64, "n_embd": 32}),
        (_classifier, {"neurons": 0.5, "exclude": "*pooler*"}, {"intermediate_size": 32, "num_attention_heads": 4}),
        (_opt, {"neurons": 0.5}, {"ffn_dim": 32, "hidden_size": 32}),
        (_bert, {"weights": 0.5}, {"intermediate_size": 64}),
    ],
    ids=lambda value: "" if isinstance(value, partial) else " ".join(value),
)
def test_from_pretrained_reads_what_save_pretrained_writes(tmp_path, make, amounts: Any, numbers):
    model = awake(make())
    x = IMAGES if make is _vit else TOKENS
    small = compress(model, example=x, **amounts)
    as_pretrained(small.model, x).save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert relative_gap(small.model(x), again(x)) < 1e-5
    written = json.loads((tmp_path / "config.json").read_text())
    assert {key: written.get(key) for key in numbers} == numbers
    assert {type(module).__module__.split(".")[0] for module in again.modules()} <= {"transformers", "torch"}
    assert sum(p.numel() for p in again.parameters()) == small.costs.parameters
    assert model.config.to_dict() == small.model.config.to_dict()


@pytest.mark.parametrize(
    ("make", "amounts", "words"),
    [
        (
            _bert,
            {"heads": 0.5},
            r"encoder.layer.0.attention.self.query.weight has the shape \(16, 32\), .* gives \(32, 32\)",
        ),
        (
            _classifier,
            {"neurons": 0.5},
            r"pooler.dense.weight has .*: exclude bert.pooler.dense, classifier, or",
        ),
        (_classifier, {"filters": 0.5}, "LayerNorm averages over the 32 channels that there were"),
        (_llama, {"neurons": 0.5, "exclude": "*layers.1*"}, r"layers differ, .*layers.1.* \(64, 32\)"),
        (_llama, {"neurons": 0.5, "allocation": "global"}, "layers differ, .* remove the same from all"),
        (_llama, {"rank": 0.8}, "is two layers, which no configuration says"),
    ],
)
def test_one_line_says_what_no_configuration_can(make, amounts: Any, words):
    small = compress(awake(make()), example=TOKENS, **amounts)
    with pytest.raises(ExportError, match=words) as error:
        as_pretrained(small.model, TOKENS)
    assert "\n" not in str(error.value)
    assert "sparsefw.load" in str(error.value)


def test_only_networks_of_transformers_have_a_configuration():
    with pytest.raises(ExportError, match="and Linear is none"):
        as_pretrained(nn.Linear(2, 2), torch.zeros(1, 2))


def test_a_loaded_network_can_be_given_back_too(tmp_path):
    small = compress(awake(_llama()), example=TOKENS, heads=0.5)
    save(small, tmp_path / "ours")
    as_pretrained(load(tmp_path / "ours").model, TOKENS).save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["num_attention_heads"] == 2


def test_what_is_frozen_the_mode_the_precision_and_the_random_state_stay():
    small = compress(awake(_gpt2()).double(), example=TOKENS, neurons=0.5).model.train()
    small.transformer.wte.weight.requires_grad_(False)
    before = torch.get_rng_state()
    again = as_pretrained(small, TOKENS)
    assert torch.equal(before, torch.get_rng_state())
    assert again.training
    assert again.lm_head.weight is again.transformer.wte.weight
    assert not again.lm_head.weight.requires_grad
    assert again.transformer.h[0].mlp.c_fc.weight.requires_grad
    assert again.dtype == torch.float64


def test_the_summary_says_that_the_configuration_does_not_follow():
    model = awake(_llama())
    assert "save_pretrained needs as_pretrained(small.model, example)" in str(
        compress(model, example=TOKENS, heads=0.5)
    )
    assert "as_pretrained" not in str(compress(model, example=TOKENS, weights=0.5))


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "compress.md").read_text()
    block = text.split("<!-- run by tests/compression/test_pretrained.py -->\n```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(block, {"small": compress(awake(_llama()), example=TOKENS, heads=0.5), "example": TOKENS})
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "folder").iterdir()}
