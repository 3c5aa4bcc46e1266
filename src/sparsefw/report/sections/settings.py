"""The settings that a sweep tried: heat maps of two settings each, and all configurations in a folded table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from matplotlib.figure import Figure

from sparsefw.plotting.charts import HeatMap
from sparsefw.plotting.heat_maps import draw_heat_maps
from sparsefw.report.contents import TaskContents, file_name
from sparsefw.report.families import Family
from sparsefw.report.html import folded, paragraphs, plot, table
from sparsefw.report.sections.section import ReportSection, each_task, task_title
from sparsefw.report.tables import Table


def _charts(contents: TaskContents) -> list[HeatMap]:
    return [heat_map for family in contents.families for pair in family.maps() for heat_map in pair]


def _html(contents: TaskContents, chart_names: Sequence[str]) -> str:
    names = iter(chart_names)
    parts = []
    for family in contents.families:
        parts.append(f"<h3>{escape(family.title)}</h3>\n{paragraphs([family.best])}")
        for pair in family.maps():
            plots = [plot([next(names)], f"{m.title}: {m.subtitle}", m.title, titled=True) for m in pair]
            maps = "".join(plots)
            parts.append(f'{paragraphs([pair[0].subtitle], "note")}<div class="pair">\n{maps}</div>\n')
        parts.append(_every_configuration(family))
    return "".join(parts)


def _every_configuration(family: Family) -> str:
    summary = f"{family.title}: {len(family.tried)} configurations on {family.split} images, the best first"
    every = folded(summary, table(family.table(), f"{family.title} {family.split}", sortable=True))
    return every + (paragraphs([family.note], "note") if family.note else "")


def _files(contents: TaskContents) -> Iterator[tuple[str, Table | Figure]]:
    for family in contents.families:
        stem = file_name(f"sweep-{family.name}-{family.kind}-{family.form}-{family.split}")
        yield stem, family.table()
        for pair in family.maps():
            yield file_name(f"{stem}-{pair[0].x_label}-{pair[0].y_label}"), draw_heat_maps(pair)


SETTINGS = ReportSection(
    name="sweep",
    title=task_title("Settings"),
    subjects=each_task,
    present=lambda contents: bool(contents.families),
    html=_html,
    charts=_charts,
    files=_files,
)
