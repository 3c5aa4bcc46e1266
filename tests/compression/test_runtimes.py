"""OpenVINO and ExecuTorch: the file computes the network, in a process of its own, or it is not written."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from compression.runtimes import cnn, in_a_fresh_process, needs_executorch, needs_openvino, with_digamma
from sparsefw import compress, load, save
from sparsefw.compression import export_executorch, export_onnx, export_openvino, export_program
from sparsefw.compression.artifact.export import ExportError, executorch, openvino
from sparsefw.compression.artifact.export.executorch import LARGEST_BATCH, load_executorch

IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_openvino_computes_the_network_for_every_batch_size(tmp_path):
    needs_openvino()
    network = cnn()
    assert export_openvino(network, IMAGES[:2], tmp_path / "net.xml") < 1e-5
    assert {path.name for path in tmp_path.iterdir()} == {"net.xml", "net.bin"}
    for size in (1, 2, 5):
        got = in_a_fresh_process("openvino", tmp_path / "net.xml", IMAGES[:size], tmp_path)
        assert torch.allclose(got, network(IMAGES[:size]), atol=1e-5)


def test_openvino_keeps_all_axes_but_the_batch(tmp_path):
    needs_openvino()
    import openvino as runtime

    export_openvino(cnn(), IMAGES[:2], tmp_path / "net.xml")
    shape = runtime.Core().read_model(tmp_path / "net.xml").inputs[0].get_partial_shape()
    assert [axis.is_dynamic for axis in shape] == [True, False, False, False]
    assert [shape[axis].get_length() for axis in (1, 2, 3)] == [1, 8, 8]


def test_an_onnx_file_runs_without_torch(tmp_path):
    pytest.importorskip("onnxruntime")
    network = cnn()
    export_onnx(network, IMAGES[:2], tmp_path / "net.onnx")
    got = in_a_fresh_process("onnxruntime", tmp_path / "net.onnx", IMAGES, tmp_path)
    assert torch.allclose(got, network(IMAGES), atol=1e-5)


@pytest.mark.slow
def test_executorch_computes_the_network_for_every_batch_size_up_to_the_largest(tmp_path, capfd):
    needs_executorch()
    network = cnn()
    many = torch.randn(LARGEST_BATCH + 1, 1, 8, 8)
    assert export_executorch(network, IMAGES, tmp_path / "net.pte") < 1e-5
    assert capfd.readouterr() == ("", "")
    for size in (1, LARGEST_BATCH):
        got = in_a_fresh_process("executorch", tmp_path / "net.pte", many[:size], tmp_path)
        assert torch.allclose(got, network(many[:size]), atol=1e-5)
    with pytest.raises(RuntimeError):
        load_executorch(tmp_path / "net.pte")(many)()


def test_openvino_names_the_operator_that_it_lacks_and_its_layer(tmp_path):
    needs_openvino()
    with pytest.raises(ExportError, match=r"^OpenVINO has no operator for aten\.digamma\.default \(in odd\)$"):
        export_openvino(with_digamma(), torch.randn(2, 4), tmp_path / "net.xml")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_executorch_names_the_operator_that_it_lacks_and_its_layer(tmp_path):
    needs_executorch()
    with pytest.raises(ExportError, match=r"^ExecuTorch's runtime has no operator aten::digamma \(in odd\)$"):
        export_executorch(with_digamma(), torch.randn(2, 4), tmp_path / "net.pte")
    assert not list(tmp_path.iterdir())


def test_an_openvino_file_is_named_so(tmp_path):
    with pytest.raises(ExportError, match=r"net\.ov: the name of an OpenVINO file ends in \.xml, such as net\.xml$"):
        export_openvino(cnn(), IMAGES, tmp_path / "net.ov")


@pytest.mark.parametrize(
    ("export", "missing", "line"),
    [
        (export_openvino, "openvino", "openvino missing: pip install 'sparsefw[openvino]'"),
        (export_executorch, "torchao", "torchao missing: pip install 'sparsefw[executorch]'"),
        (export_executorch, "executorch", "executorch missing: pip install 'sparsefw[executorch]'"),
        (export_onnx, "onnxscript", "onnxscript missing: pip install 'sparsefw[export]'"),
    ],
)
def test_a_missing_package_is_named_with_the_line_for_pip(monkeypatch, tmp_path, export, missing, line):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else find("json", *rest)
    )
    with pytest.raises(ExportError) as error:
        export(cnn(), IMAGES, tmp_path / "net.xml")
    assert str(error.value) == line
    assert not list(tmp_path.iterdir())


def test_a_package_that_does_not_run_beside_this_torch_is_named(monkeypatch, tmp_path):
    package = tmp_path / "openvino"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('undefined symbol: aoti')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(importlib.sys.modules, "openvino", raising=False)
    with pytest.raises(
        ExportError, match=r"^openvino is installed and cannot be imported beside torch .*: undefined symbol"
    ):
        export_openvino(cnn(), IMAGES, tmp_path / "net.xml")


def one_more(load_file: Any) -> Any:
    """Return a loader of a runtime that adds 1 to all outputs of odd places."""

    def loaded(path: Path) -> Any:
        runner = load_file(path)

        def prepared(inputs: Any) -> Any:
            def once() -> Sequence[Any]:
                return [torch.as_tensor(output) + torch.arange(10) for output in runner(inputs)()]

            return once

        return prepared

    return loaded


def test_a_runtime_that_computes_something_else_leaves_the_previous_file(monkeypatch, tmp_path):
    needs_openvino()
    export_openvino(cnn(), IMAGES, tmp_path / "net.xml")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(openvino, "load_openvino", one_more(openvino.load_openvino))
    with pytest.raises(
        ExportError, match=r"^OpenVINO differs from the model by [\d.e+]+ of its outputs, more than 0.0001$"
    ):
        export_openvino(cnn(), IMAGES + 1, tmp_path / "net.xml")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_runtime_that_computes_something_else_leaves_the_previous_artifact(monkeypatch, tmp_path):
    needs_openvino()
    small = compress(cnn(), rank=0.5, example=IMAGES)
    save(small, tmp_path / "a", openvino=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert {"model.xml", "model.bin"} <= set(before)
    monkeypatch.setattr(openvino, "load_openvino", one_more(openvino.load_openvino))
    with pytest.raises(ExportError, match=r"^OpenVINO differs"):
        save(small, tmp_path / "a", openvino=True, program=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.slow
def test_an_executorch_file_that_computes_something_else_is_not_written(monkeypatch, tmp_path):
    needs_executorch()
    monkeypatch.setattr(executorch, "load_executorch", one_more(executorch.load_executorch))
    with pytest.raises(ExportError, match=r"^ExecuTorch differs"):
        export_executorch(cnn(), IMAGES, tmp_path / "net.pte")
    assert not list(tmp_path.iterdir())


def test_the_certificate_has_the_bytes_of_every_file_and_the_gap_of_every_runtime(tmp_path):
    needs_openvino()
    small = compress(cnn(), rank=0.5, example=IMAGES)
    save(small, tmp_path / "a", program=True, openvino=True)
    certificate = load(tmp_path / "a", cnn).certificate
    files = {path.name: path.stat().st_size for path in (tmp_path / "a").iterdir() if path.suffix != ".json"}
    assert certificate["files"] == files
    assert set(files) == {"model.safetensors", "model.pt2", "model.xml", "model.bin"}
    assert set(certificate["parity"]) == {"masked_removed", "openvino"}
    assert certificate["parity"]["openvino"] < 1e-5
    hashes = json.loads((tmp_path / "a" / "plan.json").read_text())["sha256"]
    assert set(files) <= set(hashes)


@pytest.mark.parametrize("export", [export_program, export_openvino])
def test_keyword_arguments_are_exported_too(export, tmp_path):
    needs_openvino()

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 3), torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x) - self.b(y), self.b(y)

    gap = export(Two(), ((torch.randn(2, 4),), {"y": torch.randn(2, 6)}), tmp_path / "net.xml")
    assert gap is None or gap < 1e-5
