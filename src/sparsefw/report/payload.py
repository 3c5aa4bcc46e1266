"""The data in a page from which its script draws: JSON in which no text can end the script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsefw.plotting.chart_data import chart_data
from sparsefw.report.sections.section import ReportSection


@dataclass(frozen=True)
class Payload:
    """The data of all sections of a page.

    figures       name of a chart -> its data
    explorers     address of a section -> the data of its slider
    chart_names   address of a section -> the names of its charts
    """

    figures: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    explorers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    chart_names: dict[str, list[str]] = field(default_factory=dict)

    def script(self) -> str:
        """Return the text that the page's script reads."""
        return as_script({"figures": self.figures, "explorers": self.explorers})


def payload_of(sections: Sequence[tuple[ReportSection[Any], Any]]) -> Payload:
    """Collect the data of these sections, each with its subject."""
    payload = Payload()
    for section, subject in sections:
        address = section.address_of(subject)
        names = payload.chart_names.setdefault(address, [])
        for chart in section.charts(subject):
            name = f"f{len(payload.figures)}"
            payload.figures[name] = chart_data(chart)
            names.append(name)
        explorer = section.explorer(subject)
        if explorer is not None:
            payload.explorers[address] = explorer
    return payload


def as_script(data: Any) -> str:
    """Return JSON that can be put between script tags: nothing in it ends them or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
