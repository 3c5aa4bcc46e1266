"""What the adapters say where a program is missing, or batches are too small; and what they import."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from sparsefw.integrations.requirements import require_images

EXTRAS = {"lightning": "lightning", "transformers": "transformers", "accelerate": "transformers", "timm": "vision"}


@pytest.mark.parametrize("program", EXTRAS)
def test_a_missing_program_is_named_with_the_line_for_pip(program, monkeypatch):
    if program == "transformers":
        pytest.importorskip("accelerate")  # its own absence would be named first
    adapter = f"sparsefw.integrations.{program}"
    for name in list(sys.modules):
        if name == adapter or name.startswith(f"{program}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, program, None)
    message = f"sparsefw.integrations needs {program}: pip install 'sparsefw[{EXTRAS[program]}]'"
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(message)}$"):
        importlib.import_module(adapter)


def test_the_package_imports_no_program():
    programs = (*EXTRAS, "torch")
    code = f"import sys, sparsefw.integrations; print([m for m in {programs} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_network_needs_an_item():
    require_images(None, 0.5, 1)  # of a loader that does not say
    require_images(2, 0.5, 1)
    require_images(5, 0.8, 4)
    for refused in [(1, 0.5, 1), (2, 0.9, 1), (4, 0.5, 3), (4, 0.5, 4)]:
        with pytest.raises(
            ValueError, match=rf"^of a batch of {refused[0]} in this process, one of {refused[2] + 1} networks"
        ):
            require_images(*refused)
