"""Faults of many kinds happen to every command: nothing is lost, nothing runs wild, no wrong result ends with exit code 0."""

from __future__ import annotations

import os

import pytest
import typer

from faults.commands import COMMANDS, LEFT_OUT
from faults.draws import Fault, chosen_faults, drawn_faults, pairs
from faults.kinds import KINDS
from faults.table import record
from faults.trial import BrokenPromiseError, Workshop
from sparsefw.cli import app


def faults() -> list[Fault]:
    """Return the faults to try: those of `make faults`, or the chosen ones."""
    count = os.environ.get("FAULTS")
    return chosen_faults() if count is None else drawn_faults(int(count), int(os.environ.get("SEED", "0")))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("faults").resolve())


@pytest.mark.parametrize("fault", faults(), ids=str)
def test_the_promise_is_kept(workshop, fault, request):
    record(request, fault)
    trial = workshop.trial(fault.command, fault.chance)
    how = ""
    try:
        fault.kind.try_on(trial)
    except BrokenPromiseError as broken:
        how = str(broken)
    if how:
        pytest.fail(f"{fault.kind.promise}\n{'; '.join(trial.notes)}\n{how}", pytrace=False)


def test_every_verb_meets_faults_or_says_why_not():
    verbs = set(typer.main.get_command(app).commands)
    assert {command.verb for command in COMMANDS.values()} | set(LEFT_OUT) == verbs
    assert not {command.verb for command in COMMANDS.values()} & set(LEFT_OUT)


def test_every_kind_and_every_command_is_drawn_equally_often():
    drawn = [(fault.kind, fault.command) for fault in drawn_faults(2 * len(pairs()), seed=3)]
    assert all(drawn.count(pair) == 2 for pair in pairs())
    assert drawn_faults(50, seed=3) == drawn_faults(50, seed=3) != drawn_faults(50, seed=4)


def test_the_chosen_faults_are_of_every_kind_but_the_longest():
    assert len(chosen_faults()) == 25
    assert {fault.kind.name for fault in chosen_faults()} == set(KINDS) - {"dead worker", "dead rank"}
