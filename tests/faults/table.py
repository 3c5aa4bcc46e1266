"""The table at the end of a test session: every kind of fault, how often it was tried, how often its promise was kept.

tests/conftest.py imports this, so it imports nothing of sparsefw before it prints.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from faults.draws import Fault

PROPERTY = "fault"  # of a test's report: the names of the kind and of the command
FILE_VARIABLE = "FAULTS_TABLE"  # the file that the table is also written to


def record(request: pytest.FixtureRequest, fault: Fault) -> None:
    """Record in the report of a test which fault it tries; pytest-xdist carries reports to where the table is printed."""
    request.node.user_properties.append((PROPERTY, (fault.kind.name, fault.command.name)))


def markdown(tried: Counter[tuple[str, str]], kept: Counter[tuple[str, str]]) -> str:
    """Return the table; the counts are by kind and command."""
    from faults.kinds import KINDS

    rows = [("kind", "promise", "kept", "of each command")]
    for name, kind in KINDS.items():
        counts = {command: (kept[name, command], tried[name, command]) for command in kind.commands}
        each = ", ".join(f"{command} {good}/{of}" for command, (good, of) in counts.items() if of)
        if each:
            rows.append((name, kind.promise, "{}/{}".format(*map(sum, zip(*counts.values(), strict=True))), each))
    rows.append(("all", "", f"{kept.total()}/{tried.total()}", ""))
    rows.insert(1, ("---",) * 4)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried: Counter[tuple[str, str]] = Counter()
    kept: Counter[tuple[str, str]] = Counter()
    broken = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            pair = dict(report.user_properties).get(PROPERTY)
            if pair is not None and report.when == "call":
                tried[tuple(pair)] += 1
                kept[tuple(pair)] += outcome == "passed"
                broken += [report.nodeid] if outcome == "failed" else []
    if not tried:
        return
    table = markdown(tried, kept)
    terminalreporter.section("faults")
    terminalreporter.write_line(table)
    for name in broken:
        terminalreporter.write_line(f"broken: {name}")
    if file := os.environ.get(FILE_VARIABLE):
        Path(file).write_text(f"{_heading()}\n\n{table}\n")


def _heading() -> str:
    from sparsefw.environment import environment

    facts = environment()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    place = f"{facts['date']}, {facts['hardware']['cpu']}, {facts['hardware']['cpus']} cores, {versions}"
    command = f"make faults FAULTS={os.environ['FAULTS']} SEED={os.environ['SEED']}"
    return f"# Faults: promise and outcome\n\n{place}. Written by `{command}`."
