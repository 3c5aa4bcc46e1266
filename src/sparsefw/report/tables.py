"""Tables: the numbers behind the figures, as text for the terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefw.atomic_io import write_text
from sparsefw.plotting.charts import Spread
from sparsefw.report.records import Run
from sparsefw.report.series import METRIC_NAMES, Comparison, Series, compared

# A cell such as 82.00 ±2.83 (n=2), 28,047 (9.1 %) or 97.48.
CELL = re.compile(r"(?P<value>nan|-?[\d,]*\.?\d+)(?: ±(?P<std>[\d.]+))?(?: \(n=(?P<n>\d+)\)| \([\d.e-]+ %\))?")
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "\n": " ",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns.

    groups   a common name and the number of columns, for neighbouring columns; none where it is empty
    strong   cells (row, column) in bold
    """

    groups: tuple[tuple[str, int], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[tuple[int, int]] = frozenset()

    @property
    def names(self) -> list[str]:
        """The names of the columns, each behind that of its group."""
        groups = [name for name, size in self.groups for _ in range(size)] or [""] * len(self.header)
        return [f"{group} {name}".strip() for group, name in zip(groups, self.header, strict=True)]

    def text(self) -> str:
        """Return the table for a terminal: the first column aligned to the left, all others to the right."""
        widths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        spans = []
        start = 0
        for name, size in self.groups:  # a long name makes the last column of its group wider
            missing = len(name) - sum(widths[start : start + size]) - 2 * (size - 1)
            widths[start + size - 1] += max(missing, 0)
            spans.append(name.ljust(sum(widths[start : start + size]) + 2 * (size - 1)))
            start += size
        lines = ["  ".join(spans)] if any(name for name, _ in self.groups) else []
        for row in (self.header, *self.rows):
            padded = enumerate(zip(row, widths, strict=True))
            lines.append("  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in padded))
        return "\n".join(line.rstrip() for line in lines)

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.names, ["---"] + ["---:"] * (len(self.header) - 1)]
        for r, row in enumerate(self.rows):
            lines.append([f"**{cell}**" if (r, c) in self.strong else cell for c, cell in enumerate(row)])
        head, rule, *body = lines
        clean = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *body)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (clean[0], rule, *clean[1:]))

    def csv(self) -> str:
        """Return the table for machines: numbers without commas, standard deviations and counts in further columns."""
        columns = []
        for c, name in enumerate(self.names):
            cells = [row[c] for row in self.rows]
            matches = [CELL.fullmatch(cell) for cell in cells]
            values = [m["value"].replace(",", "") if m else cell for m, cell in zip(matches, cells, strict=True)]
            columns.append([name, *values])
            for part in ("std", "n"):
                if any(match and match[part] for match in matches):
                    parts = [(match[part] or "") if match else "" for match in matches]
                    columns.append([f"{name} {part}", *parts])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            zip(*([_inert(cell) for cell in c] for c in columns), strict=True)
        )
        return text.getvalue()

    def latex(self) -> str:
        """Return the table for LaTeX's package booktabs."""
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule"]
        if any(name for name, _ in self.groups):
            heads = []
            rules = []
            start = 1
            for name, size in self.groups:
                heads.append(rf"\multicolumn{{{size}}}{{c}}{{{_latex(name)}}}" if name else "")
                rules += [rf"\cmidrule(lr){{{start}-{start + size - 1}}}"] if name else []
                start += size
            lines += [f"{' & '.join(heads)} \\\\", " ".join(rules)]
        lines += [_latex_row(self.header), r"\midrule"]
        for r, row in enumerate(self.rows):
            cells = [_latex(cell) for cell in row]
            lines.append(_row(rf"\textbf{{{cell}}}" if (r, c) in self.strong else cell for c, cell in enumerate(cells)))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def save_table(table: Table, stem: Path) -> list[Path]:
    """Write stem.csv, stem.tex and stem.md."""
    texts = {".csv": table.csv(), ".tex": table.latex(), ".md": table.markdown() + "\n"}
    files = [stem.with_name(stem.name + ending) for ending in texts]
    for file, text in zip(files, texts.values(), strict=True):
        write_text(file, text)
    return files


def ratio_table(runs: Sequence[Run], kind: str, form: str) -> Table:
    """Tabulate the test curves of these runs, of a kind such as "filters" and a form such as "removed"."""
    return comparison_table(compared(runs, kind, form))


def comparison_table(comparison: Comparison) -> Table:
    """Tabulate ratios x (method, plain and refit): the metric in percent, with its standard deviation over several seeds.

    The best value of every row is in bold.
    """
    groups: list[tuple[str, int]] = [("", 1)]
    columns = [[f"{comparison.units} {comparison.removal}", "dense", *map(shown_ratio, comparison.ratios)]]
    means: list[list[float]] = []  # of every column but the first
    for series in comparison.series:
        seeds = f" ({series.seeds} seeds)" if series.seeds > 1 else ""
        parts = _columns(series, comparison)
        groups.append((comparison.names[series.method] + seeds, len(parts)))
        for name, values in parts:
            dense = cell_of(series.dense, series) if name == "plain" else ""
            columns.append([name, dense, *(cell_of(value, series) for value in values)])
            means.append([series.dense.mean if dense else math.nan, *(v.mean if v else math.nan for v in values)])
    header, *rows = zip(*columns, strict=True)
    best = {
        (row, column)
        for row, line in enumerate(zip(*means, strict=True))
        for column, mean in enumerate(line, 1)
        if len(means) > 1 and mean == max((value for value in line if not math.isnan(value)), default=None)
    }
    return Table(tuple(groups), header, tuple(rows), frozenset(best))


def runs_table(runs: Sequence[Run]) -> Table:
    """Tabulate the runs: their dense metric in percent, their time and status. Columns without content are left out."""
    metrics = {METRIC_NAMES.get(run.metric, run.metric) for run in runs}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    columns = [_run_columns(run, metric) for run in runs]
    one_task = len({run.task for run in runs}) == 1
    names = list(columns[0]) if columns else []
    kept = [name for name in names if any(row[name] != "-" for row in columns) and not (name == "task" and one_task)]
    return Table((), tuple(kept), tuple(tuple(row[name] for name in kept) for row in columns))


def _run_columns(run: Run, metric: str) -> dict[str, str]:
    """Return the cells of a run, by the name of their column; "-" where there is nothing to show."""
    result = run.record.result
    return {
        "run": run.label,
        "task": run.task,
        "recipe": run.name,
        "seed": str(run.seed),
        "epochs": _epochs(run),
        f"test {metric}": _number(run.measured("test"), ".2f"),
        f"validation {metric}": _number(run.measured("validation"), ".2f"),
        "time": _time(None if result is None else result.seconds),
        "images/s": _number(None if result is None else result.images_per_second, ",.0f"),
        "status": str(run.record.status),
    }


def shown_ratio(ratio: float) -> str:
    """Return a ratio as a percentage.

    >>> shown_ratio(0.995)
    '99.5%'
    """
    return f"{100 * ratio:.4g}%"


def _latex(text: str) -> str:
    """Escape a text, and set a standard deviation close to its mean."""
    special = "|".join(map(re.escape, LATEX))
    parts = [re.sub(special, lambda match: LATEX[match[0]], part) for part in text.split(" ±")]
    return r"$\,\pm\,$".join(parts)


def _latex_row(cells: Sequence[str]) -> str:
    return _row(map(_latex, cells))


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _columns(series: Series, comparison: Comparison) -> list[tuple[str, list[Spread | None]]]:
    """Return plain and, where it was measured, refit, each with its value at every ratio of the comparison."""
    pairs = [series.at(ratio) or (None, None) for ratio in comparison.ratios]
    columns: list[tuple[str, list[Spread | None]]] = [("plain", [pair[0] for pair in pairs])]
    if any(series.refit):
        columns.append(("refit", [pair[1] for pair in pairs]))
    return columns


def cell_of(value: Spread | None, series: Series) -> str:
    """Return mean ± standard deviation, with the number of seeds where one is missing."""
    if value is None:
        return "-"
    deviation = f" ±{value.deviation:.2f}" if value.count > 1 and math.isfinite(value.mean) else ""
    fewer = f" (n={value.count})" if value.count < series.seeds else ""
    return f"{value.mean:.2f}{deviation}{fewer}"


def _epochs(run: Run) -> str:
    """Return the epochs so far, of those that are planned."""
    planned = run.planned_epochs
    return str(planned) if run.finished or len(run.epochs) == planned else f"{len(run.epochs)} of {planned}"


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None else "-"


def _time(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    hours, rest = divmod(round(seconds), 3600)
    if hours:
        return f"{hours} h {rest // 60} min"
    return f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{seconds:.1f} s"


def _inert(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula; a number stays one."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
