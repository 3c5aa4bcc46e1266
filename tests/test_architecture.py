"""The shape of the code base: imports flow one way, the core needs torch and numpy only, files stay readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sparsefw"
FILES = sorted(PACKAGE.rglob("*.py"))
# Whom each part may import, besides itself: every package and module is listed, lowest first, and every permit is used.
ALLOWED: dict[str, set[str]] = {
    "text": set(),
    "scalars": set(),
    "errors": set(),
    "atomic_io": {"limits", "lock_files"},
    "lock_files": set(),
    "child_processes": set(),
    "user_cache": set(),
    "layer_types": set(),
    "kind_words": set(),
    "recovery_words": set(),
    "randomness": set(),
    "own_code": set(),
    "limits": set(),
    "environment": {"__version__"},
    "geometry": {"scalars"},
    "kinds": {"geometry", "kind_words", "layer_types", "text"},
    "config_base": {"kinds", "text"},
    "optim": {"geometry", "kinds", "layer_types", "scalars", "text"},
    "models": {"limits", "scalars", "own_code", "atomic_io", "text"},
    "compression": {
        "geometry", "kinds", "models", "environment", "layer_types", "atomic_io", "user_cache", "randomness", "recovery_words",
        "limits", "scalars", "text",
    },
    "constraints": {"geometry", "kinds", "optim", "compression", "layer_types", "text"},
    "integrations": {"compression", "constraints", "models", "optim"},
    "data": {"config_base", "limits", "atomic_io", "child_processes", "user_cache", "randomness", "scalars", "text"},
    "methods": {
        "geometry", "kinds", "optim", "constraints", "compression", "data", "layer_types", "config_base", "own_code", "text",
    },
    # Between train, sweep and report:
    "runfolder": {"kinds", "limits", "recovery_words", "config_base", "atomic_io", "scalars", "text"},
    "train": {
        "kinds", "optim", "compression", "data", "models", "methods", "runfolder",
        "environment", "config_base", "limits", "atomic_io", "lock_files", "child_processes", "errors", "randomness", "text",
        "recovery_words", "scalars", "__version__",
    },
    "sweep": {
        "compression", "data", "train", "runfolder",
        "environment", "config_base", "limits", "atomic_io", "lock_files", "child_processes", "errors", "own_code", "scalars",
        "text",
    },
    "plotting": {"atomic_io"},  # charts, whatever they show
    "report": {  # reads run folders, never trains
        "kinds", "plotting", "runfolder", "recovery_words", "config_base", "atomic_io", "scalars", "text",
    },
    "bench": {"data", "kinds", "methods", "train", "environment", "config_base", "text"},
    "reproduce": {
        "kinds", "train", "sweep", "plotting", "report", "bench", "runfolder",
        "environment", "config_base", "atomic_io", "child_processes", "errors", "text",
    },
    "cli": {
        "geometry", "kinds", "kind_words", "recovery_words", "models", "compression", "data", "methods", "train", "sweep",
        "report", "bench", "reproduce", "runfolder", "environment", "config_base", "atomic_io", "errors", "own_code", "text",
        "__version__",
    },
    "__init__": {"optim", "compression", "constraints"},
    "__main__": {"cli"},
}  # fmt: skip
CORE = {
    "geometry", "kind_words", "recovery_words", "kinds", "optim", "compression", "constraints", "models",
    "environment", "layer_types", "atomic_io", "user_cache", "randomness", "own_code", "scalars", "text",
}  # fmt: skip


def part_of(path: Path) -> str:
    """The package or module directly under sparsefw that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, top_level: bool = False) -> set[str]:
    """Dotted names of all that a file imports: `from sparsefw import x` is sparsefw.x, and so is a relative import."""
    tree = ast.parse(path.read_text())
    folders = ["sparsefw", *path.relative_to(PACKAGE).parts[:-1]] if path.is_relative_to(PACKAGE) else []
    found = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folders[: len(folders) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "sparsefw" else {module}
    return found


def parts_imported(path: Path) -> set[str]:
    names = [module.split(".") for module in imports(path)]
    return {name[1] for name in names if name[0] == "sparsefw" and len(name) > 1} - {part_of(path)}


def test_every_part_is_listed():
    assert set(ALLOWED) == {part_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_flow_one_way(path):
    assert parts_imported(path) <= ALLOWED[part_of(path)]


@pytest.mark.parametrize("part", ALLOWED)
def test_every_permit_is_used(part):
    used = set().union(*(parts_imported(path) for path in FILES if part_of(path) == part))
    assert ALLOWED[part] == used


def test_parts_form_no_circle():
    """Taken away one by one, each when nobody else needs it, none is left."""
    left = {part: needs - {"__version__"} for part, needs in ALLOWED.items()}
    while left:
        free = [part for part in left if not any(part in needs for needs in left.values())]
        assert free, f"these import each other: {sorted(left)}"
        left = {part: needs for part, needs in left.items() if part not in free}


def test_the_guard_sees_every_form_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "optim").mkdir()
    file = tmp_path / "optim" / "x.py"
    file.write_text(
        "import sparsefw.train\nfrom sparsefw import report\nfrom .. import sweep\nfrom ..data.files import a\nfrom . import b\n"
        "def f():\n    from sparsefw.cli.main import app\n"
    )
    assert parts_imported(file) == {"train", "report", "sweep", "data", "cli"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 400


def test_core_needs_torch_and_numpy_only():
    """Anything else, such as safetensors for files, is imported inside the functions that need it."""
    known = {"torch", "numpy", "sparsefw", *sys.stdlib_module_names}
    for path in FILES:
        kernels = path.parent.name == "fused"  # of GPUs, imported where there is one
        allowed = known | ({"triton"} if kernels else set())
        if part_of(path) in CORE:
            assert {module.split(".")[0] for module in imports(path, top_level=True)} <= allowed, path


def test_import_does_not_touch_optional_packages():
    optional = ("triton", "scipy", "matplotlib", "pydantic", "typer", "safetensors", "onnx", "torchvision")
    code = f"import sys, sparsefw; print([m for m in {optional} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_picture_of_the_packages_is_that_of_the_imports():
    page = (ROOT / "docs" / "architecture.md").read_text()
    printed = subprocess.run(
        [sys.executable, ROOT / "docs" / "packages.py"], capture_output=True, text=True, check=True
    )
    assert f"```mermaid\n{printed.stdout.strip()}\n```" in page, "python docs/packages.py prints what belongs there"


def test_every_package_is_in_the_picture_and_in_the_table():
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = re.search(r"```mermaid\n(.*?)```", page, flags=re.DOTALL).group(1)
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(re.findall(r"\w+", picture.removeprefix("flowchart TD")))
    table = page.split("| package | contains |")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert packages == {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_no_file_names_a_folder_outside_of_the_repository():
    for path in [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        assert "../" + "shared" not in path.read_text(), path
