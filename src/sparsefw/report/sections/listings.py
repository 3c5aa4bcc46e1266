"""Listings of the runs: status, configurations, commands, environments and problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from sparsefw.config_base import flatten
from sparsefw.report.contents import Contents
from sparsefw.report.html import LONG, commands, folded, paragraphs, table
from sparsefw.report.names import shown
from sparsefw.report.sections.section import ReportSection, all_runs
from sparsefw.report.tables import Table
from sparsefw.runfolder import RunPaths
from sparsefw.runfolder.schema import EnvironmentRecord
from sparsefw.text import listed, shell_path

COMMANDS_NOTE = (
    "Add --data DIR unless the data set comes with the package. NEW is a folder that does not exist yet. "
    "A run with a network or a method of its own also needs --trust: read that code first."
)


def _has_runs(contents: Contents) -> bool:
    return bool(contents.runs)


def _folded_if_long(contents: Contents, summary: str, html: str) -> str:
    return folded(summary, html) if len(contents.runs) > LONG else html


def _runs_html(contents: Contents, chart_names: Sequence[str]) -> str:
    every = table(contents.runs_table, "runs", words=True, sortable=len(contents.runs) > 1)
    return _folded_if_long(contents, f"All {len(contents.runs)} runs", every)


def _configurations_title(contents: Contents) -> str:
    return "Configuration" if contents.configurations is None else "What differs between the runs"


def _configurations_html(contents: Contents, chart_names: Sequence[str]) -> str:
    differing = ""
    if contents.configurations is not None:
        every = table(contents.configurations, "configurations", words=True, sortable=True)
        differing = _folded_if_long(contents, f"The settings of all {len(contents.runs)} runs", every)
    lines = [f"{key}: {value}" for key, value in contents.common.items()]
    summary = "What all runs have in common" if len(contents.runs) > 1 else "All settings"
    return differing + (folded(summary, commands(lines)) if lines else "")


def _configurations_files(contents: Contents) -> Iterator[tuple[str, Table]]:
    if contents.configurations is not None:
        yield "configurations", contents.configurations


def _commands_html(contents: Contents, chart_names: Sequence[str]) -> str:
    lines = [f"sparsefw train {shell_path(RunPaths(run.folder).config)} --out NEW" for run in contents.runs]
    every = _folded_if_long(contents, f"All {len(contents.runs)} commands", commands(lines))
    return every + paragraphs([COMMANDS_NOTE], "note")


def _environments_html(contents: Contents, chart_names: Sequence[str]) -> str:
    labels_by_facts: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in contents.runs:
        labels_by_facts.setdefault(_environment_facts(run.record.environment), []).append(run.label)
    parts = []
    for facts, labels in labels_by_facts.items():
        names = listed(labels)
        rows = tuple((key.rpartition(".")[2], value) for key, value in facts)
        facts_table = table(Table((), ("", ""), rows), f"Measured with: {names}", words=True, downloads=False)
        content = facts_table if rows else "<p>not recorded</p>"
        parts.append(folded(names, content) if len(labels_by_facts) > 1 else content)
    return "\n".join(parts)


def _environment_facts(environment: EnvironmentRecord) -> tuple[tuple[str, str], ...]:
    """Return what is recorded; the dates are shown once, at the top of the page."""
    values = flatten({key: value for key, value in environment.to_json().items() if key != "date"})
    return tuple((key, shown(value)) for key, value in values.items() if value is not None)


def _problems(contents: Contents) -> list[str]:
    damaged = [f"{run.folder}: {run.reason}" for run in contents.damaged]
    incomplete = [run for run in contents.runs if run.problems]
    return damaged + [f"{run.label} ({run.folder}): {'; '.join(run.problems)}" for run in incomplete]


def _problems_html(contents: Contents, chart_names: Sequence[str]) -> str:
    entries = "\n".join(f"<li>{escape(problem)}</li>" for problem in _problems(contents))
    return f'<ul class="problems">\n{entries}\n</ul>'


RUNS = ReportSection(
    name="runs",
    title=lambda contents: "The runs",
    subjects=all_runs,
    present=_has_runs,
    html=_runs_html,
    files=lambda contents: [("runs", contents.runs_table)],
)
CONFIGURATIONS = ReportSection(
    name="configurations",
    title=_configurations_title,
    subjects=all_runs,
    present=_has_runs,
    html=_configurations_html,
    files=_configurations_files,
)
COMMANDS = ReportSection(
    name="again",
    title=lambda contents: "Run it again",
    subjects=all_runs,
    present=_has_runs,
    html=_commands_html,
)
ENVIRONMENTS = ReportSection(
    name="measured",
    title=lambda contents: "Measured with",
    subjects=all_runs,
    present=_has_runs,
    html=_environments_html,
)
PROBLEMS = ReportSection(
    name="problems",
    title=lambda contents: "Damaged or unfinished",
    subjects=all_runs,
    present=lambda contents: bool(_problems(contents)),
    html=_problems_html,
)
