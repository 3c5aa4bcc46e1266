"""The training of all methods, epoch by epoch, and the state of the constrained weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from sparsefw.plotting.charts import Chart
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.report.contents import TaskContents
from sparsefw.report.html import paragraphs, plot
from sparsefw.report.sections.section import ReportSection, each_task, task_title
from sparsefw.report.tables import Table

SHOW_ALL = (
    '<p class="js controls"><label><input type="checkbox" class="chooser"> Show all runs, also those of sweeps'
    "</label></p>\n"
)


def _training_charts(contents: TaskContents) -> list[Chart]:
    return [chart for chart in (contents.training, contents.all_training) if chart is not None]


def _charts(contents: TaskContents) -> list[Chart]:
    decay = [] if contents.decay is None else [contents.decay]
    return [*_training_charts(contents), *decay]


def _html(contents: TaskContents, chart_names: Sequence[str]) -> str:
    assert contents.training is not None
    task = contents.task.title
    count = len(_training_charts(contents))
    training_names = chart_names[:count]
    decay_names = chart_names[count:]
    decay = ""
    if contents.decay is not None:
        caption = f"The constrained weights after every epoch. {contents.decay.subtitle}"
        decay = plot(decay_names, f"Decay in training {task}", caption)
    choice = SHOW_ALL if contents.all_training is not None else ""
    training = plot(training_names, f"Training of {task}", f"{task}, after every epoch. {contents.training.subtitle}")
    return f"{paragraphs(contents.notes, 'note')}{choice}{training}{decay}"


def _files(contents: TaskContents) -> Iterator[tuple[str, Table | Figure]]:
    if contents.training is not None:
        yield "training", draw_chart(contents.training)
    if contents.decay is not None:
        yield "decay", draw_chart(contents.decay)


TRAINING = ReportSection(
    name="training",
    title=task_title("Training"),
    subjects=each_task,
    present=lambda contents: contents.training is not None,
    html=_html,
    charts=_charts,
    files=_files,
)
