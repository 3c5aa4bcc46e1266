"""Every export format: it is public, an option of save, and part of the artifact."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsefw import compress, compression, save
from sparsefw.cli.verbs import compress as compress_verb
from sparsefw.compression import export_onnx, export_program
from sparsefw.compression.artifact import export, folder
from sparsefw.compression.artifact.export import ExportError
from sparsefw.compression.artifact.export.formats import FORMATS as RECORDS

# The function that exports -> the option of save that calls it, and the file that it writes.
FORMATS = {
    "export_onnx": ("onnx", "model.onnx"),
    "export_program": ("program", "model.pt2"),
    "export_openvino": ("openvino", "model.xml"),
    "export_executorch": ("executorch", "model.pte"),
}
SLOW = {"executorch": pytest.mark.slow}  # its lowering takes seconds


def test_every_export_format_is_public_and_an_option_of_save():
    functions = {name for name in vars(export) if name.startswith("export_")}
    assert functions == set(FORMATS), "add the new format to FORMATS in tests/compression/test_export.py"
    assert functions <= set(compression.__all__), "sparsefw.compression does not export it"
    options = {name for name, parameter in inspect.signature(save).parameters.items() if parameter.default is False}
    assert options == {option for option, _ in FORMATS.values()}, "save has no option for it"
    assert {option: record.file for option, record in RECORDS.items()} == dict(FORMATS.values())
    command = inspect.signature(compress_verb.compress).parameters
    assert options <= set(command), "sparsefw compress has no option for it"


@pytest.mark.parametrize(
    ("option", "file"),
    [pytest.param(option, file, marks=SLOW.get(option, ()), id=option) for option, file in FORMATS.values()],
)
def test_exported_files_are_part_of_the_artifact(option, file, small_resnet, batches, tmp_path):
    for package in RECORDS[option].packages:
        pytest.importorskip(
            package, reason=f"{package} is not installed: pip install 'sparsefw[{RECORDS[option].extra}]'"
        )
    save(compress(small_resnet, filters=0.5, calibration=batches), tmp_path / "a", **{option: True})
    hashes = json.loads((tmp_path / "a" / "plan.json").read_text())["sha256"]
    assert file in hashes
    assert folder.is_artifact(tmp_path / "a")
    assert file in folder.__doc__


class Computed(nn.Module):
    """A layer between two, with code that not every exporter takes."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("middle", "exporter", "words"),
    [
        (
            Computed(torch.special.bessel_j0),
            export_onnx,
            r"to ONNX: ONNX has no operator for prims.bessel_j0, which 1 \(Computed\) computes$",
        ),
        (
            Branching(),
            export_onnx,
            r"depends on the values of a tensor, .*: 1 \(Branching\), line \d+: return -x if x.sum\(\) > 0 else x$",
        ),
        (Branching(), export_program, r"cannot be exported: its code depends on the values .*: 1 \(Branching\), line"),
        (Computed(lambda x: x.reshape(3, 4)), export_program, "its code fixes the batch to 3, as by a reshape"),
    ],
    ids=["operator", "values", "values, program", "batch"],
)
def test_an_export_that_fails_names_the_operator_or_the_layer_and_the_reason(middle, exporter, words, tmp_path, capfd):
    model = nn.Sequential(nn.Linear(5, 4), middle, nn.Linear(4, 2))
    with pytest.raises(ExportError, match=words) as error:
        exporter(model, torch.randn(3, 5), tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
