"""Measures the cost of one optimizer step against the width of layers, their number, and k: SGD, filters, weights and rank.

    python benchmarks/scaling.py [--quick] [--widths 64 128 ...] [--depths 1 2 ...] [--shares 0.05 0.1 ...]

Writes benchmarks/results/scaling-DEVICE.json and .png. All steps of one setting take turns, round after round, on the same
weights and gradients; on CUDA each is captured in a graph, as in training. Dotted lines are the theory, drawn through the point
of most work: proportional to the number of weights for SGD, filters and weights; to n m k for the rank of n x m matrices,
because a step multiplies them a few times by k columns (by 16 if k is smaller).
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from torch import nn

from shared import (
    RESULTS,
    STEP_SETTINGS,
    Step,
    add_random_gradients,
    capture_step,
    default_device,
    device_slug,
    median_milliseconds,
    write_record,
)
from sparsefw import SFW, constrain
from sparsefw.environment import device_name, environment
from sparsefw.plotting.axes import MARKER_SHAPES
from sparsefw.plotting.figure_io import DPI, new_figure
from sparsefw.plotting.labels import LARGE_TEXT, NORMAL_TEXT, SMALL_TEXT, place_apart, plain_frame
from sparsefw.plotting.palette import INK, MUTED, TEXT_COLOURS, LineStyle, line_styles

KINDS = ("filters", "weights", "rank")
METHODS = ("SGD", *KINDS)
K = 0.1  # where another quantity changes
REPLAYS = 10  # timed in a row: one replay alone may take less than its launch
FULL = {
    "widths": [64, 128, 256, 512, 1024, 2048, 4096],
    "depths": [1, 2, 4, 8, 16, 32, 64],
    "shares": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0],
}
QUICK = {"widths": [64, 128, 256, 512, 1024], "depths": [1, 2, 4, 8, 16], "shares": [0.05, 0.1, 0.3, 0.7, 1.0]}


class Setting(NamedTuple):
    """A number of layers of n x m, of which the share k may grow."""

    layers: int
    n: int
    m: int
    k: float

    def network(self, device: str) -> nn.Module:
        """Return convolutions with gradients, of 3 x 3 if m is a multiple of 9, else of 1 x 1."""
        torch.manual_seed(0)
        side = 3 if self.m % 9 == 0 else 1
        layers = [nn.Conv2d(self.m // side**2, self.n, side, bias=False) for _ in range(self.layers)]
        network = nn.Sequential(*layers).to(device)
        add_random_gradients(network)
        return network

    def work(self, method: str) -> float:
        """Return the work to which the time should be proportional; nan if all of a matrix is kept, which needs no products."""
        rank = min(self.n, self.m)
        if method == "rank" and self.k == 1:
            return math.nan
        return self.layers * self.n * self.m * (max(1, int(self.k * rank)) if method == "rank" else 1)


class Panel(NamedTuple):
    """One of the three charts: settings over the values of x."""

    title: str
    x_label: str
    x: Sequence[float]
    settings: Sequence[Setting]


def panels(widths: Sequence[int], depths: Sequence[int], shares: Sequence[float]) -> dict[str, Panel]:
    return {
        "width": Panel(
            f"4 layers of n x n, k = {K:g} n", "width n of the layers", widths, [Setting(4, n, n, K) for n in widths]
        ),
        "depth": Panel(
            f"layers of 256 x 1152, k = {K:g} n", "number of layers", depths, [Setting(d, 256, 1152, K) for d in depths]
        ),
        "k": Panel(
            "4 layers of n x m = 512 x 4608", "k, as a share of n", shares, [Setting(4, 512, 4608, k) for k in shares]
        ),
    }


def milliseconds(setting: Setting, rounds: int, device: str) -> dict[str, float]:
    """Return the milliseconds of one step of every method."""
    network = setting.network(device)
    steps: dict[str, Step] = {"SGD": torch.optim.SGD(network.parameters(), foreach=True, **STEP_SETTINGS).step}
    for kind in KINDS:
        groups = constrain(network, kind, k=setting.k, w=20.0, report=None)
        steps[kind] = SFW(groups, **STEP_SETTINGS).step
    if device == "cpu":
        return median_milliseconds(steps, rounds, device)
    replays = {name: _repeated(capture_step(step), REPLAYS) for name, step in steps.items()}
    return {name: ms / REPLAYS for name, ms in median_milliseconds(replays, rounds, device).items()}


def _repeated(step: Step, times: int) -> Step:
    return lambda: [step() for _ in range(times)]


def theory(settings: Sequence[Setting], method: str, measured: Sequence[float]) -> list[float]:
    """Return milliseconds proportional to the work, equal to the measured ones at the point of most work."""
    work = [setting.work(method) for setting in settings]
    most = max(w for w in work if not math.isnan(w))
    scale = statistics.median(ms / w for ms, w in zip(measured, work, strict=True) if w == most)
    return [scale * w for w in work]


def draw_panels(drawn: dict[str, Panel], times: dict[str, dict[str, list[float]]], subtitle: str) -> Figure:
    """Draw the panels side by side; times: panel -> method -> milliseconds."""
    figure = new_figure(11.5, 4.6)
    style = line_styles({method: "sgd" if method == "SGD" else "sparsefw" for method in METHODS})
    all_times = [ms for methods in times.values() for values in methods.values() for ms in values]
    limits = (min(all_times) / 1.6, max(all_times) * 1.5)
    for i, (name, panel) in enumerate(drawn.items()):
        axes = figure.add_axes((0.055 + 0.3 * i, 0.13, 0.265, 0.6))
        for method, values in times[name].items():
            colour = style[method].colour
            marker = MARKER_SHAPES[style[method].marker]
            axes.plot(panel.x, values, color=colour, marker=marker, ms=4.5, lw=2, zorder=3)
            axes.plot(panel.x, theory(panel.settings, method, values), color=colour, lw=0.9, ls=":", zorder=2)
        _format_axes(axes, panel, limits, first=i == 0)
        if i == len(drawn) - 1:
            _name_ends(axes, {method: values[-1] for method, values in times[name].items()}, style)
    heading = "The cost of a step against the width of layers, their number, and k"
    figure.text(0.012, 0.97, heading, size=LARGE_TEXT, weight="bold", color=INK, va="top")
    figure.text(0.012, 0.905, subtitle, size=SMALL_TEXT, color=MUTED, va="top")
    return figure


def _format_axes(axes: Axes, panel: Panel, limits: tuple[float, float], first: bool) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(FixedLocator(list(panel.x)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    plain_frame(axes)
    axes.tick_params(axis="y", labelleft=first)
    axes.set_xlabel(panel.x_label, size=NORMAL_TEXT, color=INK, labelpad=6)
    axes.set_title(panel.title, size=NORMAL_TEXT, color=INK, loc="left", pad=10)
    if first:
        axes.annotate(
            "ms",
            (0, 1),
            xytext=(-26, -4),
            xycoords="axes fraction",
            textcoords="offset points",
            size=NORMAL_TEXT,
            color=INK,
        )


def _name_ends(axes: Axes, ends: dict[str, float], style: dict[str, LineStyle]) -> None:
    places = [float(axes.transAxes.inverted().transform(axes.transData.transform((1, ms)))[1]) for ms in ends.values()]
    for method, place in zip(ends, place_apart(places, [0.06] * len(ends), 0, 1), strict=True):
        colour = TEXT_COLOURS[style[method].colour]
        axes.text(
            1.05, place, method, transform=axes.transAxes, size=SMALL_TEXT, weight="bold", color=colour, va="center"
        )


def measure_panels(drawn: dict[str, Panel], rounds: int, device: str) -> Iterator[tuple[str, float, dict[str, float]]]:
    for name, panel in drawn.items():
        for x, setting in zip(panel.x, panel.settings, strict=True):
            yield name, x, milliseconds(setting, rounds, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer sizes, for a CPU")
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--depths", type=int, nargs="+")
    parser.add_argument("--shares", type=float, nargs="+")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) or usual for name, usual in (QUICK if args.quick else FULL).items()}
    drawn = panels(**sizes)
    times: dict[str, dict[str, list[float]]] = {name: {method: [] for method in METHODS} for name in drawn}
    for name, x, milliseconds_by_method in measure_panels(drawn, args.rounds, args.device):
        print(
            f"{name:6} {x:<6g}" + "".join(f"  {method} {ms:9.3f} ms" for method, ms in milliseconds_by_method.items()),
            flush=True,
        )
        for method, ms in milliseconds_by_method.items():
            times[name][method].append(ms)
    result: dict[str, Any] = {
        "command": f"python benchmarks/scaling.py {shlex.join(sys.argv[1:])}".strip(),
        "device": device_name(args.device),
        "captured": args.device != "cpu",
        "rounds": args.rounds,
        **environment(),
        "panels": {
            name: {"x": list(panel.x), "settings": panel.settings, "ms": times[name]} for name, panel in drawn.items()
        },
    }
    stem = args.out / f"scaling-{device_slug(args.device)}"
    write_record(stem.with_suffix(".json"), result)
    how = ", captured in a CUDA graph" if result["captured"] else ""
    subtitle = (
        f"Milliseconds of one optimizer step{how}; {result['device']}, {result['date']}. Dotted: proportional to the number"
        " of weights (SGD, filters, weights)\nor to n m k (rank), through the point of most work. If k is all of n,"
        " nothing has to be chosen."
    )
    draw_panels(drawn, times, subtitle).savefig(stem.with_suffix(".png"), dpi=DPI)
    print(stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
