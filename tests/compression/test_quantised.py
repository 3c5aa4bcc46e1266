"""quantise: int8 computes what the float network does, up to its rounding, and what is slower is said to be."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from compression.runtimes import cnn, in_a_fresh_process, needs_executorch, needs_openvino
from sparsefw import compress, load, save
from sparsefw.compression import quantise
from sparsefw.compression.quantised import FloatAndInt8

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'sparsefw[export]'")
BATCHES = list(torch.randn(48, 1, 8, 8, generator=torch.Generator().manual_seed(0)).split(16))


def grid() -> nn.Module:
    """A layer whose weights are whole numbers up to 127: int8 has them exactly, per row."""
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[127.0, -3.0, 5.0], [-127.0, 64.0, 1.0]]))
    return nn.Sequential(layer).eval()


def test_whole_numbers_are_exact_up_to_the_rounding_of_the_output():
    """Inputs from -128 to 127 have the step 1, so that only the outputs are rounded: to a 255th of their range."""
    x = torch.randint(-128, 128, (64, 3), generator=torch.Generator().manual_seed(1)).float()
    x[0, 0], x[1, 0] = -128, 127
    eight = quantise(grid(), calibration=[x])
    exact = grid()(x).detach()
    step = float(exact.max() - exact.min()) / 255
    assert float((eight.model(x) - exact).abs().max()) <= 0.51 * step
    assert eight.agreement > 0.999


def test_ranges_are_those_of_the_calibration():
    """An input beyond the range counts as the largest one in it."""
    network = nn.Sequential(nn.Linear(1, 1, bias=False)).eval()
    nn.init.ones_(network[0].weight)
    eight = quantise(network, calibration=[torch.linspace(-1, 1, 65)[:, None]])
    assert eight.model(torch.tensor([[5.0]])).item() == pytest.approx(1, abs=0.02)
    assert eight.model(torch.tensor([[0.5]])).item() == pytest.approx(0.5, abs=0.02)


def test_figures_are_beside_those_of_the_float_network(tmp_path):
    small = compress(cnn(), filters=0.5, calibration=BATCHES)
    labels = torch.cat([small.model(batch).argmax(1) for batch in BATCHES])

    def accuracy(network: nn.Module) -> float:
        return 100 * float((network(torch.cat(BATCHES)).argmax(1) == labels).float().mean())

    eight = quantise(small, calibration=BATCHES, evaluate=accuracy)
    assert eight.inputs == 48
    assert 0.95 < eight.agreement < 1
    assert eight.metric == FloatAndInt8(100, pytest.approx(accuracy(eight.model)))
    assert eight.metric.int8 > 80
    assert eight.latency.float.backend == eight.latency.int8.backend == "onnxruntime"
    assert eight.latency.float.batch == 1
    save(small, tmp_path / "a", onnx=True, int8=eight)
    assert (tmp_path / "a" / "model.int8.onnx").read_bytes() == eight.content
    assert eight.bytes.int8 == len(eight.content)
    assert eight.bytes.float == (tmp_path / "a" / "model.onnx").stat().st_size
    certificate = load(tmp_path / "a", cnn).certificate
    assert certificate["int8"] == {"onnxruntime": json.loads(json.dumps(eight.to_json()))}
    assert certificate["files"]["model.int8.onnx"] == len(eight.content)
    got = in_a_fresh_process("onnxruntime", tmp_path / "a" / "model.int8.onnx", BATCHES[0], tmp_path)
    assert torch.equal(got, eight.model(BATCHES[0]))


def test_weights_are_stored_as_bytes():
    network = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
    eight = quantise(network, calibration=[torch.randn(32, 256)])
    assert eight.bytes.int8 < 0.35 * eight.bytes.float


def test_openvino_runs_the_file_too(tmp_path):
    needs_openvino()
    eight = quantise(cnn(), calibration=BATCHES)
    (tmp_path / "x.onnx").write_bytes(eight.content)
    got = in_a_fresh_process("openvino", tmp_path / "x.onnx", BATCHES[0], tmp_path)
    exact = cnn()(BATCHES[0]).detach()
    assert float((got - exact).abs().max()) < 0.05 * float(exact.max() - exact.min())


def test_what_is_slower_is_said_to_be():
    eight = quantise(grid(), calibration=[torch.randn(32, 3)])
    fast, slow = (dataclasses.replace(eight.latency.float, median=median) for median in (0.25, 0.5))
    slower = dataclasses.replace(eight, latency=FloatAndInt8(fast, slow))
    faster = dataclasses.replace(eight, latency=FloatAndInt8(slow, fast))
    said = "int8 is slower than float on this machine, in onnxruntime, for one item at a time."
    assert str(slower).splitlines()[-1] == said
    assert slower.to_json()["is_slower"] is True
    assert "slower" not in str(faster)
    assert "0.500 ->          0.250  (2.0x as fast, batch 1)" in str(faster)


def test_the_network_is_not_changed():
    network = cnn()
    before = {name: t.clone() for name, t in network.state_dict().items()}
    quantise(network, calibration=BATCHES)
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())


def test_wrong_arguments_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^backend='tflite': there are onnxruntime, executorch$"):
        quantise(cnn(), calibration=BATCHES, backend="tflite")
    with pytest.raises(ValueError, match=r"^quantise takes the result of compress or load, or a network, not a str$"):
        quantise("small", calibration=BATCHES)
    with pytest.raises(ValueError, match=r"^calibration is empty"):
        quantise(cnn(), calibration=[])
    small = compress(cnn(), rank=0.5, example=BATCHES[0])
    other = quantise(cnn(), calibration=BATCHES)
    with pytest.raises(
        ValueError, match=r"^int8= takes the result of quantise\(small, ...\), made of the network that is"
    ):
        save(small, tmp_path / "a", int8=other)
    own = dataclasses.replace(other, whole=small.model)
    with pytest.raises(ValueError, match=r"^int8= has two networks for one runtime; give one$"):
        save(small, tmp_path / "a", int8=[own, own])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_executorch_computes_in_int8_what_torchao_quantised(tmp_path):
    """Batches that are larger than its file takes are run in parts."""
    needs_executorch()
    small = compress(cnn(), filters=0.5, calibration=BATCHES)
    eight = quantise(small, calibration=BATCHES, backend="executorch")
    assert 0.95 < eight.agreement < 1
    assert eight.model(BATCHES[0]).shape == (16, 10)
    save(small, tmp_path / "a", executorch=True, int8=eight)
    certificate = load(tmp_path / "a", cnn).certificate
    assert certificate["parity"]["executorch"] < 1e-5
    assert certificate["files"]["model.int8.pte"] == eight.bytes.int8
    got = in_a_fresh_process("executorch", tmp_path / "a" / "model.int8.pte", BATCHES[0][:3], tmp_path)
    assert torch.allclose(got, eight.model(BATCHES[0][:3]))
