"""Cost of one optimizer step against the width of layers, their number, and k: SGD, filters, weights and rank.

    python benchmarks/scaling.py [--quick] [--widths 64 128 ...] [--depths 1 2 ...] [--shares 0.05 0.1 ...]

Writes benchmarks/results/scaling-DEVICE.json and .png. All steps of one setting are timed in turn, round after round, on
the same weights and gradients; on CUDA each is captured in a graph, as in training. Dotted lines are what theory says,
drawn through the point of most work: proportional to the number of weights for SGD, filters and weights; to
n m k for the rank of n x m matrices, of which a step takes a few products with k columns (16 where fewer are wanted).
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from torch import nn

from optimizer import captured, measure
from sparsefw import SFW, constrain
from sparsefw.environment import device_name, environment
from sparsefw.plotting.axes import MARKER_SHAPES
from sparsefw.plotting.canvas import DPI, LARGE_TEXT, NORMAL_TEXT, SMALL_TEXT, place_apart, plain_frame
from sparsefw.plotting.palette import INK, MUTED, TEXT_COLOURS, looks_of
from throughput import RESULTS, slug

KINDS = ("filters", "weights", "rank")
METHODS = ("SGD", *KINDS)
K = 0.1  # where k is not what changes
FULL = {
    "widths": [64, 128, 256, 512, 1024, 2048, 4096],
    "depths": [1, 2, 4, 8, 16, 32, 64],
    "shares": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0],
}
QUICK = {"widths": [64, 128, 256, 512, 1024], "depths": [1, 2, 4, 8, 16], "shares": [0.05, 0.1, 0.3, 0.7, 1.0]}


class Setting(NamedTuple):
    """So many layers of n x m, of which the share k may grow."""

    layers: int
    n: int
    m: int
    k: float

    def network(self, device: str) -> nn.Module:
        """Convolutions of 3 x 3 where m is a multiple of 9, else of 1 x 1; with gradients."""
        torch.manual_seed(0)
        side = 3 if self.m % 9 == 0 else 1
        layer = [nn.Conv2d(self.m // side**2, self.n, side, bias=False) for _ in range(self.layers)]
        net = nn.Sequential(*layer).to(device)
        for p in net.parameters():
            p.grad = torch.randn_like(p) * 1e-3
        return net

    def work(self, method: str) -> float:
        """What the time should be proportional to; nan where all of a matrix is kept, which takes no products."""
        rank = min(self.n, self.m)
        if method == "rank" and self.k == 1:
            return math.nan
        return self.layers * self.n * self.m * (max(1, int(self.k * rank)) if method == "rank" else 1)


class Panel(NamedTuple):
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
    """Of one step by every method. The learning rate is tiny, so that the weights stay what they are."""
    net, sgd = setting.network(device), dict(lr=1e-6, momentum=0.9, weight_decay=5e-4)
    steps: dict[str, Callable[[], object]] = {
        "SGD": torch.optim.SGD(net.parameters(), foreach=True, **sgd).step,
        **{kind: SFW(constrain(net, kind, k=setting.k, w=20.0, report=None), **sgd).step for kind in KINDS},
    }
    if device == "cpu":
        return measure(steps, rounds, device)
    # Some replays in a row: one alone may take less than its launch.
    replays = {name: _repeated(captured(step), 10) for name, step in steps.items()}
    return {name: value / 10 for name, value in measure(replays, rounds, device).items()}


def _repeated(step: Callable[[], object], times: int) -> Callable[[], object]:
    return lambda: [step() for _ in range(times)]


def theory(settings: Sequence[Setting], method: str, measured: Sequence[float]) -> list[float]:
    """Milliseconds in proportion to the work, as large as measured where there is most of it."""
    work = [setting.work(method) for setting in settings]
    most = max(w for w in work if not math.isnan(w))
    scale = statistics.median(ms / w for ms, w in zip(measured, work, strict=True) if w == most)
    return [scale * w for w in work]


def figure(drawn: dict[str, Panel], times: dict[str, dict[str, list[float]]], subtitle: str) -> Figure:
    """times: panel -> method -> milliseconds."""
    found = Figure(figsize=(11.5, 4.6), dpi=DPI)
    FigureCanvasAgg(found)
    style = looks_of(METHODS)
    every = [ms for one in times.values() for values in one.values() for ms in values]
    low, high = min(every) / 1.6, max(every) * 1.5
    for i, (name, panel) in enumerate(drawn.items()):
        axes = found.add_axes((0.055 + 0.3 * i, 0.13, 0.265, 0.6))
        for method, values in times[name].items():
            colour, marker = style[method].colour, MARKER_SHAPES[style[method].marker]
            axes.plot(panel.x, values, color=colour, marker=marker, ms=4.5, lw=2, zorder=3)
            axes.plot(panel.x, theory(panel.settings, method, values), color=colour, lw=0.9, ls=":", zorder=2)
        _dress(axes, panel, (low, high), first=i == 0)
        if i == len(drawn) - 1:
            _name_ends(axes, {method: values[-1] for method, values in times[name].items()}, style)
    left, heading = 0.012, "What a step costs, against the width of layers, their number, and k"
    found.text(left, 0.97, heading, size=LARGE_TEXT, weight="bold", color=INK, va="top")
    found.text(left, 0.905, subtitle, size=SMALL_TEXT, color=MUTED, va="top")
    return found


def _dress(axes: Axes, panel: Panel, limits: tuple[float, float], first: bool) -> None:
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


def _name_ends(axes: Axes, ends: dict[str, float], style: dict[str, tuple[str, str]]) -> None:
    places = [float(axes.transAxes.inverted().transform(axes.transData.transform((1, ms)))[1]) for ms in ends.values()]
    for method, place in zip(ends, place_apart(places, [0.06] * len(ends), 0, 1), strict=True):
        colour = TEXT_COLOURS[style[method][0]]
        axes.text(
            1.05, place, method, transform=axes.transAxes, size=SMALL_TEXT, weight="bold", color=colour, va="center"
        )


def measured(drawn: dict[str, Panel], rounds: int, device: str) -> Iterator[tuple[str, float, dict[str, float]]]:
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
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) or usual for name, usual in (QUICK if args.quick else FULL).items()}
    drawn = panels(**sizes)
    times: dict[str, dict[str, list[float]]] = {name: {method: [] for method in METHODS} for name in drawn}
    for name, x, found in measured(drawn, args.rounds, args.device):
        print(f"{name:6} {x:<6g}" + "".join(f"  {method} {ms:9.3f} ms" for method, ms in found.items()), flush=True)
        for method, ms in found.items():
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
    stem = args.out / f"scaling-{slug(args.device)}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    how = ", captured in a CUDA graph" if result["captured"] else ""
    subtitle = (
        f"Milliseconds of one optimizer step{how}; {result['device']}, {result['date']}. Dotted: proportional to the number"
        " of weights (SGD, filters, weights)\nor to n m k (rank), through the point of most work. Where k is all of n,"
        " nothing has to be chosen."
    )
    figure(drawn, times, subtitle).savefig(stem.with_suffix(".png"), dpi=DPI)
    print(stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
