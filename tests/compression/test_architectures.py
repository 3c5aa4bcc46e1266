"""Every architecture of the zoo, compressed in every way: smaller, equal to the dense one with the same channels silent."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compression.zoo import FILTERS, KINDS, RANK, WEIGHTS, ZOO, Architecture, attempt, outputs, share_removable
from sparsefw.compression import Compressed, compress
from sparsefw.compression.artifact.export import export_onnx
from sparsefw.compression.preparation import prepared
from sparsefw.compression.structure.channels import tensors_of
from sparsefw.compression.structure.layers import call_on_copy
from sparsefw.compression.structure.removal import removable_channels


def listed(architectures: tuple[Architecture, ...], slow: str = "slow") -> list[Any]:
    marks = {True: [pytest.mark.slow], False: []}
    return [
        pytest.param(a, id=a.name, marks=marks[a.slow or (slow == "export" and not a.export)]) for a in architectures
    ]


def built(architecture: Architecture) -> tuple[nn.Module, Any]:
    if architecture.missing:
        pytest.skip(architecture.missing)
    return architecture.make(), architecture.inputs()


def state(model: nn.Module) -> dict[str, Any]:
    """All of a model that compressing it must not change, hooks and patched methods included."""
    modules = dict(model.named_modules())
    return {
        "tensors": {name: t.clone() for name, t in model.state_dict().items()},
        "layouts": {name: t.stride() for name, t in model.state_dict().items()},
        "frozen": {name: p.requires_grad for name, p in model.named_parameters()},
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "modes": {name: m.training for name, m in modules.items()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in modules.items()},
        "attributes": {name: sorted(vars(m)) for name, m in modules.items()},
    }


def assert_unchanged(before: dict[str, Any], model: nn.Module) -> None:
    after = state(model)
    assert list(before["tensors"]) == list(after["tensors"])
    for name, tensor in before.pop("tensors").items():
        assert torch.equal(tensor, after["tensors"][name]), name
    del after["tensors"]
    assert before == after


@pytest.mark.parametrize("architecture", listed(ZOO))
def test_filters_rank_and_weights(architecture):
    dense, inputs = built(architecture)
    before, kept_inputs = state(dense), copy.deepcopy(inputs)
    expected = outputs(dense, inputs)
    assert all(bool(t.isfinite().all()) and float(t.abs().max()) > 0.01 for t in expected)
    for kind in KINDS:
        trial = attempt(dense, inputs, **{kind: 0.5})
        assert_unchanged(dict(before), dense)
        if kind in architecture.refused:
            assert architecture.refused[kind] in trial.refused
            assert "\n" not in trial.refused
            continue
        small = trial.small
        assert small is not None, trial.refused
        assert [t.shape for t in outputs(small.model, inputs)] == [t.shape for t in expected]
        if kind == WEIGHTS:
            assert small.costs.bytes < small.dense.bytes
            continue
        assert small.costs.parameters < 0.95 * small.dense.parameters
        assert small.costs.macs < 0.95 * small.dense.macs
        assert trial.gap <= (1e-5 if kind == FILTERS else 1e-4)
        if kind == FILTERS:
            check_reasons(architecture, small)
    for old, new in zip(tensors_of(kept_inputs), tensors_of(inputs), strict=True):
        assert torch.equal(old, new)


def check_reasons(architecture: Architecture, small: Compressed) -> None:
    """What is left says why in one line, and for the reasons that are known, no other."""
    reasons = {u.reason for u in small.plan.untouched if not u.note}
    assert not any("\n" in reason for reason in reasons)
    for reason in reasons:
        assert any(known in reason for known in architecture.left), reason
    for known in architecture.left:
        assert any(known in reason for reason in reasons), known


@pytest.mark.parametrize("architecture", listed(ZOO))
def test_how_much_is_removable(architecture):
    dense, inputs = built(architecture)
    dense = prepared(dense, inputs).model
    before = state(dense)
    found = removable_channels(dense, inputs)
    assert_unchanged(before, dense)
    assert round(100 * share_removable(found)) == architecture.removable


@pytest.mark.parametrize("architecture", listed(ZOO))
def test_the_small_network_can_be_trained(architecture):
    """Also what only runs in training, such as auxiliary heads, fits the smaller network."""
    dense, inputs = built(architecture)
    small = compress(dense, example=inputs, **dict.fromkeys(set(architecture.kinds) - {WEIGHTS}, 0.3) or {WEIGHTS: 0.3})
    results = [tensors_of(call_on_copy(model.train(), inputs)) for model in (dense, small.model)]
    assert [t.shape for t in results[0]] == [t.shape for t in results[1]]
    sum(t.float().square().mean() for t in results[1]).backward()
    gradients = [p.grad for p in small.model.parameters() if p.grad is not None]
    assert len(gradients) > 0.9 * len(list(small.model.parameters()))
    assert all(math.isfinite(float(g.sum())) for g in gradients)


@pytest.mark.parametrize("architecture", listed(ZOO, slow="export"))
def test_onnx(architecture, tmp_path):
    pytest.importorskip("onnxruntime")
    if not set(architecture.kinds) & {FILTERS, RANK}:
        pytest.skip("has neither filters nor rank to compress")
    dense, inputs = built(architecture)
    small = compress(dense, example=inputs, filters=0.5, rank=0.5)
    assert export_onnx(small.model, inputs, tmp_path / "small.onnx") <= 1e-4


def test_all_three_together_on_a_transformer():
    architecture = next(a for a in ZOO if a.name == "Llama")
    dense, inputs = built(architecture)
    small = compress(dense, example=inputs, filters=0.5, rank=0.5, weights=0.5)
    assert small.costs.parameters < 0.75 * small.dense.parameters
    assert small.costs.bytes < 0.5 * small.dense.bytes


def test_the_support_matrix_lists_the_zoo():
    text, _, more = (Path(__file__).parents[2] / "docs" / "support.md").read_text().partition("## More networks")
    assert more.count("\n| ") > 80
    _, _, *rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| ")]
    assert rows == [[f"| {a.name} ({a.note})" if a.note else f"| {a.name}", f"{a.removable}%"] for a in ZOO]
