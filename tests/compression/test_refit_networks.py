"""Refit of whole networks, and what it does to the accuracy of a trained one."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compression.least_squares import normal
from sparsefw.compression import compress, recalibrate
from sparsefw.compression.artifact.plan import Keep
from sparsefw.compression.kinds.stage import kept_rows
from sparsefw.compression.recovery import refit
from sparsefw.compression.structure.attention import PlainAttention
from sparsefw.data import load_digits
from sparsefw.models import build

CPU = torch.device("cpu")
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# Whole networks


def network(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for a, b in ((2, 12), (12, 12), (12, 12)):
        parts += [nn.Conv2d(a, b, 3, padding=1, bias=not norm), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 5)).double()


def batches(count: int = 3) -> list[Tensor]:
    return [normal(16, 2, 6, 6, seed=i) + 0.2 for i in range(count)]


KINDS = [{"filters": 0.5}, {"filters": 0.5, "form": "masked"}, {"rank": 0.75}, {"weights": 0.8}]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_no_layer_fits_worse_than_with_its_plain_weight(how, monkeypatch):
    """On the inputs that it gets in the refitted network, against the outputs of the dense one."""
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 1e-9)
    net = network()
    plain, fitted = (compress(net, example=batches()[0], calibration=c, refit=True, **how) for c in (None, batches()))
    assert plain.plan.edits == fitted.plan.edits
    rows = kept_rows(net, fitted.plan.edits)
    x, better = torch.cat(batches()), 0
    with torch.no_grad():
        for i in (0, 3, 6, 11):
            wanted = net[: i + 1](x)
            wanted = wanted[:, rows.get(str(i), slice(None))]
            seen = fitted.model[:i](x)
            errors = [float((wanted - m.model[i](seen)).square().sum()) for m in (fitted, plain)]
            assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-12
            better += errors[0] < 0.9 * errors[1]
    assert better >= 3


@pytest.mark.parametrize("kind", [nn.Linear, lambda a, b: nn.Conv2d(a, b, 1)], ids=["linear", "convolution"])
@pytest.mark.parametrize("ratio", [0.5, 0.8], ids=["one layer", "two layers"])
def test_low_rank_is_the_best_for_the_data_not_for_the_weight(kind, ratio):
    """Inputs that differ in size by 1,000: the singular vectors of the weight alone spend the rank on what is never there."""
    torch.manual_seed(0)
    net = nn.Sequential(kind(8, 8), nn.ReLU(), kind(8, 2)).double()
    sizes = torch.logspace(-3, 0, 8, dtype=torch.float64)
    x = normal(60, 8) * sizes
    x = x if kind is nn.Linear else x.view(60, 8, 1, 1)
    plain, fitted = (compress(net, rank=ratio, example=x, calibration=c, refit=True).model[0] for c in (None, [x]))
    with torch.no_grad():
        errors = [float((layer(x) - net[0](x)).norm()) for layer in (fitted, plain)]
        W, X = net[0].weight.flatten(1).numpy(), x.flatten(1).T.numpy()
    rank = 4 if ratio == 0.5 else 1
    best = np.linalg.svd(W @ (X - X.mean(1, keepdims=True)), compute_uv=False)
    assert errors[0] == pytest.approx(math.sqrt((best[rank:] ** 2).sum()), rel=0.05)
    assert errors[0] < 0.8 * errors[1]


def test_masked_filters_stay_masked():
    small = compress(network(), filters=0.5, form="masked", calibration=batches(), refit=True)
    for edit in small.plan.edits:
        silent = small.model.get_submodule(edit.layer).weight.flatten(1).norm(dim=1) == 0
        assert silent.nonzero().flatten().tolist() == list(edit.filters)
        assert len(edit.filters) == 6


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("how", [{"filters": 0.001}, {"weights": 1e-5}, {"filters": 0.001, "form": "masked"}], ids=str)
def test_nothing_removed_nothing_changed(how, norm):
    net, data_ = network(norm).float(), [b.float() for b in batches(5)]
    small = compress(net, calibration=data_, refit=True, **how).model
    expected = recalibrate(net, data_).eval()
    with torch.no_grad():
        for x in data_:
            gap = (small.eval()(x) - expected(x)).abs().max() / expected(x).abs().max()
            assert float(gap) < 1e-4


def test_rows_that_stay_of_layers_that_keep_channels_apart_and_of_attention():
    """What the dense network computed at the outputs that are left, in their order."""
    net = nn.Module()
    net.conv, net.depthwise = nn.Conv2d(3, 6, 1), nn.Conv2d(4, 8, 3, groups=4)
    net.plain = PlainAttention(6, 3, 2)
    edits = [
        Keep("conv", "out", (5, 1)),
        Keep("conv", "in", (0,)),
        Keep("depthwise", "each", (1, 3)),
        Keep("plain.value", "out", (0, 1, 4, 5)),
        Keep("plain.num_heads", "count", (0, 2)),
    ]
    assert kept_rows(net, edits) == {
        "conv": [5, 1],
        "depthwise": [2, 3, 6, 7],
        "plain.value": [0, 1, 4, 5],
    }


def test_attention_is_refitted():
    """With fewer heads the block comes nearer to the dense one than by mere removal."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double().eval()
    data_ = [normal(16, 6, 16, seed=i) for i in range(5)]
    gaps = []
    with torch.no_grad():
        for calibrated in (False, True):
            small = compress(
                layer, filters=0.5, example=data_[0], calibration=data_ if calibrated else None, refit=True
            )
            assert any(isinstance(e, Keep) and e.layer == "self_attn.num_heads" for e in small.plan.edits)
            gaps.append(float((small.model.eval()(data_[0]) - layer(data_[0])).square().mean()))
    assert gaps[1] < 0.8 * gaps[0]


def test_progress_and_no_traces():
    calls: list[tuple[int, int, str]] = []
    net = network(norm=True)
    small = compress(net, filters=0.5, calibration=batches(), refit=True, progress=lambda *call: calls.append(call))
    assert calls == [(0, 4, "0"), (1, 4, "3"), (2, 4, "6"), (3, 4, "11"), (4, 4, "")]
    for model in (net, small.model):
        assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())


def test_no_hook_stays_behind_an_error():
    def stop(done: int, total: int, name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    net = network(norm=True)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(KeyboardInterrupt):
        compress(net, filters=0.5, calibration=batches(), refit=True, progress=stop)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_layers_that_cannot_be_refitted_are_listed():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.twice, self.head = nn.ConvTranspose2d(2, 8, 2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.twice(torch.relu(self.twice(torch.relu(self.up(x)))))))

    small = compress(Mixed(), weights=0.5, calibration=[b.float() for b in batches()], refit=True)
    assert {(u.layer, u.reason) for u in small.plan.untouched} == {
        ("up", "not fitted: transposed"),
        ("twice", "not fitted: used more than once"),
    }


# A trained network


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    torch.manual_seed(0)
    net, (images, labels) = build("resnet_digits"), load_digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    epochs, per_epoch = 8, len(images.split(64))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (epochs * per_epoch))
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracies(net: nn.Module, **how) -> tuple[float, float]:
    """Percent of the test digits recognised, plain and refitted, with 256 unlabelled training images."""
    calibration, (images, labels) = list(load_digits().images[:256].split(64)), load_digits("test")
    found = []
    with torch.no_grad():
        for fit in (False, True):
            small = compress(net, calibration=calibration, refit=fit, **how).model.eval()
            found.append(100 * float((small(images).argmax(1) == labels).float().mean()))
    return found[0], found[1]


@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("form", ["removed", "masked"])
def test_refit_raises_accuracy_after_filters_were_removed(trained, form, ratio):
    plain, fitted = accuracies(trained, filters=ratio, form=form)
    assert fitted > plain + 10
    if ratio <= 0.7:
        assert fitted > 85


@pytest.mark.parametrize(
    "how", [*({"rank": r} for r in (0.6, 0.75, 0.9)), *({"weights": r} for r in (0.9, 0.95, 0.97))], ids=str
)
def test_refit_does_not_lower_accuracy_by_rank_or_weights(trained, how):
    plain, fitted = accuracies(trained, **how)
    assert fitted >= plain
