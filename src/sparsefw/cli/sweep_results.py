"""Puts the results of a sweep into words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsefw.report.tables import Table
from sparsefw.sweep.select import in_figures
from sparsefw.sweep.sweep_plan import in_words


def results_text(found: Mapping[str, Any], folder: Path) -> str:
    """Show both tables, what they leave out, and what failed."""
    over = "of one seed" if found["seeds"] == 1 else f"mean ± standard deviation over {found['seeds']} seeds"
    lines = [
        f"{found['sweep']}: {found['kind']} masked, nothing retrained; test figures in %, {over},\n"
        "of the ONE configuration per row that has the best mean validation figure over all ratios",
        results_table(found).text(),
        "the same networks with what is removed really removed (in residual networks that is more), and refitted in closed form:",
        results_table(found, "removed_refit").text(),
    ]
    for name, row in found["rows"].items():
        if row.get("test") and len(row["test"]["seeds"]) < found["seeds"]:
            lines.append(f"{name}: over {len(row['test']['seeds'])} of {found['seeds']} seeds only")
    if any(row.get("edges") for row in found["rows"].values()):
        lines.append("*: the smallest or largest value that was tried; a wider grid might do better")
    for name, row in found["rows"].items():
        lines += [f"failed: {name} {job}: {error}" for job, error in row["failed"].items()]
    if any(row["failed"] for row in found["rows"].values()):
        lines.append("what failed has an error.txt in its folder; the same command with --retry tries it again")
    return "\n".join([*lines, f"{folder}: next, `sparsefw report {folder} -o {folder}/report.html`"])


def results_table(found: Mapping[str, Any], figures: str = "plain") -> Table:
    """Tabulate methods x ratios, as in the paper. figures: "plain", masked; or "removed_refit"."""
    header = ("", "dense", *(f"{100 * ratio:g} %" for ratio in found["at"]), "chosen", "of")
    rows = []
    for name, row in found["rows"].items():
        test = row.get("test")
        cells = [in_figures(one) for one in (test["dense"], *test[figures])] if test else ["-"] * (len(found["at"]) + 1)
        rows.append(
            (name, *cells, in_words(row.get("settings") or {}, row.get("edges") or ()), str(row["configurations"]))
        )
    return Table((), header, tuple(rows))
