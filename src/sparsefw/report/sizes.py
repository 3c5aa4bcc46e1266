"""How small? Every method at every ratio: what is left, how good it is, and the command that makes that network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable

from sparsefw.kinds import kind_of
from sparsefw.report.records import Run, Size
from sparsefw.report.series import Comparison, Series
from sparsefw.report.tables import Table, cell_of, shown_ratio

COLUMNS = {"parameters": "parameters", "macs": "MACs", "bytes": "bytes", "milliseconds": "ms"}
MISSING = "not measured"


def sizes_table(comparison: Comparison, runs: Iterable[Run]) -> Table:
    """A row for every ratio and method, the dense networks first."""
    told = _told(comparison)
    header = (f"{comparison.what} {comparison.done}", *sizes_header(comparison))
    rows = [("dense", *_row(one, comparison, told, None, "")) for one in comparison.series]
    for ratio, found in sizes_rows(comparison, runs).items():
        rows += [(shown_ratio(ratio), *row) for row in found]
    return Table((), header, tuple(rows))


def sizes_header(comparison: Comparison) -> tuple[str, ...]:
    refit = ("refit",) if any(any(one.refit) for one in comparison.series) else ()
    return ("method", "plain", *refit, *(COLUMNS[key] for key in _told(comparison)), "command")


def sizes_rows(comparison: Comparison, runs: Iterable[Run]) -> dict[float, list[tuple[str, ...]]]:
    """Ratio -> a row per method; a method without a point at that ratio says so."""
    told, folders = _told(comparison), {run.folder: run for run in runs}
    return {
        ratio: [
            _row(one, comparison, told, ratio, compress_command(folders[one.folder], one, comparison.kind, ratio))
            for one in comparison.series
        ]
        for ratio in comparison.ratios
    }


def compress_command(run: Run, series: Series, kind: str, ratio: float) -> str:
    """What makes the physically smaller network."""
    ((option, amount),) = kind_of(kind).request(ratio).items()
    words = [
        "sparsefw",
        "compress",
        str(run.folder),
        f"--{option}",
        amount if isinstance(amount, str) else f"{amount:.6g}",
    ]
    own = run.config.get("curve")
    usual = own.get("calibration") if isinstance(own, dict) else None
    how = series.how
    words += ["--score", how.score] if how.score != type(how)().score else []
    words += ["--allocation", how.allocation] if how.allocation is not None else []
    words += ["--calibration", str(how.calibration)] if how.calibration not in (None, usual) else []
    model = run.config.get("model")
    name = str(model.get("name", "")) if isinstance(model, dict) else ""
    words += ["--trust"] if ":" in name and name.partition(":")[0] not in ("timm", "torchvision") else []
    return shlex.join([*words, "-o", str(run.folder / f"small-{kind}-{100 * ratio:.4g}")])


def _row(one: Series, comparison: Comparison, told: list[str], ratio: float | None, command: str) -> tuple[str, ...]:
    name, refit = comparison.names[one.method], "refit" in sizes_header(comparison)
    if ratio is None:
        return (name, cell_of(one.dense, one), *([""] * refit), *(_size(one.dense_size, key, None) for key in told), "")
    if ratio not in one.ratios:
        return (name, MISSING, *([""] * refit), *([""] * len(told)), "")
    i = one.ratios.index(ratio)
    sizes = [_size(one.sizes[i], key, one.dense_size) for key in told]
    return (name, cell_of(one.plain[i], one), *([cell_of(one.refit[i], one)] * refit), *sizes, command)


def _told(comparison: Comparison) -> list[str]:
    """The sizes that some method tells."""
    sizes = [size for one in comparison.series for size in one.sizes]
    return [key for key in COLUMNS if any(getattr(size, key) is not None for size in sizes)]


def _size(size: Size, key: str, dense: Size | None) -> str:
    value = getattr(size, key)
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:.3f}" if key == "milliseconds" else f"{value:,.0f}"
    whole = None if dense is None else getattr(dense, key)
    return f"{text} ({100 * value / whole:.3g} %)" if whole else text
