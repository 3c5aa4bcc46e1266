"""Trains on handwritten digits once, shrinks to any size, and shows what SGD loses and SparseFW keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from sparsefw.cli.compress_run import compress_run
from sparsefw.cli.output import Outcome, say
from sparsefw.report import curves_figure, ratio_table, read_runs, save_figure, write_page
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import Study

RECIPE = "digits-resnet"
CURVES = {"sgd": ("filters", "rank"), "filters": ("filters",), "rank": ("rank",)}  # variant -> what is removed from it
SHOWN_KINDS = ("filters", "rank")
DROP = 2  # points of accuracy that the small model may lose

SHOWN = """\
What you just saw: the same small ResNet was trained three times on handwritten digits, once by SGD, and by SparseFW once with few
filters and once with few singular directions allowed to grow. Then filters or singular values were removed, and nothing was
trained again: "plain" only recomputes the BatchNorm statistics, "refit" also fits what is left in closed form to what the whole
network computed, without labels. The small model was chosen on validation images; the figures are of test images."""
NEXT = {
    "sparsefw compress {run}/filters --filters 0.8 -o small --onnx": "another size, from the same training",
    "sparsefw train digits-resnet-weights": "another constraint",
    "sparsefw list recipes": "CIFAR-10, ImageNet, CityScapes, ..., each with --data DIR",
}


def run_demo(folder: Path, seed: int, quiet: bool) -> Outcome:
    """Train, shrink, draw and explain; what lies in the folder already is not done again."""
    torch.set_num_threads(1)  # a small network gains little from threads, and on shared cores they wait for each other
    studies = {}
    for variant in CURVES:
        config = load_recipe(f"{RECIPE}-{variant}", seed=seed)
        fit(config, folder / variant, quiet=quiet)
        studies[variant] = Study.open(folder / variant)
    _measure_curves(studies, folder, quiet)
    if not quiet:
        say(f"looking for the smallest network within {DROP} points of the dense one ...")
    how = dict(target=f"drop={DROP}", by=["filters"], progress=False if quiet else None)
    small = compress_run(studies["filters"], folder / "small", True, how)
    judges = studies["filters"].data.validation
    assert judges is not None  # the recipe holds some out

    runs, damaged = read_runs([folder / variant for variant in CURVES])
    pictures = [save_figure(curves_figure(runs, kind, "removed"), folder / kind)[0] for kind in SHOWN_KINDS]
    page = write_page(folder / "index.html", runs, damaged, intro=SHOWN)
    lines = []
    for kind in SHOWN_KINDS:
        lines.append(f"{kind} removed, never retrained: accuracy in % on the test images")
        lines.append(ratio_table(runs, kind, "removed").text() + "\n")
    lines.append(f"the smallest network within {DROP} points of the dense one on the {len(judges)} validation images:")
    lines += [small.text, "", SHOWN, "", f"Look at {', '.join(map(str, pictures))}, and at {page} in a browser."]
    record = {
        "page": page,
        "pictures": pictures,
        "small": small.record,
        "curves": {
            run.folder.name: {
                curve.kind: {"dense": curve.dense, "points": list(map(asdict, curve.points))} for curve in run.curves
            }
            for run in runs
        },
    }
    return Outcome(record, "\n".join([*lines, _next_commands(folder)]))


def _measure_curves(studies: Mapping[str, Study], folder: Path, quiet: bool) -> None:
    ratios = studies["filters"].config.curve.at
    for variant, kinds in CURVES.items():
        for kind in kinds:
            if (folder / variant / "curves" / f"{kind}-removed.json").exists():
                continue
            if not quiet:
                say(f"removing {kind} from the network trained as {variant}, at every ratio ...")
            studies[variant].curve(kind, ratios, "removed", progress=False if quiet else None)


def _next_commands(folder: Path) -> str:
    commands = {command.format(run=folder): about for command, about in NEXT.items()}
    width = max(map(len, commands))
    return "\n".join(["What to type next:", *(f"  {command:{width}}   {about}" for command, about in commands.items())])
