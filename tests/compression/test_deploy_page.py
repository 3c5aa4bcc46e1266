"""The snippets of docs/deploy.md run, word for word: one here, the others in processes that have nothing but the runtime."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deployment
from compression.runtimes import cnn, needs_executorch, needs_openvino
from sparsefw import compress, save

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
FRAME = """
import sys
import numpy
images = numpy.load("images.npy")
{}
assert "sparsefw" not in sys.modules
numpy.save("outputs.npy", numpy.asarray(outputs[0]))
"""


def snippet(runtime: str = "") -> str:
    marker = f"<!-- {runtime}{': ' if runtime else ''}run by tests/compression/test_deploy_page.py -->"
    return re.search(rf"{re.escape(marker)}\n```python\n(.*?)```", PAGE, flags=re.DOTALL).group(1)


@pytest.fixture
def batches() -> list[torch.Tensor]:
    return list(torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)).split(16))


def run_on_the_device(runtime: str, batches: list[torch.Tensor], folder: Path) -> torch.Tensor:
    np.save(folder / "images.npy", batches[0][:8].numpy())
    done = subprocess.run(
        [sys.executable, "-c", FRAME.format(snippet(runtime))], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(folder / "outputs.npy"))


def test_the_snippets_run(batches, capsys, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    needs_openvino()
    monkeypatch.chdir(tmp_path)
    surroundings = {
        "model": cnn(),
        "build_model": cnn,
        "loader": batches,
        "accuracy": lambda network: float(network(batches[0]).argmax(1).float().mean()),
    }
    exec(snippet(), surroundings)
    assert capsys.readouterr().out.startswith("int8 in onnxruntime, by ranges on 64 calibration inputs:\n")
    assert set(surroundings["certificate"]["parity"]) == {"masked_removed", "onnxruntime", "openvino"}
    expected = surroundings["small"].model(batches[0][:8]).detach()
    spread = float(expected.max() - expected.min())
    for runtime, tolerance in (("onnxruntime", 0.05), ("openvino", 1e-4)):
        got = run_on_the_device(runtime, batches, tmp_path)
        assert float((got - expected).abs().max()) < tolerance * spread, runtime


@pytest.mark.slow
def test_the_snippet_of_executorch_runs(batches, tmp_path):
    needs_executorch()
    small = compress(cnn(), rank=0.5, calibration=batches)
    save(small, tmp_path / "small", executorch=True)
    got = run_on_the_device("executorch", batches, tmp_path)
    assert torch.allclose(got, small.model(batches[0][:8]), atol=1e-4)


def test_the_page_shows_the_measured_table():
    results = ROOT / "benchmarks" / "results"
    measured = (results / "deployment-cpu.md").read_text()
    assert measured == deployment.page(json.loads((results / "deployment-cpu.json").read_text()))
    assert measured.strip() in PAGE
