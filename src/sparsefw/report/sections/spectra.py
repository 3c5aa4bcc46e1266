"""Spectra of the layers of trained networks: filter norms and singular values of the layer that is chosen from a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from sparsefw.plotting.chart_groups import draw_small_charts
from sparsefw.plotting.charts import Chart
from sparsefw.report.charts import SPECTRUM_KINDS
from sparsefw.report.contents import TaskContents, file_name
from sparsefw.report.html import paragraphs, plot, select
from sparsefw.report.sections.section import ReportSection, each_task, task_title
from sparsefw.report.tables import Table

HOW_TO_READ = (
    "Magnitudes that fall off fast can be removed at little cost. Every method is shown by its run with the lowest seed. "
    "The axis is logarithmic, and zeros are drawn at its lower end."
)


def _charts(contents: TaskContents) -> list[Chart]:
    return [charts[kind] for kind in SPECTRUM_KINDS for charts in contents.spectra.values()]


def _html(contents: TaskContents, chart_names: Sequence[str]) -> str:
    layers = {str(i): layer or "the network itself" for i, layer in enumerate(contents.spectra)}
    plots = []
    for number, kind in enumerate(SPECTRUM_KINDS):  # every layer has a chart of each
        names = chart_names[number * len(layers) : (number + 1) * len(layers)]
        units = kind.units
        plots.append(plot(names, f"{units} of a layer, largest first", f"Its {units}, relative to the largest one."))
    return (
        f'{paragraphs([HOW_TO_READ])}<p class="js controls">{select("Layer", layers, "0", "chooser")}</p>\n'
        f'<div class="pair">\n{"".join(plots)}</div>'
    )


def _files(contents: TaskContents) -> Iterator[tuple[str, Table | Figure]]:
    for kind in SPECTRUM_KINDS:
        charts = {layer: by_kind[kind] for layer, by_kind in contents.spectra.items()}
        title = f"{kind.units.capitalize()} of every layer, largest first, relative to the largest"
        yield file_name(f"spectra-{kind.units}"), draw_small_charts(charts, title)


SPECTRA = ReportSection(
    name="spectra",
    title=task_title("Spectra of the layers"),
    subjects=each_task,
    present=lambda contents: bool(contents.spectra),
    html=_html,
    charts=_charts,
    files=_files,
)
