"""The shape of the code base: imports flow one way, the core needs torch and numpy only, files stay readable."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sparsefw"
FILES = sorted(PACKAGE.rglob("*.py"))
# Whom each part may import, besides itself.
ALLOWED = {
    "geometry": set(),
    "optim": {"geometry", "layer_types", "words"},
    "models": {"words"},
    "compression": {"geometry", "models", "environment", "layer_types", "durable", "words"},
    "data": {"typed", "durable", "words"},
    "methods": {"geometry", "optim", "compression", "data", "layer_types", "typed", "words"},
    "train": {"optim", "compression", "data", "models", "methods", "environment", "typed", "durable", "words"},
    "sweep": {"compression", "data", "train", "environment", "typed", "durable", "words"},
    "report": {"environment", "durable"},  # run folders only
}
CORE = {"geometry", "optim", "compression", "models", "environment.py", "layer_types.py", "durable.py", "words.py"}


def imports(path: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_flow_one_way(path):
    part = path.relative_to(PACKAGE).parts[0]
    if part not in ALLOWED:
        return
    for module in imports(path):
        names = module.split(".")
        if names[0] == "sparsefw" and len(names) > 1:
            assert names[1] in ALLOWED[part] | {part}, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 400


def test_core_needs_torch_and_numpy_only():
    """Anything else, such as safetensors for files, is imported inside the functions that need it."""
    known = {"torch", "numpy", "sparsefw", *sys.stdlib_module_names}
    for path in FILES:
        kernels = path.parent.name == "fused"  # of GPUs, imported where there is one
        allowed = known | ({"triton"} if kernels else set())
        if path.relative_to(PACKAGE).parts[0] in CORE:
            assert {module.split(".")[0] for module in imports(path, top_level=True)} <= allowed, path


def test_import_does_not_touch_optional_packages():
    optional = ("triton", "scipy", "matplotlib", "pydantic", "typer", "safetensors", "onnx", "torchvision")
    code = f"import sys, sparsefw; print([m for m in {optional} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_names_a_folder_outside_of_the_repository():
    for path in [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        assert "../" + "shared" not in path.read_text(), path
