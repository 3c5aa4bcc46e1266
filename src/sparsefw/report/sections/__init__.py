"""The sections of a report, in the order of its page. A section in this list is in the page, its data and its files."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from sparsefw.report.contents import Contents
from sparsefw.report.sections.curves import CURVES
from sparsefw.report.sections.listings import COMMANDS, CONFIGURATIONS, ENVIRONMENTS, PROBLEMS, RUNS
from sparsefw.report.sections.section import ReportSection
from sparsefw.report.sections.settings import SETTINGS
from sparsefw.report.sections.spectra import SPECTRA
from sparsefw.report.sections.training import TRAINING

SECTIONS: tuple[ReportSection[Any], ...] = (
    CURVES,
    SETTINGS,
    TRAINING,
    SPECTRA,
    RUNS,
    CONFIGURATIONS,
    COMMANDS,
    ENVIRONMENTS,
    PROBLEMS,
)


def sections_of(contents: Contents) -> list[tuple[ReportSection[Any], Any]]:
    """Return the sections of one report, each with its subject; neighbours with the same subjects take turns."""
    pairs = []
    for subjects, group in groupby(SECTIONS, key=lambda section: section.subjects):
        neighbours = list(group)
        for subject in subjects(contents):
            pairs += [(section, subject) for section in neighbours if section.present(subject)]
    return pairs
