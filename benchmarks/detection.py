"""mAP of a small detector at every size, trained once by SGD and once by SFW over sizes, on drawn circles, squares and triangles.

    python benchmarks/detection.py [--steps 1000] [--images 4000] [--test 500]

Filters are physically removed: "as cut" with nothing recovered, "plain" with BatchNorm statistics recomputed, "refit" with the
remaining weights fitted to the dense network on 1,000 training images, without labels. Network, images and mAP are those of
examples/detector.py. Writes a table, a picture and all figures to benchmarks/results/. Takes 15 minutes on a core.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from shared import RESULTS, markdown_table, write_record
from sparsefw import compress, curve
from sparsefw.environment import environment
from sparsefw.plotting.charts import Axis, Chart, Line, spread_of
from sparsefw.plotting.figure_io import save_figure
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.plotting.palette import line_styles

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from detector import detections, draw, mean_average_precision, train

METHODS = {"SGD": "sgd", "SFW over sizes": "sparsefw"}
AT = (0.3, 0.5, 0.7)
FORMS = ("as cut", "plain", "refit")


def precisions(method: str, images: int, test: int, steps: int, width: int = 16) -> dict[str, list[float]]:
    """Train, and return the mAP in %, by form: of the whole network and of those without a share of their filters."""
    data = draw(images, seed=1)
    shown, *true = draw(test, seed=2)
    calibration = data[0][:1000].split(100)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        parts = [model.eval()(part) for part in shown.split(100)]
        predicted: tuple[Tensor, ...] = tuple(map(torch.cat, zip(*parts, strict=True)))
        return 100 * mean_average_precision(detections(predicted), *true)

    net = train(method, *data, steps=steps, width=width)
    cut = [evaluate(compress(net, filters=ratio, example=shown[:2]).model) for ratio in AT]
    sizes = curve(net, "filters", AT, form="removed", calibration=calibration, evaluate=evaluate, progress=False)
    points = sizes.points
    print(method, sizes, sep="\n", flush=True)
    return {
        "as cut": [evaluate(net), *cut],
        "plain": [sizes.dense, *(point.plain for point in points)],
        "refit": [sizes.dense, *(point.refit for point in points if point.refit is not None)],
        "parameters": [point.costs.parameters for point in points if point.costs is not None],
    }


def render(figures: dict[str, dict[str, list[float]]]) -> str:
    rows = [[f"{method}, {form}", *(f"{v:.1f}" for v in of[form])] for method, of in figures.items() for form in FORMS]
    return markdown_table(["mAP@0.5 in %, filters removed", "none", *(f"{ratio:.0%}" for ratio in AT)], rows)


def chart_of(figures: dict[str, dict[str, list[float]]], subtitle: str) -> Chart:
    """Return the figures over the share of the filters that is removed: plain dashed, refit solid."""
    styles = line_styles(METHODS)
    x = {"ratio": [100.0 * ratio for ratio in (0.0, *AT)]}
    lines = [
        Line(f"{method}, {form}", method, form, styles[method], form == "refit", x, [spread_of([v]) for v in of[form]])
        for method, of in figures.items()
        for form in ("plain", "refit")
    ]
    axis = Axis("ratio", "filters removed from every layer, in %", unit="%")
    return Chart(tuple(lines), (axis,), "mAP@0.5 in %", title="A detector, trained once", subtitle=subtitle)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--test", type=int, default=500)
    args = parser.parse_args(arguments)
    figures = {method: precisions(method, args.images, args.test, args.steps) for method in METHODS}
    about = environment()
    command = shlex.join(["python", "benchmarks/detection.py", *(sys.argv[1:] if arguments is None else arguments)])
    line = f"{args.steps} steps of 32 images, one seed, {args.test} test images"
    text = render(figures)
    print(text)
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    told = f"`{command}`: {line}; {about['hardware']['cpu']}, {about['date']}, {versions}."
    (RESULTS / "detection-cpu.md").write_text(f"# mAP of a small detector at every size\n\n{told}\n\n{text}\n")
    write_record(RESULTS / "detection-cpu.json", {"figures": figures, "command": command, **vars(args), **about})
    save_figure(draw_chart(chart_of(figures, line)), RESULTS / "detection-cpu")


if __name__ == "__main__":
    main()
