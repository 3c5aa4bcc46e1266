"""Networks, and processes that run their exported files by nothing but the runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

OPENVINO = "openvino is not installed: pip install 'sparsefw[openvino]'"
EXECUTORCH = "executorch is not installed: pip install 'sparsefw[executorch]'"

# What runs a file on an input, with the imports of a device: the arguments are the file, the input and the output.
SCRIPTS = {
    "onnxruntime": """
import onnxruntime
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
output = session.run(None, {session.get_inputs()[0].name: x})[0]
assert "torch" not in sys.modules
""",
    "openvino": """
import openvino
output = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])[0]
assert "torch" not in sys.modules
""",
    "executorch": """
import torch
from executorch.runtime import Runtime
output = Runtime.get().load_program(file).load_method("forward").execute([torch.from_numpy(x)])[0].numpy()
""",
}
FRAME = """
import sys
import numpy
file, given, wanted = sys.argv[1:]
x = numpy.load(given)
{}
assert "sparsefw" not in sys.modules
numpy.save(wanted, output)
"""


def in_a_fresh_process(runtime: str, file: Path, x: Tensor, folder: Path) -> Tensor:
    """Return what a runtime computes in a process that imports nothing else."""
    np.save(folder / "x.npy", x.numpy())
    words = [sys.executable, "-c", FRAME.format(SCRIPTS[runtime]), file, folder / "x.npy", folder / "y.npy"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(folder / "y.npy"))


def needs_openvino() -> None:
    pytest.importorskip("openvino", reason=OPENVINO)


def needs_executorch() -> None:
    pytest.importorskip("executorch", reason=EXECUTORCH)


def cnn() -> nn.Module:
    """A network of a convolution, a batch norm that does something, and a classifier."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias, std=0.3)
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), norm, nn.ReLU(), *pooled, nn.Linear(8, 10)).eval()


class Digamma(nn.Module):
    """An operator that devices lack."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.digamma(x.abs() + 1)


def with_digamma() -> nn.Module:
    network = nn.Sequential()
    network.add_module("first", nn.Linear(4, 4))
    network.add_module("odd", Digamma())
    return network.eval()
