"""The examples in --help: every one is a valid command, with options and recipes that exist."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from sparsefw.cli import app

ROOT = typer.main.get_command(app)


def commands(group, names=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


EXAMPLES = [
    (names, command, example)
    for names, command in commands(ROOT)
    for example in re.findall(r"(?:sparsefw|-m sparsefw) (.*)", command.help)
    if example.startswith(" ".join(names))
]


def test_every_verb_has_an_example():
    assert {names for names, _, _ in EXAMPLES} == {names for names, _ in commands(ROOT)}


@pytest.mark.parametrize(("names", "command", "example"), EXAMPLES, ids=[example for *_, example in EXAMPLES])
def test_examples_are_valid(names, command, example):
    """Parse the example as the command line does; of `train`, also load the recipe."""
    words = shlex.split(example)[len(names) :]
    command.make_context(" ".join(names), list(words))
    if names == ("train",):
        done = CliRunner().invoke(app, ["train", *words, "--show"])
        assert done.exit_code == 0, done.stderr
