"""Every export format: it is public, an option of save, and part of the artifact."""

from __future__ import annotations

import inspect
import json

import pytest

from sparsefw import compress, compression, save
from sparsefw.compression.artifact import export, folder

# The function that exports -> the option of save that calls it, and the file that it writes.
FORMATS = {
    "export_onnx": ("onnx", "model.onnx"),
    "export_program": ("program", "model.pt2"),
}


def test_every_export_format_is_public_and_an_option_of_save():
    functions = {name for name in vars(export) if name.startswith("export_")}
    assert functions == set(FORMATS), "add the new format to FORMATS in tests/compression/test_export.py"
    assert functions <= set(compression.__all__), "sparsefw.compression does not export it"
    options = {name for name, parameter in inspect.signature(save).parameters.items() if parameter.default is False}
    assert options == {option for option, _ in FORMATS.values()}, "save has no option for it"


@pytest.mark.parametrize(("option", "file"), FORMATS.values(), ids=list(FORMATS))
def test_exported_files_are_part_of_the_artifact(option, file, small_resnet, batches, tmp_path):
    save(compress(small_resnet, filters=0.5, calibration=batches), tmp_path / "a", **{option: True})
    hashes = json.loads((tmp_path / "a" / "plan.json").read_text())["sha256"]
    assert file in hashes
    assert folder.is_artifact(tmp_path / "a")
    assert file in folder.__doc__
