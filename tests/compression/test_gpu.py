"""On a GPU: the same compression as on the CPU, with and without TF32, and refit."""

from __future__ import annotations

import copy

import pytest
import torch

from sparsefw import compress, curve, load, recalibrate, save
from sparsefw.compression import measure
from sparsefw.models import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_same_channels_as_on_the_cpu(tf32, memory_format, monkeypatch):
    torch.manual_seed(0)
    model, x = build("resnet18", classes=10, stem="cifar").eval(), torch.randn(2, 3, 32, 32)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    on_gpu = compress(copy.deepcopy(model).cuda().to(memory_format=memory_format), filters=0.7, example=x.cuda())
    on_cpu = compress(model, filters=0.7, example=x)
    assert on_gpu.plan.edits == on_cpu.plan.edits
    assert on_gpu.costs == on_cpu.costs
    assert next(on_gpu.model.parameters()).is_cuda


@pytest.mark.parametrize(
    "how", [dict(filters=0.5), dict(rank=0.7), dict(weights=0.9), dict(filters=0.5, form="masked")], ids=str
)
def test_refit_agrees_with_the_cpu(how, small_resnet, batches, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    there = compress(copy.deepcopy(small_resnet).cuda(), calibration=[b.cuda() for b in batches], **how)
    got = there.model(batches[0].cuda()).cpu()
    here = compress(small_resnet, calibration=batches, **how)
    torch.testing.assert_close(got, here.model(batches[0]), rtol=2e-2, atol=2e-2)


def test_batches_on_the_cpu_are_moved(small_resnet, batches, tmp_path):
    model = copy.deepcopy(small_resnet).cuda()
    small = compress(model, filters=0.5, calibration=batches)
    save(small, tmp_path / "a")
    again = load(tmp_path / "a").model
    torch.testing.assert_close(again(batches[0]), small.model.cpu()(batches[0]), rtol=1e-3, atol=1e-3)
    assert not next(recalibrate(small_resnet, batches).parameters()).is_cuda


def test_curve_and_latency(small_resnet, batches):
    model, x = copy.deepcopy(small_resnet).cuda(), batches[0].cuda()

    def first_output(net):
        with torch.no_grad():
            return float(net(x).sum())

    found = curve(model, "rank", [0.5], calibration=batches, evaluate=first_output, form="removed", latency=True)
    assert found.points[0].milliseconds > 0
    assert (
        "H200" in measure(model, x, seconds=0.1).device
        or torch.cuda.get_device_name() in measure(model, x, seconds=0.1).device
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(dtype, small_resnet):
    model, x = copy.deepcopy(small_resnet).cuda().to(dtype), torch.randn(4, 1, 8, 8, device="cuda", dtype=dtype)
    reference = compress(small_resnet, filters=0.5, example=x.float().cpu())
    small = compress(model, filters=0.5, calibration=[x] * 2)
    assert small.costs.parameters == reference.costs.parameters
    assert next(small.model.parameters()).dtype == dtype
    assert small.model(x).isfinite().all()
