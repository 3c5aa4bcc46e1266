"""The layers of trained networks: filter norms and singular values of one that is chosen from a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from sparsefw.plotting.charts import Chart
from sparsefw.plotting.panels import draw_small_charts
from sparsefw.report.charts import MAGNITUDES
from sparsefw.report.contents import TaskContents, file_name
from sparsefw.report.html import paragraphs, plot, select
from sparsefw.report.sections.section import Section, each_task, task_title
from sparsefw.report.tables import Table

HOW_TO_READ = (
    "What falls off fast can be removed at little cost. Of every method, the run with the lowest seed; "
    "the axis is logarithmic, and zeros are drawn at its lower end."
)


def _charts(contents: TaskContents) -> list[Chart]:
    return [of_layer[what] for what in MAGNITUDES for of_layer in contents.spectra.values()]


def _html(contents: TaskContents, chart_names: Sequence[str]) -> str:
    layers = {str(i): layer or "the network itself" for i, layer in enumerate(contents.spectra)}
    plots = []
    for number, what in enumerate(MAGNITUDES):  # of every layer, there are all
        own = chart_names[number * len(layers) : (number + 1) * len(layers)]
        plots.append(plot(own, f"{what} of a layer, largest first", f"Its {what}, relative to the largest one."))
    return (
        f'{paragraphs([HOW_TO_READ])}<p class="js controls">{select("Layer", layers, "0", "chooser")}</p>\n'
        f'<div class="pair">\n{"".join(plots)}</div>'
    )


def _files(contents: TaskContents) -> Iterator[tuple[str, Table | Figure]]:
    for what in MAGNITUDES:
        charts = {layer: of_layer[what] for layer, of_layer in contents.spectra.items()}
        title = f"{what.capitalize()} of every layer, largest first, relative to the largest"
        yield file_name(f"spectra-{what}"), draw_small_charts(charts, title)


SPECTRA = Section(
    name="spectra",
    title=task_title("Spectra of the layers"),
    subjects=each_task,
    present=lambda contents: bool(contents.spectra),
    html=_html,
    charts=_charts,
    files=_files,
)
