"""Networks of transformers: built again from their class and configuration, by no code of others, without downloads."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

from compression.zoo import HF, _bert, _llama
from sparsefw import compress, save
from sparsefw.models import build, build_registered, record_of
from vision import require_vision

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    pytest.importorskip(HF)
    require_vision("torchvision:")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("make", [_bert, _llama], ids=["BERT", "Llama"])
def test_a_network_is_built_again_from_its_record(make):
    model = make().eval()
    record = json.loads(json.dumps(record_of(model)))
    again = build_registered(record).eval()
    again.load_state_dict(model.state_dict())
    tokens = torch.arange(8).view(2, 4)
    with torch.no_grad():
        assert torch.equal(again(tokens)[0], model(tokens)[0])
    assert again.built_from == record
    assert type(again) is type(model)


@pytest.mark.parametrize("make", [_bert, _llama], ids=["BERT", "Llama"])
def test_a_compressed_network_loads_in_a_fresh_process_without_a_constructor(tmp_path, make):
    model = make().eval()
    tokens = torch.arange(8).view(2, 4)
    small = compress(model, filters=0.5, example=tokens)
    save(small, tmp_path / "a")
    code = "import sys, torch, sparsefw; net = sparsefw.load(sys.argv[1]).model; " + (
        "print(type(net).__module__, float(net(torch.arange(8).view(2, 4))[0].detach().sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=True)
    module, total = done.stdout.split()
    assert module == type(model).__module__
    assert float(total) == pytest.approx(float(small.model(tokens)[0].detach().sum()), abs=1e-4)


def test_how_attention_is_computed_and_names_of_labels_are_kept():
    transformers = pytest.importorskip(HF)
    labels = {0: "a/b: c", 1: "http://d"}
    config = transformers.BertConfig(**SMALL, id2label=labels, attn_implementation="eager")
    again = build_registered(record_of(transformers.BertForSequenceClassification(config)))
    assert again.config.id2label == labels
    assert again.config._attn_implementation == "eager"


def test_a_subclass_of_the_user_has_no_record():
    transformers = pytest.importorskip(HF)

    class Own(transformers.BertModel):
        pass

    assert record_of(Own(transformers.BertConfig(**SMALL))) is None
    assert record_of(nn.Linear(2, 2)) is None


def test_a_network_whose_configuration_names_a_file_has_no_record():
    model = _bert()
    model.config.backbone = "timm/resnet50"
    assert record_of(model) is None


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("BertModel", {"auto_map": {"AutoModel": "mine--code.Net"}}, "auto_map.*refused"),
        ("BertModel", {"text_config": {"auto_map": {"AutoModel": "mine"}}}, "auto_map.*refused"),
        ("BertModel", {"attn_implementation": "kernels-community/flash-attn"}, "accepted: eager, sdpa"),
        ("BertModel", {"_attn_implementation": "sdpa"}, "_attn_implementation.*refused"),
        ("BertModel", {"experts_implementation": "owner/kernel"}, "experts_implementation.*refused"),
        ("DetrForObjectDetection", {"backbone": "resnet50"}, "backbone.*refused"),
        ("DetrForObjectDetection", {"use_timm_backbone": True}, "use_timm_backbone.*refused"),
        ("DetrForObjectDetection", {"use_pretrained_backbone": True}, "use_pretrained_backbone.*refused"),
        ("BertModel", {"quantization_config": {"load_in_8bit": True}}, "quantization_config.*refused"),
        ("BertModel", {"hidden_act": "../weights.bin"}, "must be a number, a word"),
        ("BertModel", {"hidden_act": ["https://x.org"]}, "must be a number, a word"),
        ("BertModel", {"num_hidden_layers": 10**6}, "num_hidden_layers has numbers above 1,000"),
        ("BertModel", {"vocab_size": 10**12}, "vocab_size has numbers above"),
        ("AutoModel", {}, "has no network AutoModel"),
        ("BertConfig", {}, "has no network BertConfig"),
        ("PreTrainedModel", {}, "has no network PreTrainedModel"),
        ("pipeline", {}, "has no network pipeline"),
        ("utils.hub.cached_file", {}, "has no network"),
        ("Bert", {}, "has no network Bert"),
    ],
)
def test_what_reads_files_downloads_or_runs_other_code_is_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        build(f"transformers:{name}", **arguments)
    assert "\n" not in str(error.value)


def test_without_transformers_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, HF, None)
    with pytest.raises(ValueError, match="needs transformers: pip install transformers"):
        build("transformers:BertModel", **SMALL)
