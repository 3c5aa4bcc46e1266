"""What calibration without any data is worth: filters removed from networks that plain SGD trained, then evaluated.

    python benchmarks/synthetic_calibration.py [--networks digits-resnet-sgd timm:test_resnet] [--seeds 0 1]

Networks: the recipe digits-resnet-sgd, and timm's test_resnet as examples/trained.py trains it. For every share of removed
filters: nothing recovered; on synthetic inputs, made from the statistics of batch norms; on 1,024 training images. Prints a
table, and writes it with all figures. Takes twenty minutes on a core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from shared import RESULTS, markdown_table, write_record
from sparsefw import compress, curve
from sparsefw.environment import environment
from sparsefw.models import build
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

AT = (0.1, 0.2, 0.3, 0.4, 0.5)
IMAGES = 1024
Metric = Callable[[nn.Module], float]


def digits_resnet(seed: int) -> tuple[nn.Module, list[Tensor], Metric]:
    with tempfile.TemporaryDirectory() as folder:
        fit(load_recipe("digits-resnet-sgd", seed=seed), Path(folder) / "run", quiet=True)
        run = TrainedRun.open(Path(folder) / "run")
    return run.model, list(run.calibration(IMAGES)), run.metric()


def test_resnet(seed: int) -> tuple[nn.Module, list[Tensor], Metric]:
    from trained import digits, inputs, train

    torch.manual_seed(seed)
    network = build("timm:test_resnet", num_classes=10)
    (photos, labels), (test_photos, test_labels) = digits("train"), digits("test")
    x, test = inputs(photos), inputs(test_photos)
    train(network, x, torch.tensor(labels))

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        return 100 * float((model.eval()(test).argmax(1) == torch.tensor(test_labels)).float().mean())

    return network.eval(), list(x[torch.randperm(len(x))[:IMAGES]].split(64)), accuracy


NETWORKS = {"digits-resnet-sgd": digits_resnet, "timm:test_resnet": test_resnet}


def measure(network: nn.Module, images: list[Tensor], accuracy: Metric) -> dict[str, list[float]]:
    """Return accuracies, of the dense network first, by how the smaller ones were recovered."""
    example = images[0][:2]
    nothing = [accuracy(compress(network, filters=ratio, example=example).model) for ratio in AT]
    found = {"nothing": [accuracy(network), *nothing]}
    for word, calibration in (("synthetic", "synthetic"), ("images", images)):
        sizes = curve(
            network,
            "filters",
            AT,
            form="removed",
            example=example,
            calibration=calibration,
            evaluate=accuracy,
            progress=False,
        )
        found[f"{word}, plain"] = [sizes.dense, *(point.plain for point in sizes.points)]
        found[f"{word}, refit"] = [sizes.dense, *(point.refit or 0.0 for point in sizes.points)]
        found[f"{word}, auto"] = [sizes.dense, *(point.metric for point in sizes.points)]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    asked = parser.parse_args(arguments)
    seeds = asked.seeds
    figures: dict[str, dict[str, list[list[float]]]] = {}
    rows = []
    for name in asked.networks:
        per_seed = []
        for seed in seeds:
            per_seed.append(measure(*NETWORKS[name](seed)))
            print(name, seed, per_seed[-1], flush=True)
        figures[name] = {word: [one[word] for one in per_seed] for word in per_seed[0]}
        for word, values in figures[name].items():
            means = [f"{statistics.fmean(column):.1f}" for column in zip(*values, strict=True)]
            rows.append([f"{name}, {word}", *means])
    title = f"Test accuracy in %, mean of {len(seeds)} seeds; filters physically removed, nothing trained afterwards."
    header = ["network, recovered on", "dense", *(f"{100 * ratio:.0f}%" for ratio in AT)]
    table = f"{title}\n\n{markdown_table(header, rows)}"
    print(table)
    options = f"--networks {' '.join(asked.networks)} --seeds {' '.join(map(str, seeds))}"
    command = f"python benchmarks/synthetic_calibration.py {options}"
    record = {"command": command, "at": AT, "seeds": seeds, "accuracy": figures, "environment": environment()}
    write_record(RESULTS / "synthetic-calibration-cpu.json", record)
    about = f"`{command}`, {record['environment']['date']}, CPU"
    (RESULTS / "synthetic-calibration-cpu.md").write_text(f"{table}\n\n{about}\n")


if __name__ == "__main__":
    main()
