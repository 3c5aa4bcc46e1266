"""BatchNorm statistics: exactly the population moments of what each layer sees, however the batches come."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefw.compression import recalibrate
from sparsefw.compression.recovery.batchnorm import batch_statistics, has_batch_norm
from sparsefw.compression.structure.layers import evaluating


def data(*sizes: int, width: int = 6, seed: int = 0) -> list[Tensor]:
    """Batches of these sizes, with a mean and deviation of their own."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, width, generator=generator, dtype=torch.float64) * (1 + i) + i for i, size in enumerate(sizes)
    ]


def deep(norms: int) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(norms):
        norm = nn.BatchNorm1d(6)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        parts += [nn.Linear(6, 6), norm, nn.ReLU()]
    return nn.Sequential(*parts).double()


def by_hand(net: nn.Sequential, batches: list[Tensor]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and variance before every norm, in two passes over the samples, by numpy."""
    seen: list[list[np.ndarray]] = [[] for _ in range(len(net) // 3)]
    for batch in batches:
        x = batch.numpy()
        for i in range(len(net) // 3):
            linear, norm = net[3 * i], net[3 * i + 1]
            x = x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
            seen[i].append(x)
            x = (x - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).mean(0) + norm.eps)
            x = np.maximum(x * norm.weight.detach().numpy() + norm.bias.detach().numpy(), 0)
    samples = [np.concatenate(parts) for parts in seen]
    return [(s.mean(0), ((s - s.mean(0)) ** 2).mean(0)) for s in samples]


@pytest.mark.parametrize("sizes", [(8, 8, 8), (50,), (2, 31, 7)], ids=str)
@pytest.mark.parametrize("norms", [1, 2, 3])
def test_population_moments_of_what_each_layer_sees(norms, sizes):
    net, batches = deep(norms), data(*sizes)
    new = recalibrate(net, batches)
    for i, (mean, variance) in enumerate(by_hand(net, batches)):
        np.testing.assert_allclose(new[3 * i + 1].running_mean.numpy(), mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(new[3 * i + 1].running_var.numpy(), variance, rtol=1e-10)


@pytest.mark.parametrize("kind, shape", [(nn.BatchNorm1d, (9,)), (nn.BatchNorm2d, (5, 4)), (nn.BatchNorm3d, (3, 2, 4))])
def test_all_positions_count_alike(kind, shape):
    x = torch.randn(7, 3, *shape, dtype=torch.float64) + 2
    new = recalibrate(kind(3).double(), [x[:2], x[2:]])
    columns = np.moveaxis(x.numpy(), 1, 0).reshape(3, -1)
    np.testing.assert_allclose(new.running_mean.numpy(), columns.mean(1), rtol=1e-12)
    np.testing.assert_allclose(new.running_var.numpy(), columns.var(1), rtol=1e-10)


def test_a_batch_with_one_value_per_channel_passes_on_the_running_statistics():
    """The last batch of a loader is often a single sample. Its own statistics would silence every channel."""
    net, many, alone = deep(2), data(16)[0], data(1)[0] + 3
    with torch.no_grad():
        own = copy.deepcopy(net)
        seen = torch.cat([own[:4].train()(many), net[:4].eval()(alone)])
    new = recalibrate(net, [many, alone])
    torch.testing.assert_close(new[4].running_mean, seen.mean(0))
    torch.testing.assert_close(new[4].running_var, seen.var(0, correction=0))


def test_one_value_per_channel_in_all_is_too_few():
    with pytest.raises(ValueError, match=r"^calibration has one value per channel[^\n]*$"):
        recalibrate(deep(1), data(1))
    assert recalibrate(deep(1), data(1, 1))[1].running_var.min() > 0


def test_constant_channels_have_no_variance():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).repeat(8, 1)  # rounding makes some sums of squares too small
    new = recalibrate(nn.BatchNorm1d(40).double(), [x[:3], x[3:]])
    assert float(new.running_var.min()) >= 0
    assert float(new.running_var.max()) < 1e-15
    assert bool(new.eval()(x).isfinite().all())


def test_a_norm_that_is_used_twice_sees_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + self.norm(10 * x)

    (x,) = data(16)
    found = recalibrate(Twice().double(), [x]).norm
    both = torch.cat([x, 10 * x])
    torch.testing.assert_close(found.running_mean, both.mean(0))
    torch.testing.assert_close(found.running_var, both.var(0, correction=0))


def test_only_the_copy_changes():
    net = deep(2).train()
    net[1].eval()
    before, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    new = recalibrate(net, data(8, 8))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert [m.training for m in net.modules()] == modes == [m.training for m in new.modules()]
    for model in (net, new):
        assert not any(m._forward_pre_hooks or m._forward_hooks or "forward" in vars(m) for m in model.modules())
    changed = {n for n, t in new.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {"1.running_mean", "1.running_var", "4.running_mean", "4.running_var"}


def test_the_number_of_batches_tracked_stays():
    """It is how far a running average has come, and weighs the next training batch where momentum is None."""
    net = nn.BatchNorm1d(6, momentum=None).double()
    net(data(8)[0])
    new = recalibrate(net, data(8, 8, 8))
    assert int(new.num_batches_tracked) == 1
    torch.testing.assert_close(new.running_mean, torch.cat(data(8, 8, 8)).mean(0))


def test_norms_of_other_kinds():
    """Without a scale of their own; and those that never keep statistics, which always normalise by the batch."""
    net = nn.Sequential(
        nn.BatchNorm1d(6, affine=False),
        nn.BatchNorm1d(6, track_running_stats=False),
        nn.Linear(6, 4),
        nn.BatchNorm1d(4),
    ).double()
    batches = data(9, 4)
    new = recalibrate(net, batches)
    torch.testing.assert_close(new[0].running_mean, torch.cat(batches).mean(0))
    assert new[1].running_mean is None
    with torch.no_grad():
        x = torch.cat([net[2](net[1].train()(net[0].train()(b))) for b in batches])
    torch.testing.assert_close(new[3].running_mean, x.mean(0), atol=1e-9, rtol=1e-4)
    torch.testing.assert_close(new[3].running_var, x.var(0, correction=0), atol=1e-9, rtol=1e-4)


def test_synchronised_norms_on_one_process():
    net = deep(2)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    batches = data(9, 4)
    for a, b in zip(recalibrate(net, batches).buffers(), recalibrate(synchronised, batches).buffers(), strict=True):
        torch.testing.assert_close(a, b)


class Activated(nn.BatchNorm2d):
    """As in timm: a subclass whose forward does more than to normalise."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


def test_a_subclass_still_computes_what_it_adds():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), Activated(4), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)).double()
    plain = nn.Sequential(
        net[0], nn.Sequential(nn.BatchNorm2d(4).double(), nn.ReLU()), net[2], nn.BatchNorm2d(5).double()
    )
    batches = [torch.randn(4, 3, 8, 8, dtype=torch.float64) for _ in range(3)]
    found, expected = recalibrate(net, batches)[3], recalibrate(plain, batches)[3]
    torch.testing.assert_close(found.running_mean, expected.running_mean)
    torch.testing.assert_close(found.running_var, expected.running_var)


def test_models_without_norms_are_left_as_they_are():
    net = nn.Sequential(nn.Linear(6, 2), nn.LayerNorm(2)).double()
    assert not has_batch_norm(net)
    assert not has_batch_norm(nn.BatchNorm1d(6, track_running_stats=False))
    assert has_batch_norm(deep(1))
    new = recalibrate(net, data(4))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), new.state_dict().values(), strict=True))


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(5)], ids=["global", "own"])
def test_a_shuffling_loader_gives_the_same_every_time(generator):
    """Which batch a sample comes in matters to the second norm, so the order must repeat."""
    net, (x,) = deep(2), data(64)
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True, generator=generator)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second = recalibrate(net, loader), recalibrate(net, loader)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.buffers(), second.buffers(), strict=True))


def test_generators_are_read_once():
    net, batches = deep(2), data(8, 3, 9)
    expected, found = recalibrate(net, batches), recalibrate(net, (b for b in batches))
    assert all(torch.equal(a, b) for a, b in zip(expected.buffers(), found.buffers(), strict=True))


def test_running_statistics_are_back_after_an_error():
    net = deep(1).eval()
    before = copy.deepcopy(net.state_dict())
    net[2].register_forward_hook(lambda *_: sys.exit())
    with pytest.raises(SystemExit), evaluating(net), batch_statistics(net):
        net(data(8)[0])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert not net[1]._forward_pre_hooks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions(dtype):
    x = (torch.randn(64, 5) * 3 + 100).to(dtype)
    new = recalibrate(nn.BatchNorm1d(5).to(dtype), [x[:32], x[32:]])
    assert new.running_mean.dtype == dtype
    torch.testing.assert_close(new.running_mean, x.double().mean(0).to(dtype))
    torch.testing.assert_close(new.running_var, x.double().var(0, correction=0).to(dtype))
