"""Every method at every ratio: its metric, its sizes, and the command that makes that network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence

from sparsefw.kinds import kind_of
from sparsefw.plotting.charts import Spread
from sparsefw.recovery_words import REFIT
from sparsefw.report.records import Run
from sparsefw.report.series import Comparison, Series
from sparsefw.report.tables import Table, cell_of, shown_ratio
from sparsefw.runfolder.schema import CurveSettings, Size
from sparsefw.text import shell_path

COLUMNS = {"parameters": "parameters", "macs": "MACs", "bytes": "bytes", "milliseconds": "ms"}
MISSING = "not measured"


def sizes_table(comparison: Comparison, runs: Iterable[Run]) -> Table:
    """Return a row for every ratio and method, the dense networks first."""
    header = (f"{comparison.units} {comparison.removal}", *sizes_header(comparison))
    rows = [("dense", *_dense_row(series, comparison)) for series in comparison.series]
    for ratio, size_rows in sizes_rows(comparison, runs).items():
        rows += [(shown_ratio(ratio), *row) for row in size_rows]
    return Table((), header, tuple(rows))


def sizes_header(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of the columns of `sizes_rows`."""
    return (
        "method",
        "plain",
        *_recoveries(comparison),
        *(COLUMNS[key] for key in _measured_sizes(comparison)),
        "command",
    )


def sizes_rows(comparison: Comparison, runs: Iterable[Run]) -> dict[float, list[tuple[str, ...]]]:
    """Return ratio -> a row per method; a method without a point at that ratio says so."""
    runs_by_folder = {run.folder: run for run in runs}
    return {
        ratio: [_row(series, comparison, ratio, runs_by_folder[series.folder]) for series in comparison.series]
        for ratio in comparison.ratios
    }


def compress_command(run: Run, settings: CurveSettings, kind: str, ratio: float) -> str:
    """Return the command that makes the physically smaller network of a run."""
    ((option, amount),) = kind_of(kind).compress_arguments(ratio).items()
    amount = amount if isinstance(amount, str) else f"{amount:.6g}"
    words = ["sparsefw", "compress", shell_path(run.folder), f"--{option}", shlex.quote(amount)]
    if settings.score != CurveSettings().score:
        words += ["--score", shlex.quote(settings.score)]
    if settings.allocation is not None:
        words += ["--allocation", shlex.quote(settings.allocation)]
    if settings.calibration not in (None, run.record.config.calibration):
        words += ["--calibration", str(settings.calibration)]
    return " ".join([*words, "-o", shell_path(run.folder / f"small-{kind}-{100 * ratio:.4g}")])


def _dense_row(series: Series, comparison: Comparison) -> tuple[str, ...]:
    others = [""] * len(_recoveries(comparison))
    sizes = [_size(series.dense_size, key, None) for key in _measured_sizes(comparison)]
    return (comparison.names[series.method], cell_of(series.dense, series), *others, *sizes, "")


def _row(series: Series, comparison: Comparison, ratio: float, run: Run) -> tuple[str, ...]:
    name = comparison.names[series.method]
    keys = _measured_sizes(comparison)
    others = _recoveries(comparison)
    if ratio not in series.ratios:
        return (name, MISSING, *([""] * len(others)), *([""] * len(keys)), "")
    i = series.ratios.index(ratio)
    refits = [cell_of(values(series)[i], series) for values in others.values()]
    sizes = [_size(series.sizes[i], key, series.dense_size) for key in keys]
    command = compress_command(run, series.settings, comparison.kind, ratio)
    return (name, cell_of(series.plain[i], series), *refits, *sizes, command)


def _recoveries(comparison: Comparison) -> dict[str, Callable[[Series], Sequence[Spread | None]]]:
    """Return how to read every recovery but plain that was measured of some method, by the name of its column."""
    columns: dict[str, Callable[[Series], Sequence[Spread | None]]] = {
        REFIT: lambda series: series.refit,
        "chosen": lambda series: series.chosen,
    }
    return {
        name: values for name, values in columns.items() if any(any(values(series)) for series in comparison.series)
    }


def _measured_sizes(comparison: Comparison) -> list[str]:
    """Return the sizes that were measured of some method."""
    sizes = [size for series in comparison.series for size in series.sizes]
    return [key for key in COLUMNS if any(getattr(size, key) is not None for size in sizes)]


def _size(size: Size, key: str, dense: Size | None) -> str:
    value = getattr(size, key)
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:.3f}" if key == "milliseconds" else f"{value:,.0f}"
    whole = None if dense is None else getattr(dense, key)
    return f"{text} ({100 * value / whole:.3g} %)" if whole else text
