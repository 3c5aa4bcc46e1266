"""The results of a sweep as tables and text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsefw.report.tables import Table
from sparsefw.sweep.results import figure_cells
from sparsefw.sweep.sweep_plan import settings_text
from sparsefw.text import shell_path


def results_text(results: Mapping[str, Any], folder: Path) -> str:
    """Return the tables of a sweep's results, with notes on incomplete rows and failures."""
    rows = results["rows"]
    seeds = results["seeds"]
    spread = "of one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    lines = [
        f"{results['sweep']}: {results['kind']} masked, nothing retrained; test figures in %, {spread},\n"
        "of the one configuration per row with the best mean validation figure over all ratios",
        results_table(results).text(),
        "the same networks, physically smaller (which removes more in residual networks) and refitted in closed form:",
        results_table(results, "removed_refit").text(),
    ]
    for name, row in rows.items():
        if row.get("test") and len(row["test"]["seeds"]) < seeds:
            lines.append(f"{name}: only {len(row['test']['seeds'])} of {seeds} seeds")
    if any(row.get("edges") for row in rows.values()):
        lines.append("*: the smallest or largest value tried; a wider grid might do better")
    for name, row in rows.items():
        lines += [f"failed: {name} {job}: {error}" for job, error in row["failed"].items()]
    if any(row["failed"] for row in rows.values()):
        lines.append("see error.txt in the folder of a failed job; the same command with --retry tries it again")
    page = shell_path(folder / "report.html")
    lines.append(f"{folder}: next, `sparsefw report {shell_path(folder)} -o {page}`")
    return "\n".join(lines)


def results_table(results: Mapping[str, Any], figures: str = "plain") -> Table:
    """Return a table of rows x ratios, as in the paper; figures: "plain" (masked) or "removed_refit"."""
    header = ("", "dense", *(f"{100 * ratio:g} %" for ratio in results["at"]), "chosen", "of")
    rows = []
    for name, row in results["rows"].items():
        cells = figure_cells(row, len(results["at"]), figures)
        chosen = settings_text(row.get("settings") or {}, row.get("edges") or ())
        rows.append((name, *cells, chosen, str(row["configurations"])))
    return Table((), header, tuple(rows))
