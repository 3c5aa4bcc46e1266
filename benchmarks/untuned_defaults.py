"""Measures what the defaults cost on networks and data for which nobody tuned them: only the kind is set.

    python benchmarks/untuned_defaults.py --fashion FOLDER --cifar FOLDER [--only WORD] [--rest sgd] [--seeds 1] [--renewals R]
                                          [--update]

Every pair of a network and a data set is trained twice by the same ordinary loop: by SGD or AdamW alone, and by SFW with
`constrain(model, kind, steps=T)`, in some pairs with `example=`. Both have the same learning rate, schedule, weight decay and
batches. Then both are cut, and nothing is retrained or refitted. Pairs on digits and text need no folder; other pairs are left
out, and listed as such, unless the folder of their data is given. Takes an hour on two cores; --update measures some pairs and
keeps the rows of the others.

Writes benchmarks/results/untuned-defaults-cpu.json and .md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared import RESULTS, markdown_table, run_in_processes, write_record
from sparsefw.environment import environment
from untuned_networks import LENGTH, WORDS
from untuned_pairs import PAIRS, Pair


class Data(NamedTuple):
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


# --- data ---------------------------------------------------------------------------------------------------------------

# Of Fashion-MNIST and CIFAR-10, the first images.
TRAINING_IMAGES = 20_000
TEST_IMAGES = 4_000


@cache
def load(name: str, fashion: str | None, cifar: str | None) -> Data | None:
    """Load a data set; None if its folder was not given."""
    if name == "digits":
        from sparsefw.data.digits import load_digits

        return Data(*load_digits("train"), *load_digits("test"))
    if name == "text":
        return make_text()
    from sparsefw.data.registry import open_part

    folder = fashion if name == "fashion" else cifar
    if folder is None:
        return None
    parts = []
    for part, count in (("train", TRAINING_IMAGES), ("test", TEST_IMAGES)):
        source = open_part({"fashion": "fashion-mnist", "cifar": "cifar10"}[name], Path(folder), part)
        items = [source.load(i) for i in range(count)]
        images = torch.from_numpy(np.stack([item.image for item in items])).permute(0, 3, 1, 2).float()
        parts += [(images - 127.5) / 64, torch.tensor([item.target for item in items])]
    return Data(*parts)


def make_text() -> Data:
    """Make up sequences of words; their class is the first of four marker words, and another one may follow later."""
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(8, WORDS, (8_000, LENGTH), generator=draw)
    labels = torch.randint(0, 4, (8_000,), generator=draw)
    first = torch.randint(0, LENGTH // 2, (8_000,), generator=draw)
    later = torch.randint(LENGTH // 2, LENGTH, (8_000,), generator=draw)
    rows = torch.arange(8_000)
    words[rows, later] = torch.randint(0, 4, (8_000,), generator=draw)
    words[rows, first] = labels
    return Data(words[:6_000], labels[:6_000], words[6_000:], labels[6_000:])


# --- the loop -----------------------------------------------------------------------------------------------------------


def lr_factor(schedule: str, done: float) -> float:
    """Return the factor on the learning rate when this share of the training is done."""
    cosine = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * done)).item())
    return {"linear": 1 - done, "cosine": cosine, "constant": 1.0}[schedule]


def make_optimizer(
    pair: Pair, model: nn.Module, example: Tensor, constrained: bool, settings: dict[str, Any]
) -> torch.optim.Optimizer:
    from sparsefw import SFW, constrain

    if constrained:
        arguments = {"steps": pair.steps, "example": example if pair.example else None, **settings}
        groups = constrain(model, pair.kind, report=None, **arguments)
        return SFW(
            groups, lr=pair.lr, momentum=0.9, rest=pair.rest, weight_decay=pair.weight_decay, nesterov=pair.nesterov
        )
    if pair.rest == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=pair.lr, momentum=0.9, weight_decay=pair.weight_decay, nesterov=pair.nesterov
        )
    return torch.optim.AdamW(model.parameters(), lr=pair.lr, weight_decay=pair.weight_decay)


def train(pair: Pair, data: Data, seed: int, constrained: bool, **settings: Any) -> tuple[nn.Module, float]:
    """Train a pair, and return its network and its test accuracy; settings: further arguments of `constrain`."""
    torch.manual_seed(seed)
    model = pair.network()
    images = data.train[: pair.images]
    labels = data.train_labels[: pair.images]
    optimizer = make_optimizer(pair, model, images[:2], constrained, settings)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(pair.schedule, step / pair.steps))
    draw = torch.Generator().manual_seed(seed)
    model.train()
    order = torch.randperm(len(images), generator=draw)
    first = 0
    for _ in range(pair.steps):
        if first + pair.batch > len(order):
            order = torch.randperm(len(images), generator=draw)
            first = 0
        batch = order[first : first + pair.batch]
        first += pair.batch
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        scheduler.step()
    return model, accuracy(model, data)


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    correct = 0
    for images, labels in zip(data.test.split(500), data.test_labels.split(500), strict=True):
        correct += int((model(images).argmax(1) == labels).sum())
    return 100 * correct / len(data.test)


# Kind of the constraint -> kind and ratio of the cut.
CUTS = {"filters": ("filters", 0.5), "neurons": ("filters", 0.5), "rank": ("rank", 0.7), "weights": ("weights", 0.9)}


def cut_accuracy(model: nn.Module, pair: Pair, data: Data) -> float | None:
    """Return the accuracy after the cut of CUTS, with BatchNorm statistics recomputed; None if nothing can be cut."""
    from sparsefw import compress

    if pair.kind not in CUTS:
        return None
    kind, ratio = CUTS[pair.kind]
    images = data.train[: min(pair.images or 1024, 1024)]
    try:
        small = compress(
            model, example=images[:2], calibration=list(images.split(256)), refit=False, progress=False, **{kind: ratio}
        )
    except ValueError:  # no filter of a network with group norms can be removed
        return None
    return accuracy(small.model, data)


class Job(NamedTuple):
    """A pair, by its index, and a seed to train; settings: further arguments of `constrain`."""

    pair: int
    seed: int
    settings: dict[str, Any]
    fashion: str | None = None
    cifar: str | None = None


def compare(job: Job) -> dict[str, Any]:
    """Train a pair alone and with SFW, and return the accuracies."""
    torch.set_num_threads(1)
    pair = PAIRS[job.pair]
    started = time.perf_counter()
    data = load(pair.data, job.fashion, job.cifar)
    assert data is not None
    row: dict[str, Any] = {"pair": job.pair, "seed": job.seed}
    for column, constrained in (("alone", False), ("sfw", True)):
        model, row[column] = train(pair, data, job.seed, constrained, **(job.settings if constrained else {}))
        row[f"{column}_cut"] = cut_accuracy(model, pair, data)
    row["seconds"] = time.perf_counter() - started
    print(f"{pair.name}, {pair.data}, {pair.kind}, seed {job.seed}: {row['alone']:.1f} {row['sfw']:.1f}", flush=True)
    return row


def table(rows: list[dict[str, Any]], left_out: list[str]) -> str:
    """Return the table in Markdown, with the median and the worst difference."""
    header = [
        "network",
        "data",
        "kind",
        "steps x batch",
        "rest",
        "alone",
        "SFW",
        "difference",
        "seeds",
        "cut",
        "alone",
        "SFW",
    ]
    lines = []
    differences: dict[int, float] = {}
    for index in dict.fromkeys(row["pair"] for row in rows):
        pair = PAIRS[index]
        seeds = [row for row in rows if row["pair"] == index]
        mean = {key: _mean([row[key] for row in seeds]) for key in ("alone", "sfw", "alone_cut", "sfw_cut")}
        assert mean["alone"] is not None
        assert mean["sfw"] is not None
        differences[index] = difference = mean["sfw"] - mean["alone"]
        lines.append(
            [
                pair.name + " *" * pair.held_out,
                pair.data,
                pair.kind,
                f"{pair.steps} x {pair.batch}",
                pair.rest,
                _cell(mean["alone"]),
                _cell(mean["sfw"]),
                f"{difference:+.1f}",
                str(len(seeds)),
                _cut_text(pair),
                _cell(mean["alone_cut"]),
                _cell(mean["sfw_cut"]),
            ]
        )
    held_out = {index: difference for index, difference in differences.items() if PAIRS[index].held_out}
    summaries = [_summary("pairs", differences)]
    summaries += [_summary("of them (*) were tried once, after the defaults were frozen", held_out)] if held_out else []
    return "\n".join([markdown_table(header, lines), "", *summaries, *(f"left out: {name}" for name in left_out)])


def _summary(what: str, differences: dict[int, float]) -> str:
    values = list(differences.values())
    return f"{len(values)} {what}: median {statistics.median(values):+.1f}, worst {min(values):+.1f}"


def _cut_text(pair: Pair) -> str:
    if pair.kind not in CUTS:
        return ""
    kind, ratio = CUTS[pair.kind]
    return f"{ratio:.0%} of the {'neurons' if pair.kind == 'neurons' else kind}"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--cifar", help="folder with CIFAR-10")
    parser.add_argument("--only", default="", help="only pairs whose name, data or kind contains this")
    parser.add_argument("--rest", choices=("sgd", "adamw"), help="only pairs that this optimizer trains")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--renewals", type=float, help="argument of `constrain`; default: its own")
    parser.add_argument("--update", action="store_true", help="keep the rows that an earlier run gave for other pairs")
    parser.add_argument("--out", type=Path, default=RESULTS / "untuned-defaults-cpu")
    args = parser.parse_args()
    chosen = [
        i
        for i, pair in enumerate(PAIRS)
        if args.only in f"{pair.name} {pair.data} {pair.kind}" and args.rest in (None, pair.rest)
    ]
    folders = {"fashion": args.fashion, "cifar": args.cifar}
    possible = [i for i in chosen if folders.get(PAIRS[i].data, True)]
    left_out = [f"{PAIRS[i].name} on {PAIRS[i].data}: no folder given" for i in chosen if i not in possible]
    settings = {} if args.renewals is None else {"renewals": args.renewals}
    jobs = [Job(i, seed, settings, args.fashion, args.cifar) for i in possible for seed in range(args.seeds)]
    jobs.sort(
        key=lambda job: -PAIRS[job.pair].steps * PAIRS[job.pair].batch
    )  # long ones first: all workers end together
    rows, minutes = run_in_processes(compare, jobs, args.workers)
    record = {**environment(), "seeds": args.seeds, "renewals": args.renewals, "minutes": minutes}
    rows = [{**row, "date": record["date"]} for row in rows]
    path = args.out.with_suffix(".json")
    if args.update:
        measured = {row["pair"] for row in rows}
        rows += [row for row in json.loads(path.read_text())["rows"] if row["pair"] not in measured]
    rows.sort(key=lambda row: (row["pair"], row["seed"]))
    text = table(rows, left_out)
    print(text)
    write_record(path, {**record, "rows": rows, "left_out": left_out})
    hardware = record["hardware"]
    renewals = "" if args.renewals is None else f", renewals {args.renewals:g}"
    older = sorted({row["date"] for row in rows} - {record["date"]})
    kept = f"; some rows of {', '.join(older)}" if older else ""
    conditions = (
        f"{record['date']}, torch {record['versions']['torch']}, {hardware['cpus']} cores of {hardware['cpu']}, "
        f"{minutes} minutes, seeds {args.seeds}{renewals}{kept}"
    )
    args.out.with_suffix(".md").write_text(
        f"# Defaults on networks and data for which nobody tuned them\n\n{conditions}\n\n{text}\n"
    )


if __name__ == "__main__":
    main()
