"""HTML of the parts of a page: sections, tables with their downloads, controls. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import quote

from sparsefw.report.contents import file_name
from sparsefw.report.tables import Table

LONG = 25  # rows of a table that is not yet folded


def section_frame(name: str, title: str, content: str, plain: bool = True) -> str:
    """Return a section with its title. plain: the title only names the section, and states no result."""
    kind = ' class="plain"' if plain else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title"{kind}>{escape(title)}</h2>\n'
        f"{content}\n</section>"
    )


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Return a paragraph per text, of the CSS class `kind`."""
    mark = f' class="{kind}"' if kind else ""
    return "".join(f"<p{mark}>{escape(text)}</p>\n" for text in texts)


def folded(summary: str, content: str) -> str:
    """Return content that a click on its summary unfolds."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}\n</details>\n"


def select(label: str, options: Mapping[str, str], chosen: str, kind: str) -> str:
    """Return a labelled list to choose from. options: value -> text."""
    entries = "".join(
        f'<option value="{escape(value)}"{" selected" * (value == chosen)}>{escape(text)}</option>'
        for value, text in options.items()
    )
    return f'<label>{escape(label)} <select class="{kind}">{entries}</select></label>'


def plot(figures: Iterable[str], label: str, caption: str, titled: bool = False) -> str:
    """Return a place in which page.js draws the first of these figures, or the one that a control chooses.

    Args:
        titled: whether the caption comes first.
    """
    captioned = f"<figcaption>{escape(caption)}</figcaption>\n"
    drawn = f'<div class="plot" role="group" aria-label="{escape(label)}" data-figures="{" ".join(figures)}"></div>\n'
    return f'<figure class="js">\n{captioned + drawn if titled else drawn + captioned}</figure>\n'


def table(content: Table, label: str, *, words: bool = False, sortable: bool = False, downloads: bool = True) -> str:
    """Return a table that scrolls by itself.

    Args:
        words: whether its columns hold text rather than numbers.
        sortable: whether a click on a column's name sorts it, and a field searches it.
    """
    head = ""
    if any(name for name, _ in content.groups):
        cells = [
            f'<th colspan="{size}" scope="colgroup">{escape(name)}</th>' if name else "<th></th>"
            for name, size in content.groups
        ]
        head += row(cells)
    if any(content.header):
        head += row(f'<th scope="col">{escape(name)}</th>' for name in content.header)
    body = []
    for r, line in enumerate(content.rows):
        cells = [f'<th scope="row">{escape(line[0])}</th>']
        for c, cell in enumerate(line[1:], 1):
            strong = (r, c) in content.strong
            cells.append(f"<td><strong>{escape(cell)}</strong></td>" if strong else f"<td>{escape(cell)}</td>")
        body.append(row(cells))
    kinds = " ".join(["words"] * words + ["sortable"] * sortable)
    mark = f' class="{kinds}"' if kinds else ""
    search = '<p class="js"><label>Find <input type="search" class="filter"></label></p>\n' if sortable else ""
    whole = f"<table{mark}>\n<thead>\n{head}</thead>\n<tbody>\n{''.join(body)}</tbody>\n</table>"
    links = _downloads(content, label) if downloads else ""
    return f'<div class="table">\n{search}{scrolled(whole, label)}{links}</div>\n'


def scrolled(content: str, label: str) -> str:
    """Return content that scrolls by itself, also by the keyboard, where it is wider than the screen."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>\n'


def row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are HTML."""
    return f"<tr>{''.join(cells)}</tr>\n"


def commands(lines: Iterable[str]) -> str:
    """Return lines in a fixed-width font."""
    text = "\n".join(lines)
    return f'<pre tabindex="0">{escape(text)}</pre>\n'


def _downloads(content: Table, label: str) -> str:
    """Return links to a table's files, which are contained in the page, so that they work wherever it is moved."""
    stem = file_name(label.lower()).strip("_.")[:60] or "table"
    texts = (
        ("CSV", "csv", "text/csv", content.csv()),
        ("LaTeX", "tex", "text/plain", content.latex()),
        ("Markdown", "md", "text/plain", content.markdown()),
    )
    links = " ".join(
        f'<a download="{stem}.{ending}" href="data:{kind};charset=utf-8,{quote(text)}">{name}</a>'
        for name, ending, kind, text in texts
    )
    return f'<p class="downloads">This table as {links}</p>\n'
