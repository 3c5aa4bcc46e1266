"""One HTML file that opens anywhere, offline: what the runs show, the numbers, and how to get them again."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from sparsefw.durable import write_bytes
from sparsefw.report.canvas import inline_svg
from sparsefw.report.figures import curves_figure, has_sizes, legend_sentence, sizes_figure, training_figure
from sparsefw.report.names import differing, flat, shown
from sparsefw.report.read import Damaged, ReportError, Run
from sparsefw.report.series import compared, headline, kinds_of, refit_sentence
from sparsefw.report.tables import Table, ratio_table, runs_table

PAPER = "https://arxiv.org/abs/2205.11921"
CSS = Path(__file__).with_name("page.css")
WIDE, NARROW = 8.0, 4.0  # inches: a screen's and a phone's, since text must not shrink with the figure
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def write_page(
    path: Path | str,
    runs: Sequence[Run],
    damaged: Sequence[Damaged] = (),
    *,
    title: str = "Train once, compress to any size",
    intro: str | None = None,
    images: Mapping[str, Path] | None = None,
) -> Path:
    """The report of these runs. intro: plain text, blank lines part paragraphs; images: caption -> PNG or JPEG, embedded."""
    if not runs and not damaged:
        raise ReportError("there is nothing to report: no runs")
    page = _Page()
    parts = [_head(title, intro, runs)]
    tasks = dict.fromkeys(run.task for run in runs)
    for task in tasks:
        group = [run for run in runs if run.task == task]
        if len(tasks) > 1 and kinds_of(group):
            parts.append(f'<p class="task">{escape(task)}</p>')
        parts += [page.results(group, kind, form) for kind, form in kinds_of(group)]
    parts += [_image(caption, Path(file)) for caption, file in (images or {}).items()]
    if runs:
        parts += [_section("The runs", _html(runs_table(runs), words=True)), page.training(runs)]
        parts += [_configurations(runs), _commands(runs), _environments(runs)]
    parts += [_problems(runs, damaged), _footer()]
    document = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
    )
    body = "\n".join(part for part in parts if part)
    path = Path(path)
    try:
        write_bytes(path, f"{document}{body}\n</body>\n</html>\n".encode(errors="replace"))
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror}") from error
    return path


@dataclass
class _Page:
    """Counts the figures, whose ids must be unique in the page."""

    figures: int = field(default=0)

    def results(self, runs: Sequence[Run], kind: str, form: str) -> str:
        """One kind: the sentence, the figure, the numbers."""
        comparison = compared(runs, kind, form)
        sentence, alt = headline(comparison), f"{comparison.measure} against {comparison.what} {comparison.done}"
        figures = [
            self.figure(
                lambda width: curves_figure(runs, kind, form, title="", width=width),
                f"{alt}. {sentence}",
                legend_sentence(comparison),
            )
        ]
        if has_sizes(runs, kind, form):
            caption = (
                "The same against the parameters left: the dense network at the left edge, the smallest at the right."
            )
            figures.append(
                self.figure(
                    lambda width: sizes_figure(runs, kind, title="", width=width), f"{alt}, by parameters", caption
                )
            )
        again = refit_sentence(comparison)
        several = any(one.seeds > 1 for one in comparison.series)
        note = f"{comparison.split} {comparison.measure} in %{', mean ± standard deviation' if several else ''}."
        table = _html(ratio_table(runs, kind, form))
        lead = f"<p>{escape(again)}</p>\n" if again else ""
        note += " Bold: at most one point below the same network dense."
        return (
            f"<section>\n<h2>{escape(sentence)}</h2>\n{lead}{figures[0]}\n{table}\n"
            f'<p class="note">{escape(note[0].upper() + note[1:])}</p>\n{"".join(figures[1:])}</section>'
        )

    def training(self, runs: Sequence[Run]) -> str:
        parts = []
        for task in dict.fromkeys(run.task for run in runs if run.epochs):
            group = [run for run in runs if run.task == task]
            caption = f"{task}: after every epoch, solid on validation data, dashed on training data."

            def draw(width: float, group: Sequence[Run] = group) -> Figure:
                return training_figure(group, title="", width=width)

            parts.append(self.figure(draw, f"Training of {task}", caption))
        return _section("Training", "\n".join(parts)) if parts else ""

    def figure(self, draw: Callable[[float], Figure], alt: str, caption: str) -> str:
        """Drawn twice; the style sheet shows the one that fits the screen."""
        self.figures += 1
        drawn = [
            f'<div class="{name}">{inline_svg(draw(width), f"{name}{self.figures}", escape(alt))}</div>'
            for name, width in (("wide", WIDE), ("narrow", NARROW))
        ]
        return f"<figure>\n{''.join(drawn)}\n<figcaption>{escape(caption)}</figcaption>\n</figure>\n"


def _head(title: str, intro: str | None, runs: Sequence[Run]) -> str:
    paragraphs = [part.strip() for part in (intro or "").split("\n\n") if part.strip()]
    tasks = dict.fromkeys(run.task for run in runs)
    dates = sorted({str(run.environment["date"]) for run in runs if "date" in run.environment})
    span = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    facts = " · ".join([f"{len(runs)} run{'s' * (len(runs) != 1)}", *tasks, *span])
    text = "".join(f"<p>{escape(part)}</p>\n" for part in paragraphs)
    return f'<header>\n<h1>{escape(title)}</h1>\n{text}<p class="facts">{escape(facts)}</p>\n</header>'


def _configurations(runs: Sequence[Run]) -> str:
    """What differs as a table with a row per run, what is common to all folded away below."""
    configs = [flat(run.config) for run in runs]
    keys = differing(configs)
    rows = [
        (run.label, *(shown(config.get(key, "-")) for key in keys)) for run, config in zip(runs, configs, strict=True)
    ]
    table = _html(Table((), ("run", *keys), tuple(rows)), words=True) if keys else ""
    common = {key: value for key, value in configs[0].items() if key not in keys}
    text = "\n".join(f"{key}: {shown(value)}" for key, value in common.items())
    name = "What all runs have in common" if len(runs) > 1 else "All of it"
    folded = f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>" if text else ""
    return _section("What differs between the runs" if keys else "Configuration", table + folded)


def _commands(runs: Sequence[Run]) -> str:
    """From the run folders' own configurations: whatever was changed on the command line is in them."""
    lines = [f"sparsefw train {shlex.quote(str(run.folder / 'config.yaml'))} --out NEW" for run in runs]
    note = "Add --data DIR where the data do not come with the package. NEW: a folder that is not there yet."
    return _section("Run it again", f'<pre>{escape(chr(10).join(lines))}</pre>\n<p class="note">{escape(note)}</p>')


def _environments(runs: Sequence[Run]) -> str:
    environments = [
        flat({key: value for key, value in run.environment.items() if key not in ("date", "method")}) for run in runs
    ]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}  # the dates are told once, at the top of the page
    for run, found in zip(runs, environments, strict=True):
        alike.setdefault(tuple((key, shown(value)) for key, value in found.items() if value is not None), []).append(
            run.label
        )
    parts = []
    for facts, labels in alike.items():
        who = f"<p>{escape(', '.join(labels))}</p>\n" if len(alike) > 1 else ""
        rows = tuple((key.rpartition(".")[2], value) for key, value in facts)
        parts.append(who + (_html(Table((), ("", ""), rows), words=True) if rows else "<p>not recorded</p>"))
    return _section("Measured with", "\n".join(parts))


def _problems(runs: Sequence[Run], damaged: Sequence[Damaged]) -> str:
    items = [f"{one.folder}: {one.reason}" for one in damaged]
    items += [f"{run.label} ({run.folder}): {'; '.join(run.notes)}" for run in runs if run.notes]
    entries = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    return _section("Damaged or unfinished", f'<ul class="problems">\n{entries}\n</ul>') if items else ""


def _footer() -> str:
    paper = f'<a href="{PAPER}">Compression-aware Training of Neural Networks using Frank-Wolfe</a>'
    return f"<footer>Written by sparsefw. The method: Zimmer, Spiegel, Pokutta, {paper}.</footer>"


def _image(caption: str, file: Path) -> str:
    if file.suffix.lower() not in IMAGES:
        raise ReportError(f"{file}: an image must be one of {', '.join(IMAGES)}")
    try:
        content = base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise ReportError(f"cannot read {file}: {error.strerror}") from error
    source = f"data:{IMAGES[file.suffix.lower()]};base64,{content}"
    return f'<figure><img src="{source}" alt="{escape(caption)}"><figcaption>{escape(caption)}</figcaption></figure>'


def _section(name: str, content: str) -> str:
    return f'<section>\n<h2 class="plain">{escape(name)}</h2>\n{content}\n</section>'


def _html(table: Table, words: bool = False) -> str:
    """words: columns of text rather than of numbers."""
    head = ""
    if table.groups:
        cells = [
            f'<th colspan="{size}" scope="colgroup">{escape(name)}</th>' if name else "<th></th>"
            for name, size in table.groups
        ]
        head += f"<tr>{''.join(cells)}</tr>\n"
    if any(table.header):
        head += _row(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = []
    for r, row in enumerate(table.rows):
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        for c, cell in enumerate(row[1:], 1):
            cells.append(
                f"<td><strong>{escape(cell)}</strong></td>" if (r, c) in table.strong else f"<td>{escape(cell)}</td>"
            )
        rows.append(_row(cells))
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{kind}>\n<thead>\n{head}</thead>\n<tbody>\n{"".join(rows)}</tbody>\n</table></div>'
    )


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>\n"
