"""One kind and form of removal: a headline, the curves with their slider, the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from matplotlib.figure import Figure

from sparsefw.plotting.charts import Chart
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.report.charts import legend_sentence, sizes_title
from sparsefw.report.contents import Results
from sparsefw.report.html import folded, paragraphs, plot, row, scrolled, select, table
from sparsefw.report.sections.section import ReportSection, each_comparison
from sparsefw.report.series import NBSP, headline, refit_sentence
from sparsefw.report.sizes import sizes_header
from sparsefw.report.tables import Table

CROWDED = 16  # lines in one figure
MASKED_NOTE = "These commands make the physically smaller network of the same ratio."


def _title(results: Results) -> str:
    removal = f"{results.comparison.units} {results.comparison.removal}"
    return removal if results.task.alone else f"{results.task.title}: {removal}"


def _html(results: Results, chart_names: Sequence[str]) -> str:
    comparison = results.comparison
    measure = f"{comparison.split} {comparison.metric_name}"
    above = "" if results.task.alone else f'<p class="task">{escape(results.task.title)}</p>\n'
    refit = refit_sentence(comparison)
    label = f"{measure} against {comparison.units} {comparison.removal}"
    return (
        f"{above}{paragraphs([refit]) if refit else ''}{paragraphs(results.notes, 'note')}"
        f'<div class="explorer" data-explorer="{results.address}">\n{_controls(results.chart)}'
        f"{plot(chart_names, label, legend_sentence(comparison))}"
        f"{_slider(results)}</div>\n"
        f"{table(results.table, f'{comparison.kind} {comparison.form}: {measure}')}"
        f"{paragraphs([_table_note(results)], 'note')}"
    )


def _table_note(results: Results) -> str:
    comparison = results.comparison
    several_seeds = any(series.seeds > 1 for series in comparison.series)
    note = f"{comparison.split} {comparison.metric_name} in %{', mean ± standard deviation' if several_seeds else ''}."
    return f"{note[0].upper()}{note[1:]} Bold: the best of the row."


def _controls(chart: Chart) -> str:
    axes = {axis.key: axis.label for axis in chart.axes}
    scale = "linear" if chart.axes[0].scale == "linear" else "log"
    parts = list(dict.fromkeys(line.part for line in chart.lines))
    names = {" ".join(parts): " and ".join(parts)}
    if len(parts) > 1:
        names |= {part: f"{part} only" for part in parts}
    controls = [
        select("Against", axes, chart.axes[0].key, "axis"),
        select("Scale", {"linear": "linear", "log": "logarithmic"}, scale, "scale"),
        # Of many methods, only one line each is drawn at first.
        select("Lines", names, parts[0] if len(chart.lines) > CROWDED else next(iter(names)), "part"),
    ]
    return f'<div class="controls js">{" ".join(controls)}</div>\n'


def _slider(results: Results) -> str:
    """Show all methods at the headline's ratio, and the control that chooses another one."""
    comparison = results.comparison
    ratios = comparison.ratios
    start = ratios.index(comparison.headline_ratio)
    spoken = escape(_spoken_ratios(results)[start])
    name = f"{results.address}-ratio"
    head = row(f'<th scope="col">{escape(word)}</th>' for word in sizes_header(comparison))
    body = "".join(
        row([f'<th scope="row">{escape(line[0])}</th>', *(f"<td>{escape(cell)}</td>" for cell in line[1:])])
        for line in results.size_rows[ratios[start]]
    )
    at_this_size = f'<table class="sizes">\n<thead>\n{head}</thead>\n<tbody>\n{body}</tbody>\n</table>'
    every_size = table(results.sizes, f"{results.name} sizes", words=True)
    return (
        f'<div class="slider"><label for="{name}">How small? <output for="{name}">{spoken}'
        f'</output></label>\n<input class="js" type="range" id="{name}" min="0" max="{len(ratios) - 1}" '
        f'value="{start}" step="1" aria-valuetext="{spoken}"></div>\n'
        f"{scrolled(at_this_size, 'Every method at this size')}"
        f"{paragraphs([MASKED_NOTE], 'note') if comparison.form == 'masked' else ''}"
        f"{folded('Every size of every method', every_size)}"
    )


def _explorer(results: Results) -> dict[str, Any]:
    comparison = results.comparison
    return {
        "ratios": [100 * ratio for ratio in comparison.ratios],
        "spoken": _spoken_ratios(results),
        "rows": [results.size_rows[ratio] for ratio in comparison.ratios],
        "methods": [series.method for series in comparison.series],
    }


def _spoken_ratios(results: Results) -> list[str]:
    comparison = results.comparison
    return [f"{100 * ratio:.4g}{NBSP}% of the {comparison.units} {comparison.removal}" for ratio in comparison.ratios]


def _files(results: Results) -> Iterator[tuple[str, Table | Figure]]:
    """Export both tables, and the chart over every axis that it has."""
    yield results.name, results.table
    yield f"{results.name}-sizes", results.sizes
    first, *sizes = results.chart.axes
    yield results.name, draw_chart(results.chart, first.key)
    for axis in sizes:
        titled = replace(results.chart, title=sizes_title(results.comparison, axis.key))
        yield f"{results.name}-{axis.key}", draw_chart(titled, axis.key)


CURVES = ReportSection(
    name="curves",
    title=_title,
    heading=lambda results: headline(results.comparison),
    address=lambda results: results.address,
    subjects=each_comparison,
    html=_html,
    charts=lambda results: [results.chart],
    explorer=_explorer,
    files=_files,
)
