"""What only a GPU can show: no host sync in the step, CUDA-graph capture, agreement with the CPU, moved parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from catalog import RULES, gaussian, regions
from gpu import never_waiting
from sparsefw import SFW, constrain
from sparsefw import geometry as geo
from sparsefw.optim import NonFiniteGradientError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),  # turning it on warns of itself
]
SHAPE = (6, 3, 2, 2)


def parameters(device, count=3, dtype=torch.float32):
    return [nn.Parameter((gaussian(SHAPE, seed) * 0.3).to(device, dtype)) for seed in range(count)]


def set_gradients(params, step):
    for i, p in enumerate(params):
        g = gaussian(SHAPE, 100 * step + i).to(p.device, p.dtype)
        p.grad = g if p.grad is None else p.grad.copy_(g)


def without_sync(work):
    with never_waiting():
        work()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_step_never_syncs_and_equals_the_cpu(rule):
    for region in regions(SHAPE, exact=False):
        on_gpu, on_cpu = parameters("cuda", dtype=torch.float64), parameters("cpu", dtype=torch.float64)
        a = SFW([{"params": on_gpu, "region": region}], lr=0.2, rescale=rule)
        b = SFW([{"params": on_cpu, "region": region}], lr=0.2, rescale=rule)
        for step in range(8):
            set_gradients(on_gpu, step)
            set_gradients(on_cpu, step)
            a.step() if step == 0 else without_sync(a.step)
            b.step()
        for p, q in zip(on_gpu, on_cpu, strict=True):
            torch.testing.assert_close(p.cpu(), q, rtol=1e-6, atol=1e-7, msg=lambda m, r=region: f"{r}: {m}")


@pytest.mark.parametrize("kind", ["filters", "rank", "weights", "2:4"])
@pytest.mark.parametrize("rest", ["sgd", "adamw"])
def test_captured_step_equals_the_eager_one(kind, rest):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)).cuda()
    twin = copy.deepcopy(net)
    k = None if ":" in kind else 0.25

    def make(model):
        return SFW(constrain(model, kind, k=k, w=2.0, report=None), lr=0.05, weight_decay=1e-3, rest=rest)

    a, b = make(net), make(twin)
    gradients = [[torch.randn_like(p) for p in net.parameters()] for _ in range(16)]

    def load(model, step):
        for p, g in zip(model.parameters(), gradients[step], strict=True):
            p.grad = g.clone() if p.grad is None else p.grad.copy_(g)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in range(8):
            load(net, step)
            a.step()
    torch.cuda.current_stream().wait_stream(stream)
    saved = [p.detach().clone() for p in net.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.step()
    assert all(torch.equal(p, s) for p, s in zip(net.parameters(), saved, strict=True))  # capture runs nothing
    for step in range(8, 16):
        load(net, step)
        graph.replay()
    for step in range(16):
        load(twin, step)
        b.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_nan_is_masked_on_the_device_and_named_later():
    params = parameters("cuda")
    optimizer = SFW(
        [{"params": [(f"w{i}", p) for i, p in enumerate(params)], "region": geo.GroupKSupportBall(2, 3.0)}],
        check_every=5,
    )
    for step in range(4):
        set_gradients(params, step)
        if step == 2:
            params[1].grad.view(-1)[0] = float("nan")
            before = [p.detach().clone() for p in params]
        if step:
            without_sync(optimizer.step)
        else:
            optimizer.step()
        if step == 2:
            assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    set_gradients(params, 5)
    with pytest.raises(NonFiniteGradientError, match="w1"):
        optimizer.step()


@pytest.mark.parametrize(("fused", "tolerance"), [(None, 3e-2), (False, 1e-3)])
def test_parameters_moved_to_the_gpu_keep_their_momentum(fused, tolerance):
    moved, stayed = parameters("cpu"), parameters("cpu")
    region = geo.SpectralKSupportBall(2, 3.0)
    a, b = SFW([{"params": moved, "region": region}], fused=fused), SFW([{"params": stayed, "region": region}])
    for step in range(10):
        if step == 5:
            for p in moved:
                p.data, p.grad = p.data.cuda(), None
        set_gradients(moved, step)
        set_gradients(stayed, step)
        a.step()
        b.step()
    for p, q in zip(moved, stayed, strict=True):
        assert p.is_cuda
        torch.testing.assert_close(p.cpu(), q, rtol=tolerance, atol=tolerance / 3)


def test_tf32_does_not_harm_the_subspace():
    """The products may be TF32, the Gram matrix is float64: orthonormal to TF32's own rounding, quality above 0.99."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        G = torch.randn(4, 128, 1152, device="cuda") * torch.logspace(0, -3, 128, device="cuda").unsqueeze(-1)
        region, warm = geo.SpectralKSupportBall(12), None
        for _ in range(6):
            unit, warm = region.oracle(G, warm, 1)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    gained = (unit * G).flatten(1).sum(-1)
    assert float((gained / region.dual_norm(G, stacked=True)).min()) > 0.99
    assert bool((region.norm(unit, stacked=True) <= 1 + 1e-4).all())


def test_grad_scaler():
    p = nn.Parameter(torch.randn(8, 16, device="cuda"))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(2, 9.0)}], lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    for step in range(20):
        optimizer.zero_grad()
        scaler.scale((p - 1).square().sum()).backward()
        if step == 3:
            p.grad.fill_(float("inf"))
            before = p.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            assert torch.equal(p, before)
            assert scaler.get_scale() == 4.0
    assert bool(p.isfinite().all())


def test_half_precision_weights():
    p = nn.Parameter(torch.randn(8, 16, device="cuda", dtype=torch.bfloat16))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(2, 9.0)}], lr=1e-5)
    start = p.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        (p.float() - 1).square().sum().backward()
        optimizer.step()
    assert optimizer.state[p]["master"].dtype == torch.float32
    assert not torch.equal(p, start)
    assert bool(p.isfinite().all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler itself warns of its own past
def test_compiled_step_on_the_gpu():
    on_gpu, twin = parameters("cuda"), parameters("cuda")
    for region in (geo.GroupKSupportBall(2, 3.0), geo.KSupportBall(9, 3.0), geo.SpectralKSupportBall(2, 3.0)):
        a, b = SFW([{"params": on_gpu, "region": region}]), SFW([{"params": twin, "region": region}], fused=False)
        step = torch.compile(a.step)
        for i in range(8):
            set_gradients(on_gpu, i)
            set_gradients(twin, i)
            step()
            b.step()
        exact = 2e-2 if isinstance(region.view, geo.Spectrum) else 1e-4  # products there may be TF32
        for p, q in zip(on_gpu, twin, strict=True):
            assert float((p - q).detach().abs().max()) <= exact * float(q.detach().abs().max())
