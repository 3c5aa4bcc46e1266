"""The numbers behind the figures: for the terminal, as Markdown, CSV and LaTeX."""

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
from sparsefw.report.series import SHOWN, Comparison, Series, compared, epochs_of

# A cell such as 82.00 ±2.83 (n=2), 28,047 (9.1 %) or 97.48.
CELL = re.compile(r"(?P<value>nan|-?[\d,]*\.?\d+)(?: ±(?P<std>[\d.]+))?(?: \(n=(?P<n>\d+)\)| \([\d.e-]+ %\))?")
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "\n": " ",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Columns with a name each, groups of neighbouring columns with a common one.

    strong: cells (row, column) that stand out.
    """

    groups: tuple[tuple[str, int], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[tuple[int, int]] = frozenset()

    @property
    def names(self) -> list[str]:
        """Of the columns, with that of their group."""
        groups = [name for name, size in self.groups for _ in range(size)] or [""] * len(self.header)
        return [f"{group} {name}".strip() for group, name in zip(groups, self.header, strict=True)]

    def text(self) -> str:
        """For the terminal: the first column left, all others right."""
        widths = [max(len(row[i]) for row in (self.header, *self.rows)) for i in range(len(self.header))]
        spans, start = [], 0
        for name, size in self.groups:  # a long name makes the last column of its group wider
            missing = len(name) - sum(widths[start : start + size]) - 2 * (size - 1)
            widths[start + size - 1] += max(missing, 0)
            spans.append(name.ljust(sum(widths[start : start + size]) + 2 * (size - 1)))
            start += size
        lines = ["  ".join(spans)] if any(name for name, _ in self.groups) else []
        for row in (self.header, *self.rows):
            lines.append(
                "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            )
        return "\n".join(line.rstrip() for line in lines)

    def markdown(self) -> str:
        lines = [self.names, ["---"] + ["---:"] * (len(self.header) - 1)]
        for r, row in enumerate(self.rows):
            lines.append([f"**{cell}**" if (r, c) in self.strong else cell for c, cell in enumerate(row)])
        head, rule, *body = lines
        clean = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *body)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (clean[0], rule, *clean[1:]))

    def csv(self) -> str:
        """For machines: numbers without commas, standard deviations and counts of seeds in columns of their own."""
        columns = []
        for c, name in enumerate(self.names):
            cells = [row[c] for row in self.rows]
            found = [CELL.fullmatch(cell) for cell in cells]
            columns.append(
                [
                    name,
                    *(one["value"].replace(",", "") if one else cell for one, cell in zip(found, cells, strict=True)),
                ]
            )
            for part in ("std", "n"):
                if any(one and one[part] for one in found):
                    columns.append([f"{name} {part}", *((one[part] or "") if one else "" for one in found)])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue()

    def latex(self) -> str:
        """For booktabs."""
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule"]
        if any(name for name, _ in self.groups):
            heads, rules, start = [], [], 1
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
    return comparison_table(compared(runs, kind, form))


def comparison_table(comparison: Comparison) -> Table:
    """Ratios x (method, plain and refit): the metric in percent, with its standard deviation if there are several seeds.

    Strong is the best of every row.
    """
    groups: list[tuple[str, int]] = [("", 1)]
    columns = [[f"{comparison.what} {comparison.done}", "dense", *map(shown_ratio, comparison.ratios)]]
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
    """One line per run: how good it is dense, in percent, how long it took. Columns that say nothing are left out."""
    metrics = {SHOWN[run.metric] for run in runs}
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    names = (
        "run",
        "task",
        "recipe",
        "seed",
        "epochs",
        f"test {metric}",
        f"validation {metric}",
        "time",
        "images/s",
        "status",
    )
    rows = [
        (
            run.label,
            run.task,
            run.name,
            str(run.config.get("seed", "-")),
            _epochs(run),
            _plain(run.measured("test"), ".2f"),
            _plain(run.measured("validation"), ".2f"),
            _time(run.fact("seconds")),
            _plain(run.fact("images_per_second"), ",.0f"),
            "finished"
            if run.finished
            else "failed"
            if any(note.startswith("failed:") for note in run.notes)
            else "unfinished",
        )
        for run in runs
    ]
    one_task = len({run.task for run in runs}) == 1
    kept = [
        i for i, name in enumerate(names) if any(row[i] != "-" for row in rows) and not (name == "task" and one_task)
    ]
    return Table((), tuple(names[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def shown_ratio(ratio: float) -> str:
    return f"{100 * ratio:.4g}%"


def _latex(text: str) -> str:
    """Escaped; a standard deviation is set close to its mean."""
    parts = [re.sub("|".join(map(re.escape, LATEX)), lambda found: LATEX[found[0]], part) for part in text.split(" ±")]
    return r"$\,\pm\,$".join(parts)


def _latex_row(cells: Sequence[str]) -> str:
    return _row(map(_latex, cells))


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _columns(series: Series, comparison: Comparison) -> list[tuple[str, list[Spread | None]]]:
    pairs = [series.at(ratio) or (None, None) for ratio in comparison.ratios]
    found: list[tuple[str, list[Spread | None]]] = [("plain", [pair[0] for pair in pairs])]
    if any(series.refit):
        found.append(("refit", [pair[1] for pair in pairs]))
    return found


def cell_of(value: Spread | None, series: Series) -> str:
    """Mean ± standard deviation; n where a seed is missing."""
    if value is None:
        return "-"
    deviation = f" ±{value.deviation:.2f}" if value.count > 1 and math.isfinite(value.mean) else ""
    fewer = f" (n={value.count})" if value.count < series.seeds else ""
    return f"{value.mean:.2f}{deviation}{fewer}"


def _epochs(run: Run) -> str:
    """As many as there are, of how many there will be."""
    whole = epochs_of(run)
    return str(whole) if run.finished or len(run.epochs) == whole else f"{len(run.epochs)} of {whole}"


def _plain(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None else "-"


def _time(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    hours, rest = divmod(round(seconds), 3600)
    return (
        f"{hours} h {rest // 60} min"
        if hours
        else f"{rest // 60} min {rest % 60} s"
        if rest >= 60
        else f"{seconds:.1f} s"
    )
