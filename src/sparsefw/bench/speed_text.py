"""Tables of measured speeds as text: as shares of the speed of SGD, or as costs of a step."""

from __future__ import annotations

from typing import Any

from sparsefw.bench.method_rows import BASELINE_ROW
from sparsefw.bench.training_speed import STEADY


def speeds_text(record: dict[str, Any]) -> str:
    """Return a table of images per second, their spread, and memory."""
    rows = record["rows"].values()
    on_gpu = bool(record["rows"][BASELINE_ROW]["peak_bytes"])
    width = max(len(row["label"]) for row in rows)
    lines = [
        f"{record['recipe']} on {record['engine']}",
        record["images"],
        f"{'':{width}}  images/s   share of SGD's   ms/step        spread" + "   peak MiB   x SGD's" * on_gpu,
    ]
    for row in rows:
        spread = "{:.3f}..{:.3f}".format(*row["spread"])
        memory = f"   {row['peak_bytes'] / 2**20:8,.0f}   {row['memory_share']:7.2f}" if on_gpu else ""
        rate = f"{row['images_per_second']:,.{0 if row['images_per_second'] >= 100 else 1}f}"
        lines.append(
            f"{row['label']:{width}}  {rate:>8}   {row['share']:14.3f}   {row['milliseconds']:7.2f}"
            f"  {spread:>12}{memory}"
        )
    lines.append(f"spread: fastest and slowest stretch over the median; {_drift_text(record)}")
    lines += [f"{row['label']} ran on {row['engine']}" for row in rows if row["engine"] != record["engine"]]
    return "\n".join(lines)


def costs_text(record: dict[str, Any]) -> str:
    """Return a table of the costs of a step, in steps of SGD."""
    rows = record["rows"].values()
    width = max(len(row["label"]) for row in rows)
    lines = [f"{record['recipe']} on {record['engine']}", f"{'':{width}}  cost of a step, SGD's = 1"]
    for row in rows:
        two_passes = "   two passes" if row["passes"] == 2 else ""
        lines.append(f"{row['label']:{width}}  {1 / row['share']:8.2f}{two_passes}")
    return "\n".join([*lines, _drift_text(record)])


def _drift_text(record: dict[str, Any]) -> str:
    """Return by how much the machine changed its speed during the measurement."""
    text = f"SGD at the end against SGD at the start: {record['drift']:+.1%}"
    if abs(record["drift"]) > STEADY:
        text += "; this machine was busy, or changed its speed: measure again when it is idle"
    return text
