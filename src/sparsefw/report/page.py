"""One HTML file that opens anywhere, offline: what the runs show, the numbers, and how to get them again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sparsefw.durable import write_bytes
from sparsefw.report.charts import SPECTRA, Chart, legend_sentence
from sparsefw.report.contents import Contents, Results, TaskContents, contents_of
from sparsefw.report.html import (
    LONG,
    commands,
    folded,
    paragraphs,
    plot,
    row,
    scrolled,
    section,
    select,
    table,
)
from sparsefw.report.names import flat, shown
from sparsefw.report.payload import as_script, chart_data, map_data
from sparsefw.report.records import Damaged, ReportError, Run
from sparsefw.report.series import NBSP, headline, refit_sentence
from sparsefw.report.sizes import sizes_header, sizes_rows
from sparsefw.report.tables import Table

PAPER = "https://arxiv.org/abs/2205.11921"
HERE = Path(__file__).parent
# Nothing is fetched from anywhere, whatever a run's author wrote into it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

CROWDED = 16  # lines in one figure


def write_page(
    path: Path | str,
    runs: Sequence[Run],
    damaged: Sequence[Damaged] = (),
    *,
    title: str = "Train once, compress to any size",
    intro: str | None = None,
) -> Path:
    """The report of these runs. intro: plain text, blank lines part paragraphs."""
    if not runs and not damaged:
        raise ReportError("there is nothing to report: no runs")
    page = _Page(contents_of(runs))
    parts = page.parts(runs)
    parts += _problems(runs, damaged)
    entries = "".join(f'<li><a href="#{name}">{escape(short)}</a></li>' for name, short, _ in parts if name)
    body = (
        f'{_head(title, intro, runs)}\n<nav aria-label="Sections"><ul>{entries}</ul></nav>\n<main>\n'
        f"{chr(10).join(content for *_, content in parts)}\n</main>\n{_footer()}\n"
        f'<script type="application/json" id="data">{as_script(page.data)}</script>\n'
    )
    path = Path(path)
    try:
        write_bytes(path, _document(title, body).encode(errors="replace"))
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror}") from error
    return path


def _document(title: str, body: str) -> str:
    from plotly.offline import get_plotlyjs

    def own(name: str) -> str:
        return (HERE / name).read_text(encoding="utf-8")

    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{own('page.css')}</style>\n</head>\n<body>\n{body}"
        f"<script>{get_plotlyjs()}</script>\n<script>\n{own('page.js')}</script>\n</body>\n</html>\n"
    )


@dataclass
class _Page:
    """Sections as (id, short name, HTML), and the data of their figures, which page.js draws."""

    contents: Contents
    data: dict[str, Any] = field(default_factory=lambda: {"figures": {}, "explorers": {}})

    def parts(self, runs: Sequence[Run]) -> list[tuple[str, str, str]]:
        tasks = self.contents.tasks
        several = len(tasks) > 1
        parts = []
        for task in tasks:
            for results in task.results:
                name = f"{task.name}-{results.name}"
                what = f"{results.comparison.what} {results.comparison.done}"
                lead = f"{task.task}: {what}" if several else what
                parts.append((name, lead, self.results(task, results, name, task.task if several else "")))
        for task in tasks:
            end = f": {task.task}" if several else ""
            makers = (("sweep", "Settings", self.sweep), ("training", "Training", self.training))
            for stem, title, make in (*makers, ("spectra", "Spectra of the layers", self.spectra)):
                if content := make(task):
                    name = f"{task.name}-{stem}"
                    parts.append((name, title + end, section(name, title + end, content)))
        return parts + (self.listings(runs) if runs else [])

    def figure(self, chart: dict[str, Any]) -> str:
        name = f"f{len(self.data['figures'])}"
        self.data["figures"][name] = chart
        return name

    def results(self, task: TaskContents, results: Results, name: str, over: str) -> str:
        """One kind: the sentence, the figure with its slider, the numbers."""
        comparison, chart = results.comparison, results.chart
        again, measure = refit_sentence(comparison), f"{comparison.split} {comparison.measure}"
        above = f'<p class="task">{escape(over)}</p>\n' if over else ""
        several = any(one.seeds > 1 for one in comparison.series)
        note = f"{measure} in %{', mean ± standard deviation' if several else ''}."
        note += " Bold: the best of the row."
        label = f"{measure} against {comparison.what} {comparison.done}"
        lead = paragraphs([again]) if again else ""
        return section(
            name,
            headline(comparison),
            f"{above}{lead}{paragraphs(results.notes, 'note')}"
            f'<div class="explorer" data-explorer="{name}">\n{_controls(chart)}'
            f"{plot([self.figure(chart_data(chart))], label, legend_sentence(comparison))}"
            f"{self.slider(task, results, name)}</div>\n"
            f"{table(results.table, f'{comparison.kind} {comparison.form}: {measure}')}"
            f"{paragraphs([note[0].upper() + note[1:]], 'note')}",
            plain=False,
        )

    def slider(self, task: TaskContents, results: Results, name: str) -> str:
        comparison = results.comparison
        rows, ratios = sizes_rows(comparison, task.shown), comparison.ratios
        spoken = [f"{100 * ratio:.4g}{NBSP}% of the {comparison.what} {comparison.done}" for ratio in ratios]
        start = ratios.index(comparison.telling)
        header = sizes_header(comparison)
        self.data["explorers"][name] = {
            "ratios": [100 * ratio for ratio in ratios],
            "spoken": spoken,
            "rows": [rows[ratio] for ratio in ratios],
            "methods": [one.method for one in comparison.series],
        }
        head = row(f'<th scope="col">{escape(word)}</th>' for word in header)
        body = "".join(
            row([f'<th scope="row">{escape(line[0])}</th>', *(f"<td>{escape(cell)}</td>" for cell in line[1:])])
            for line in rows[ratios[start]]
        )
        masked = "These commands make the physically smaller network of the same ratio."
        shown_table = f'<table class="sizes">\n<thead>\n{head}</thead>\n<tbody>\n{body}</tbody>\n</table>'
        return (
            f'<div class="slider"><label for="{name}-ratio">How small? <output for="{name}-ratio">{escape(spoken[start])}'
            f'</output></label>\n<input class="js" type="range" id="{name}-ratio" min="0" max="{len(ratios) - 1}" '
            f'value="{start}" step="1" aria-valuetext="{escape(spoken[start])}"></div>\n'
            f"{scrolled(shown_table, 'Every method at this size')}"
            f"{paragraphs([masked], 'note') if comparison.form == 'masked' else ''}"
            f"{folded('Every size of every method', table(results.sizes, f'{results.name} sizes', words=True))}"
        )

    def sweep(self, task: TaskContents) -> str:
        """Heat maps of two settings each, and all configurations in a folded table."""
        parts = []
        for family in task.families:
            parts.append(f"<h3>{escape(family.about)}</h3>\n{paragraphs([family.best])}")
            for both in family.maps():
                maps = "".join(
                    plot([self.figure(map_data(one))], f"{one.title}: {one.subtitle}", one.title, titled=True)
                    for one in both
                )
                parts.append(f'{paragraphs([both[0].subtitle], "note")}<div class="pair">\n{maps}</div>\n')
            about = f"{family.about}: {len(family.tried)} configurations on {family.split} images, the best first"
            parts.append(folded(about, table(family.table(), f"{family.about} {family.split}", sortable=True)))
            parts.append(paragraphs([family.note], "note") if family.note else "")
        return "".join(parts)

    def training(self, task: TaskContents) -> str:
        if task.training is None:
            return ""
        charts: list[Chart] = [one for one in (task.training, task.all_training) if one is not None]
        figures = [self.figure(chart_data(chart)) for chart in charts]
        more = (
            '<p class="js controls"><label><input type="checkbox" class="chooser"> Show all runs, also those of sweeps'
            "</label></p>\n"
        )
        decay = ""
        if task.decay is not None:
            about = f"What became of the constrained weights. {task.decay.subtitle}"
            decay = plot([self.figure(chart_data(task.decay))], f"Decay in training {task.task}", about)
        return (
            f"{paragraphs(task.notes, 'note')}{more if len(charts) > 1 else ''}"
            f"{plot(figures, f'Training of {task.task}', f'{task.task}, after every epoch. {task.training.subtitle}')}{decay}"
        )

    def spectra(self, task: TaskContents) -> str:
        """A layer is chosen from a list; beside each other its filters and its singular values."""
        if not task.spectra:
            return ""
        layers = {str(i): layer or "the network itself" for i, layer in enumerate(task.spectra)}  # all have both
        plots = []
        for what in SPECTRA:
            figures = [self.figure(chart_data(both[what])) for both in task.spectra.values()]
            plots.append(
                plot(figures, f"{what} of a layer, largest first", f"Its {what}, relative to the largest one.")
            )
        how = (
            "What falls off fast can be removed at little cost. Of every method, the run with the lowest seed; "
            "the axis is logarithmic, and zeros are drawn at its lower end."
        )
        return (
            f'{paragraphs([how])}<p class="js controls">{select("Layer", layers, "0", "chooser")}</p>\n'
            f'<div class="pair">\n{"".join(plots)}</div>'
        )

    def listings(self, runs: Sequence[Run]) -> list[tuple[str, str, str]]:
        found = self.contents
        every = table(found.runs, "runs", words=True, sortable=len(runs) > 1)
        parts = [("runs", "The runs", section("runs", "The runs", _if_long(runs, f"All {len(runs)} runs", every)))]
        differ = ""
        if found.configurations is not None:
            differ = _if_long(
                runs,
                f"The settings of all {len(runs)} runs",
                table(found.configurations, "configurations", words=True, sortable=True),
            )
        text = [f"{key}: {value}" for key, value in found.common.items()]
        name = "What all runs have in common" if len(runs) > 1 else "All of it"
        title = "What differs between the runs" if differ else "Configuration"
        parts.append(
            (
                "configurations",
                title,
                section("configurations", title, differ + (folded(name, commands(text)) if text else "")),
            )
        )
        lines = [f"sparsefw train {shlex.quote(str(run.folder / 'config.yaml'))} --out NEW" for run in runs]
        note = "Add --data DIR where the data do not come with the package. NEW: a folder that is not there yet."
        again = _if_long(runs, f"All {len(runs)} commands", commands(lines)) + paragraphs([note], "note")
        parts.append(("again", "Run it again", section("again", "Run it again", again)))
        parts.append(("measured", "Measured with", section("measured", "Measured with", _environments(runs))))
        return parts


def _controls(chart: Chart) -> str:
    axes = {axis.key: axis.label for axis in chart.axes}
    scale = "linear" if chart.axes[0].scale == "linear" else "log"
    parts = list(dict.fromkeys(line.part for line in chart.lines))
    names = {" ".join(parts): " and ".join(parts)} | (
        {part: f"{part} only" for part in parts} if len(parts) > 1 else {}
    )
    controls = [
        select("Against", axes, chart.axes[0].key, "axis"),
        select("Scale", {"linear": "linear", "log": "logarithmic"}, scale, "scale"),
        # Of many methods, one line each to begin with.
        select("Lines", names, parts[0] if len(chart.lines) > CROWDED else next(iter(names)), "part"),
    ]
    return f'<div class="controls js">{" ".join(controls)}</div>\n'


def _if_long(runs: Sequence[Run], summary: str, content: str) -> str:
    return folded(summary, content) if len(runs) > LONG else content


def _head(title: str, intro: str | None, runs: Sequence[Run]) -> str:
    texts = [part.strip() for part in (intro or "").split("\n\n") if part.strip()]
    tasks = dict.fromkeys(run.task for run in runs)
    dates = sorted({str(run.environment["date"]) for run in runs if "date" in run.environment})
    span = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    facts = " · ".join([f"{len(runs)} run{'s' * (len(runs) != 1)}", *tasks, *span])
    return (
        '<header>\n<button type="button" id="theme" class="js">Dark</button>\n'
        f'<h1>{escape(title)}</h1>\n{paragraphs(texts)}<p class="facts">{escape(facts)}</p>\n'
        '<p class="no-js">Without JavaScript there are no figures here; all of their numbers are in the tables.</p>\n'
        "</header>"
    )


def _environments(runs: Sequence[Run]) -> str:
    environments = [
        flat({key: value for key, value in run.environment.items() if key not in ("date", "method")}) for run in runs
    ]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}  # the dates are told once, at the top of the page
    for run, found in zip(runs, environments, strict=True):
        facts = tuple((key, shown(value)) for key, value in found.items() if value is not None)
        alike.setdefault(facts, []).append(run.label)
    parts = []
    for facts, labels in alike.items():
        who = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        rows = tuple((key.rpartition(".")[2], value) for key, value in facts)
        told = table(Table((), ("", ""), rows), f"Measured with: {who}", words=True, downloads=False)
        content = told if rows else "<p>not recorded</p>"
        parts.append(folded(who, content) if len(alike) > 1 else content)
    return "\n".join(parts)


def _problems(runs: Sequence[Run], damaged: Sequence[Damaged]) -> list[tuple[str, str, str]]:
    items = [f"{one.folder}: {one.reason}" for one in damaged]
    items += [f"{run.label} ({run.folder}): {'; '.join(run.notes)}" for run in runs if run.notes]
    entries = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    title = "Damaged or unfinished"
    content = section("problems", title, f'<ul class="problems">\n{entries}\n</ul>')
    return [("problems", title, content)] if items else []


def _footer() -> str:
    paper = f'<a href="{PAPER}">Compression-aware Training of Neural Networks using Frank-Wolfe</a>'
    return f"<footer>Written by sparsefw. The method: Zimmer, Spiegel, Pokutta, {paper}.</footer>"
