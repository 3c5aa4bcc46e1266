"""The numbers behind the figures, for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsefw.report.read import Run
from sparsefw.report.series import SHOWN, Comparison, Series, Spread, compared


@dataclass(frozen=True)
class Table:
    """Columns with a name each, groups of neighbouring columns with a common one; strong: cells (row, column) that stand out."""

    groups: tuple[tuple[str, int], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[tuple[int, int]] = frozenset()

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
        prefix = [name for name, size in self.groups for _ in range(size)] or [""] * len(self.header)
        names = [f"{group} {name}".strip() for group, name in zip(prefix, self.header, strict=True)]
        lines = [names, ["---"] + ["---:"] * (len(names) - 1)]
        for r, row in enumerate(self.rows):
            lines.append([f"**{cell}**" if (r, c) in self.strong else cell for c, cell in enumerate(row)])
        head, rule, *body = lines
        clean = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *body)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (clean[0], rule, *clean[1:]))


def ratio_table(runs: Sequence[Run], kind: str, form: str) -> Table:
    """Ratios x (method, plain and refit): the metric in percent, with its standard deviation if there are several seeds.

    Strong is what loses at most one point against the same method's dense network.
    """
    comparison = compared(runs, kind, form)
    groups: list[tuple[str, int]] = [("", 1)]
    columns = [[f"{comparison.what} {comparison.done}", "dense", *(f"{ratio:.0%}" for ratio in comparison.ratios)]]
    strong: set[tuple[int, int]] = set()
    for series in comparison.series:
        seeds = f" ({series.seeds} seeds)" if series.seeds > 1 else ""
        parts = _columns(series, comparison)
        groups.append((comparison.names[series.method] + seeds, len(parts)))
        for name, values in parts:
            dense = _cell(series.dense, series) if name == "plain" else ""
            strong |= {(row, len(columns)) for row, value in enumerate(values, 1) if value and series.keeps(value)}
            columns.append([name, dense, *(_cell(value, series) for value in values)])
    header, *rows = zip(*columns, strict=True)
    return Table(tuple(groups), header, tuple(rows), frozenset(strong))


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
            str(len(run.epochs)),
            _plain(run.measured("test"), ".2f"),
            _plain(run.measured("validation"), ".2f"),
            _time(run.fact("seconds")),
            _plain(run.fact("images_per_second"), ",.0f"),
            "finished" if run.finished else "unfinished",
        )
        for run in runs
    ]
    one_task = len({run.task for run in runs}) == 1
    kept = [
        i for i, name in enumerate(names) if any(row[i] != "-" for row in rows) and not (name == "task" and one_task)
    ]
    return Table((), tuple(names[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def _columns(series: Series, comparison: Comparison) -> list[tuple[str, list[Spread | None]]]:
    pairs = [series.at(ratio) or (None, None) for ratio in comparison.ratios]
    found: list[tuple[str, list[Spread | None]]] = [("plain", [pair[0] for pair in pairs])]
    if any(series.refit):
        found.append(("refit", [pair[1] for pair in pairs]))
    return found


def _cell(value: Spread | None, series: Series) -> str:
    if value is None:
        return "-"
    deviation = f" ±{value.deviation:.2f}" if value.count > 1 and math.isfinite(value.mean) else ""
    fewer = f" (n={value.count})" if value.count < series.seeds else ""
    return f"{value.mean:.2f}{deviation}{fewer}"


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
