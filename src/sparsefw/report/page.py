"""The page of a report: one HTML file that opens anywhere, offline, with the results, the numbers and the commands."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from sparsefw.atomic_io import write_bytes
from sparsefw.report.contents import contents_of
from sparsefw.report.html import paragraphs, section_frame
from sparsefw.report.payload import payload_of
from sparsefw.report.records import Damaged, ReportError, Run
from sparsefw.report.sections import sections_of
from sparsefw.report.sections.section import ReportSection

PAPER = "https://arxiv.org/abs/2205.11921"
HERE = Path(__file__).parent
# Nothing is fetched from the network, whatever text a run contains.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write_page(
    path: Path | str,
    runs: Sequence[Run],
    damaged: Sequence[Damaged] = (),
    *,
    title: str = "Train once, compress to any size",
    intro: str | None = None,
) -> Path:
    """Write the report of these runs.

    Args:
        damaged: folders to list as damaged.
        intro: plain text, whose paragraphs are separated by blank lines.

    Returns:
        The path of the page.
    """
    if not runs and not damaged:
        raise ReportError("there is nothing to report: no runs")
    sections = sections_of(contents_of(runs, damaged))
    payload = payload_of(sections)
    entries = "".join(_entry(section, subject) for section, subject in sections)
    parts = [
        _framed(section, subject, payload.chart_names[section.address_of(subject)]) for section, subject in sections
    ]
    main = "\n".join(parts)
    body = (
        f'{_head(title, intro, runs)}\n<nav aria-label="Sections"><ul>{entries}</ul></nav>\n<main>\n'
        f"{main}\n</main>\n{_footer()}\n"
        f'<script type="application/json" id="data">{payload.script()}</script>\n'
    )
    path = Path(path)
    try:
        write_bytes(path, _document(title, body).encode(errors="replace"))
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror}") from error
    return path


def _entry(section: ReportSection[Any], subject: Any) -> str:
    return f'<li><a href="#{section.address_of(subject)}">{escape(section.title(subject))}</a></li>'


def _framed(section: ReportSection[Any], subject: Any, chart_names: Sequence[str]) -> str:
    address = section.address_of(subject)
    content = section.html(subject, chart_names)
    if section.heading is None:
        return section_frame(address, section.title(subject), content)
    return section_frame(address, section.heading(subject), content, plain=False)


def _document(title: str, body: str) -> str:
    from plotly.offline import get_plotlyjs

    def package_file(name: str) -> str:
        return (HERE / name).read_text(encoding="utf-8")

    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{package_file('page.css')}</style>\n</head>\n<body>\n{body}"
        f"<script>{get_plotlyjs()}</script>\n<script>\n{package_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _head(title: str, intro: str | None, runs: Sequence[Run]) -> str:
    texts = [part.strip() for part in (intro or "").split("\n\n") if part.strip()]
    tasks = dict.fromkeys(run.task for run in runs)
    dates = sorted({date for run in runs if (date := run.record.environment.date) is not None})
    span = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    facts = " · ".join([f"{len(runs)} run{'s' * (len(runs) != 1)}", *tasks, *span])
    return (
        '<header>\n<button type="button" id="theme" class="js">Dark</button>\n'
        f'<h1>{escape(title)}</h1>\n{paragraphs(texts)}<p class="facts">{escape(facts)}</p>\n'
        '<p class="no-js">Without JavaScript there are no figures here; all of their numbers are in the tables.</p>\n'
        "</header>"
    )


def _footer() -> str:
    paper = f'<a href="{PAPER}">Compression-aware Training of Neural Networks using Frank-Wolfe</a>'
    return f"<footer>Written by sparsefw. The method: Zimmer, Spiegel, Pokutta, {paper}.</footer>"
