"""Adversarial cases: silent changes of a network's function, checks that see nothing, files that reveal too much."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from compression.zoo import Net
from sparsefw import compress, load, recalibrate, save, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact.files import digest_of
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy

X = torch.randn(64, 5, 8, generator=torch.Generator().manual_seed(0))


class Tripled(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        out, weights = super().forward(*args, **kwargs)
        return 3 * out, weights


def attending(attention: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    parts = dict(attention=attention, inner=nn.Linear(8, 16), head=nn.Linear(16, 3))
    return Net(lambda n, x: n.head(torch.relu(n.inner(x + n.attention(x, x, x, need_weights=False)[0]))), **parts)


def hooked() -> nn.Module:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    attention.register_forward_hook(lambda m, i, o: (3 * o[0], o[1]))
    return attention


@pytest.mark.parametrize("make", [lambda: Tripled(8, 2, batch_first=True), hooked])
def test_attention_that_computes_something_else_is_left_alone(make):
    net = attending(make())
    small = compress(net, weights=0.001, example=X)
    assert relative_gap(net(X), small.model(X)) < 0.01


class Scaled(nn.Linear):
    def forward(self, x):
        return functional.linear(x, self.weight * 0.1, self.bias)


def test_layers_with_a_forward_or_hooks_of_their_own_are_not_refitted():
    torch.manual_seed(0)
    net = nn.Sequential(Scaled(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    net[2].register_forward_hook(lambda m, i, o: 5 * o)
    x = X.flatten(0, 1)
    plain, fitted = (compress(net, filters=0.25, calibration=[x], refit=refit) for refit in (False, True))
    assert relative_gap(net(x), fitted.model(x)) < 2 * relative_gap(net(x), plain.model(x))
    reasons = {u.layer: u.reason for u in fitted.plan.untouched}
    assert "became a plain Linear" in reasons["0"]
    assert "custom forward or hooks" in reasons["2"]


def test_low_rank_keeps_hooks():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    net[2].register_forward_hook(lambda m, i, o: 5 * o)
    small = compress(net, rank=0.5, example=X)
    assert {u.layer: u.reason for u in small.plan.untouched}["2"] == "Linear has a custom forward or hooks"
    assert small.model[2]._forward_hooks


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


def test_elastic_plain_points_without_batch_norm_are_what_was_evaluated(tmp_path):
    net, seen, x = mlp(), [], X.flatten(0, 1)
    save_elastic(
        net,
        tmp_path / "e",
        at=[0.5],
        calibration=[x],
        refit=False,
        evaluate=lambda m: seen.append(m(x).detach()) or 0.0,
    )
    torch.testing.assert_close(load(tmp_path / "e", mlp, filters=0.5).model(x), seen[0])


def test_close_ratios_have_different_files(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "weights", [0.9001, 0.91], calibration=[X.flatten(0, 1)])
    for ratio in (0.9001, 0.91):
        found = load(tmp_path / "e", mlp, weights=ratio)
        nonzero = sum(int(m.weight.count_nonzero()) for m in found.model if isinstance(m, nn.Linear))
        assert nonzero == sum(edit.nonzero for edit in found.plan.edits)


@pytest.mark.parametrize("last", [lambda y: torch.zeros(len(y), dtype=torch.long), lambda y: y.isnan() & False])
def test_outputs_that_cannot_be_compared_prove_nothing(last):
    net = Net(lambda n, x: last(n.b(torch.relu(n.a(x))) * n.a(x).shape[-1]), a=nn.Linear(8, 16), b=nn.Linear(16, 4))
    with pytest.raises(ValueError, match="nothing to compress"):
        compress(net, filters=0.5, example=X)


def test_an_example_of_zeros_proves_nothing():
    parts = dict(a=nn.Conv2d(3, 16, 3, bias=False), b=nn.Conv2d(16, 4, 1, bias=False))
    net = Net(lambda n, x: n.b(n.a(x) * n.a(x).shape[1] * x[:, :1, 1:-1, 1:-1]), **parts)
    with pytest.raises(ValueError, match="nothing to compress"):
        compress(net, filters=0.5, example=torch.zeros(2, 3, 8, 8))


def test_the_final_choice_is_checked_too():
    """The trial removes a third, which this model takes; half of the channels is another matter."""
    net = Net(
        lambda n, x: n.b((y := torch.relu(n.a(x))) * (1 if y.shape[-1] > 8 else 2)),
        a=nn.Linear(8, 16),
        b=nn.Linear(16, 4),
    )
    with pytest.raises(ValueError, match="not the same as silencing"):
        compress(net, filters=0.5, example=X)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x, mask):
        return self.head(self.body(x, src_key_padding_mask=mask))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # the dense model's own, when timed
def test_transformer_encoder_with_a_padding_mask_comes_back(tmp_path):
    torch.manual_seed(0)
    net, mask = Encoder().eval(), torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 4:] = True
    example = (torch.randn(4, 6, 16), mask)
    small = compress(net, filters=0.5, example=example)
    save(small, tmp_path / "a")
    with torch.no_grad():
        torch.testing.assert_close(
            call_on_copy(load(tmp_path / "a", Encoder).model, example), call_on_copy(small.model, example)
        )


def test_one_value_per_channel_has_no_variance():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval()
    with pytest.raises(ValueError, match="no variance"):
        recalibrate(net, [torch.randn(1, 8)])


def test_masks_of_minus_infinity_are_accepted():
    net = mlp()
    net.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))
    small = compress(net, filters=0.5, example=X)
    assert small.costs.parameters < small.dense.parameters


def test_a_layer_called_by_keyword_is_refitted():
    net = Net(lambda n, x: n.b(input=torch.relu(n.a(x))), a=nn.Linear(8, 16), b=nn.Linear(16, 4))
    plain, refitted = (compress(net, filters=0.5, calibration=[X], refit=refit).model for refit in (False, True))
    assert plain.b.weight.shape == refitted.b.weight.shape == (4, 8)
    assert not torch.equal(plain.b.weight, refitted.b.weight)


def test_random_state_and_modes_of_the_caller_stay(tmp_path):
    net = attending(nn.MultiheadAttention(8, 2, batch_first=True)).train()
    net.inner.eval()
    before = torch.get_rng_state()
    small = compress(net, filters=0.5, example=X)
    assert torch.equal(before, torch.get_rng_state())
    assert small.model.training
    assert not small.model.inner.training
    save(small, tmp_path / "a")
    again = load(tmp_path / "a", lambda: attending(nn.MultiheadAttention(8, 2, batch_first=True))).model
    assert again.training
    assert not again.inner.training


def test_a_model_that_counts_its_calls_is_not_called():
    net = mlp()
    net.register_buffer("calls", torch.zeros(()))
    net.register_forward_pre_hook(lambda module, args: module.calls.add_(1) and None)
    compress(net, filters=0.5, calibration=[X.flatten(0, 1)])
    assert net.calls == 0


def test_files_outside_of_the_folder_are_not_read(tmp_path):
    save_elastic(mlp(), tmp_path / "e", at=[0.5], calibration=[X.flatten(0, 1)])
    (tmp_path / "e" / "refit-0.5.safetensors").rename(tmp_path / "secret.safetensors")
    path = tmp_path / "e" / "plan.json"
    header = json.loads(path.read_text())
    for name in ("../secret.safetensors", str(tmp_path / "secret.safetensors"), 7):
        for point in header["points"]:
            point["refit"]["file"] = name
        path.write_text(json.dumps({**header, "digest": digest_of(header)}))
        with pytest.raises(ArtifactError):
            load(tmp_path / "e", mlp, filters=0.5)
    header["points"] = [1]
    path.write_text(json.dumps({**header, "digest": digest_of(header)}))
    with pytest.raises(ArtifactError, match="lists no points"):
        load(tmp_path / "e", mlp, filters=0.5)


def test_a_link_to_a_folder_stays_a_link(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    small = compress(mlp(), filters=0.5, example=X)
    save(small, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "plan.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]
    monkeypatch.chdir(tmp_path / "real")
    with pytest.raises(ArtifactError, match="current folder"):
        save(small, ".")


def test_channels_last_hides_no_channels():
    """Global pooling of channels_last tensors gives its result other strides, which moves nothing."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    x = torch.randn(2, 3, 8, 8)
    plain = compress(net.eval(), filters=0.5, example=x)
    last = compress(
        net.to(memory_format=torch.channels_last), filters=0.5, example=x.to(memory_format=torch.channels_last)
    )
    assert last.plan.edits == plain.plan.edits
