"""The documentation names only files, modules, headings, tests, commands, options and recipes that exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import typer

from sparsefw.cli import app
from sparsefw.data import DATASETS
from sparsefw.methods import METHODS
from sparsefw.reproduce import EXPERIMENTS
from sparsefw.sweep.grids import grid_descriptions
from sparsefw.train import recipe_descriptions
from sparsefw.train.config import RunConfig

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sparsefw"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
INVENTED = {"mine.py"}  # the file of a user, in an example
SAVED = {
    "data.json",
    "model.safetensors",
    "model.onnx",
    "model.pt2",
    "model.xml",
    "model.bin",
    "model.pte",
}  # files, not settings
STEMS = {
    re.sub(r"-[a-z]+(-paper)?$", "", name) for name in recipe_descriptions()
}  # what `bench` takes: recipes without variant
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def exists(name: str, page: Path) -> bool:
    """Return whether a path exists, seen from the page, from the repository or from the package."""
    return any((folder / name).exists() for folder in (page.parent, ROOT, PACKAGE))


@each_page
def test_files_exist(page):
    text = page.read_text()
    files = set(re.findall(r"(?<![\w./-])[\w./-]*\w\.py\b", text)) - INVENTED
    folders = re.findall(r"`((?:[\w-]+/)+)`", text) if page.name in ("architecture.md", "CONTRIBUTING.md") else []
    assert not [name for name in (*files, *folders) if not exists(name, page) and not _is_in_a_room(name, page)]


def _is_in_a_room(name: str, page: Path) -> bool:
    """Return whether the path is short for one in compression/, which the architecture page describes in a table."""
    return page.name == "architecture.md" and (PACKAGE / "compression" / name).exists()


@each_page
def test_modules_and_their_names_exist(page):
    for name in set(re.findall(r"\bsparsefw(?:\.\w+)+", page.read_text())):
        parts = name.split(".")
        value = importlib.import_module("sparsefw")
        for i, part in enumerate(parts[1:], start=2):
            if not hasattr(value, part):
                importlib.import_module(".".join(parts[:i]))
            value = getattr(value, part)


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = page if not path else page.parent / path
        assert file.exists(), target
        assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    """Return the anchors of all headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_tests_named_in_contributing_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(names) >= 18
    for file, test in names:
        functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if hasattr(node, "name")}
        assert test in functions, f"{file}::{test}"


def test_every_row_of_contributing_names_a_test():
    rows = re.findall(r"^\| .* \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(rows) >= 13
    assert all("::test_" in row.rsplit("|", 2)[1] for row in rows)


def commands_of(page: Path) -> list[str]:
    """Return every `sparsefw ...` command of a page: in inline code, and at the beginning of lines of code."""
    text = page.read_text()
    code = re.findall(r"`(sparsefw [^`]+)`", text)
    code += re.findall(r"^(?:    |\$ )(?:torchrun .* -m )?(sparsefw .*)$", text, flags=re.MULTILINE)
    return [re.sub(r"\s+#.*$", "", command) for command in code]


@each_page
def test_commands_have_the_options_and_names_that_exist(page):
    for command in commands_of(page):
        words = shlex.split(re.sub(r"[\[\]]", "", command))[1:]
        verb = typer.main.get_command(app)
        while words and hasattr(verb, "commands") and not words[0].startswith("-"):
            assert words[0] in verb.commands, command
            verb = verb.commands[words.pop(0)]
        options = {option for parameter in verb.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, command
        if words and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", words[0]):
            known = {"sweep": grid_descriptions(), "reproduce": EXPERIMENTS, "list": ()}.get(verb.name)
            assert words[0] in ((*recipe_descriptions(), *STEMS) if known is None else known), command


@each_page
def test_settings_of_recipes_exist(page):
    """Names such as train.epochs, in code."""
    sections = RunConfig.model_fields
    pattern = rf"[`\s](?:--set )?((?:{'|'.join(sections)})(?:\.[a-z_]+)+)(?=[`=:\s*])"
    for name in set(re.findall(pattern, page.read_text())) - SAVED - {"sizes.py"}:
        section, field, *_ = name.split(".")
        if section == "method":
            assert any(field in method.model_fields for method in METHODS.values()), name
        else:
            members = get_args(sections[section].annotation) or (sections[section].annotation,)
            assert field in members[0].model_fields, name


def test_data_sets_of_the_training_page_are_the_registered_ones():
    table = (ROOT / "docs" / "train.md").read_text().split("| set | formats |")[1].split("\n\n")[0]
    names = re.findall(r"^\| ([\w, -]+) \|", table, flags=re.MULTILINE)
    assert {name.strip() for cell in names for name in cell.split(",")} == set(DATASETS)
