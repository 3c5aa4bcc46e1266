"""Folders of save_pretrained: the same network without a pickle and without code, or one line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparsefw.models import import_torchvision, open_pretrained

import_torchvision()
transformers = pytest.importorskip("transformers")
SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
X = torch.randn(2, 3, 32, 32)


@pytest.fixture
def folder(tmp_path) -> Path:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=10)
    transformers.ViTForImageClassification(config).eval().save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_it_computes_what_the_library_itself_loads(folder):
    """The file has names of earlier versions, which the library translates."""
    model = open_pretrained(folder)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder)
    assert torch.equal(model.eval()(X).logits, theirs.eval()(X).logits)
    assert model.built_from["name"] == "transformers:ViTForImageClassification"


@pytest.mark.parametrize(
    "values, says",
    [
        ({"num_hidden_layers": 3}, "is missing (15 more): these are not the weights of ViTForImageClassification"),
        ({"num_hidden_layers": 1}, "is unknown (15 more)"),
        ({"id2label": {"0": "a"}, "label2id": {"a": 0}}, "classifier.bias does not fit (1 more)"),
        ({"architectures": None}, "architectures=None must name one class"),
        ({"architectures": ["os.system"]}, "has no network os.system"),
        ({"architectures": ["pipeline"]}, "has no network pipeline"),
        (
            {"auto_map": {"AutoModel": "evil--code.Model"}},
            "is refused: it may name a file, a download or code of others",
        ),
        ({"hidden_size": 10**9}, "has numbers above"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(folder, values, says):
    change(folder, **values)
    with pytest.raises(ValueError) as error:
        open_pretrained(folder)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_pickles_and_damaged_files_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no model.safetensors \(weights there: pytorch_model.bin\)"):
        open_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ValueError, match="is damaged, or no safetensors file"):
        open_pretrained(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="expected a table of settings, got list"):
        open_pretrained(folder)
