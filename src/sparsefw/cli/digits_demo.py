"""The demo: trains on handwritten digits, compresses to many sizes, and shows what SGD loses and training over sizes keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from sparsefw.cli.compress_run import compress_run
from sparsefw.cli.output import Outcome
from sparsefw.report import curves_figure, ratio_table, read_runs, save_figure, write_page
from sparsefw.runfolder import RunPaths
from sparsefw.text import print_status, shell_path
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

RECIPE = "digits-resnet"
CURVES = {"sgd": ("filters", "rank"), "sizes": ("filters",), "rank": ("rank",)}  # variant -> the kinds to remove
SHOWN_KINDS = ("filters", "rank")
OVER_SIZES = "sizes"  # the variant that is compressed in the end
DROP = 1  # percentage points of accuracy that the small network may lose

EXPLANATION = """\
What you just saw: the same small ResNet was trained three times on handwritten digits: by SGD; by SparseFW over sizes,
where few filters may grow, and the network without a random share of them learns what the whole one says, at twice the
cost; and by SparseFW with few singular directions allowed to grow. Then filters or singular values were removed, and
nothing was trained again. "plain" only recomputes the BatchNorm statistics; "refit" also fits the remaining weights, in
closed form and without labels, to the outputs of the whole network. The small network was chosen on validation images; all
figures are of test images."""
NEXT_COMMANDS = {
    "sparsefw compress {run}/sizes --filters 0.8 -o small --onnx": "another size, from the same training",
    "sparsefw finetune {run}/sgd": "teach the network of SGD to work at every size, in five epochs",
    "sparsefw list recipes": "CIFAR-10, ImageNet, Cityscapes, ..., each with --data DIR",
}


def run_demo(folder: Path, seed: int, quiet: bool) -> Outcome:
    """Train, compress, draw and explain; finished trainings and curves in the folder are used as they are."""
    torch.set_num_threads(1)  # a small network gains little from threads, and on shared cores they wait for each other
    trained_runs = {}
    for variant in CURVES:
        config = load_recipe(f"{RECIPE}-{variant}", seed=seed)
        fit(config, folder / variant, quiet=quiet)
        trained_runs[variant] = TrainedRun.open(folder / variant)
    _measure_curves(trained_runs, folder, quiet)
    if not quiet:
        print_status("searching the smallest network within a point of the dense one ...")
    settings = dict(target=f"drop={DROP}", by=["filters"], progress=False if quiet else None)
    small = compress_run(trained_runs[OVER_SIZES], folder / "small", ["onnx"], False, settings)
    validation = trained_runs[OVER_SIZES].data.validation
    assert validation is not None  # the recipe holds some images out

    runs, damaged = read_runs([folder / variant for variant in CURVES])
    pictures = [save_figure(curves_figure(runs, kind, "removed"), folder / kind)[0] for kind in SHOWN_KINDS]
    page = write_page(folder / "index.html", runs, damaged, intro=EXPLANATION)
    lines = []
    for kind in SHOWN_KINDS:
        lines.append(f"{kind} removed, never retrained: accuracy in % on the test images")
        lines.append(ratio_table(runs, kind, "removed").text() + "\n")
    lines.append(f"the smallest network within a point of the dense one on the {len(validation)} validation images:")
    lines += [small.text, "", EXPLANATION, ""]
    lines.append(f"Look at {', '.join(map(str, pictures))}, and open {page} in a browser.")
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


def _measure_curves(trained_runs: Mapping[str, TrainedRun], folder: Path, quiet: bool) -> None:
    ratios = trained_runs[OVER_SIZES].config.curve.at
    for variant, kinds in CURVES.items():
        for kind in kinds:
            if RunPaths(folder / variant).curve(kind, "removed").exists():
                continue
            if not quiet:
                print_status(f"removing {kind} from the network of {variant}, at every ratio ...")
            trained_runs[variant].curve(kind, ratios, "removed", progress=False if quiet else None)


def _next_commands(folder: Path) -> str:
    commands = {command.format(run=shell_path(folder)): about for command, about in NEXT_COMMANDS.items()}
    width = max(map(len, commands))
    return "\n".join(["What to type next:", *(f"  {command:{width}}   {about}" for command, about in commands.items())])
