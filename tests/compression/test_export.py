"""Every export format: it is public, an option of save, and part of the artifact."""

from __future__ import annotations

import inspect
import json

import pytest

from sparsefw import compress, compression, save
from sparsefw.cli.verbs import compress as compress_verb
from sparsefw.compression.artifact import export, folder
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
