"""What the defaults cost on networks and data that nobody tuned them for: dense accuracy with nothing set but the kind.

    python benchmarks/strangers.py --fashion FOLDER --cifar FOLDER [--only WORD] [--seeds 1] [--workers 2] [--renewals R]

Every pair is trained twice by the same ordinary loop: by SGD or AdamW alone, and with `constrain(model, kind, steps=T)` under
SFW. Both get the same learning rate, schedule, weight decay and batches. Then both are cut: nothing retrained, nothing refitted.
Pairs on digits and on text need no folder; those on data that were not given are listed as left out. Half an hour on two cores.

Writes benchmarks/results/strangers-cpu.json and .md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw.environment import environment
from stranger_networks import (
    LENGTH,
    WORDS,
    DenseNet,
    Mixer,
    Recurrent,
    Residual,
    TextCNN,
    all_convolutional,
    bert,
    deep_mlp,
    foreign,
    mlp,
    plain_cnn,
    plain_vgg,
    small_vit,
)

RESULTS = Path(__file__).with_name("results")


class Data(NamedTuple):
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Pair:
    """A network, data, a kind, and how they are trained."""

    name: str
    network: Callable[[], nn.Module]
    data: str
    kind: str
    steps: int
    batch: int
    lr: float
    rest: str = "sgd"
    weight_decay: float = 5e-4
    schedule: str = "linear"  # or "cosine", "constant"
    images: int | None = None  # of the training set, the first so many


# --- data ---------------------------------------------------------------------------------------------------------------

TRAINED, TESTED = 20_000, 4_000  # images of Fashion-MNIST and CIFAR-10, the first ones


@cache
def load(name: str, fashion: str | None, cifar: str | None) -> Data | None:
    if name == "digits":
        from sparsefw.data.digits import load_digits

        return Data(*load_digits("train"), *load_digits("test"))
    if name == "text":
        return text()
    from sparsefw.data.registry import open_part

    folder = fashion if name == "fashion" else cifar
    if folder is None:
        return None
    parts = []
    for part, count in (("train", TRAINED), ("test", TESTED)):
        source = open_part({"fashion": "fashion-mnist", "cifar": "cifar10"}[name], Path(folder), part)
        items = [source.load(i) for i in range(count)]
        images = torch.from_numpy(np.stack([item.image for item in items])).permute(0, 3, 1, 2).float()
        parts += [(images - 127.5) / 64, torch.tensor([item.target for item in items])]
    return Data(*parts)


def text() -> Data:
    """Sequences of words; the class is which of four marker words comes first, the others come later or not at all."""
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(8, WORDS, (8_000, LENGTH), generator=draw)
    labels = torch.randint(0, 4, (8_000,), generator=draw)
    first = torch.randint(0, LENGTH // 2, (8_000,), generator=draw)
    later = torch.randint(LENGTH // 2, LENGTH, (8_000,), generator=draw)
    rows = torch.arange(8_000)
    words[rows, later] = torch.randint(0, 4, (8_000,), generator=draw)
    words[rows, first] = labels
    return Data(words[:6_000], labels[:6_000], words[6_000:], labels[6_000:])


# --- the pairs ----------------------------------------------------------------------------------------------------------

PAIRS = [
    Pair("residual CNN", lambda: Residual(1), "fashion", "filters", 744, 64, 0.1),
    Pair("residual CNN", lambda: Residual(1, 16), "digits", "filters", 440, 64, 0.1),
    Pair("residual CNN, short", lambda: Residual(1, 16), "digits", "filters", 150, 32, 0.05, schedule="constant"),
    Pair("residual CNN, GroupNorm", lambda: Residual(1, 16, lambda n: nn.GroupNorm(4, n)), "digits", "filters", 600, 64, 1e-3,
         "adamw", 0.01),
    Pair("CNN without norms", lambda: plain_cnn(1, 28), "fashion", "filters", 900, 64, 0.03),
    Pair("CNN without norms", lambda: plain_cnn(1, 8), "digits", "weights", 600, 32, 1e-3, "adamw", 0.01),
    Pair("CNN without norms", lambda: plain_cnn(1, 28), "fashion", "rank", 900, 64, 0.03),
    Pair("MLP", lambda: mlp(64), "digits", "neurons", 5_000, 16, 0.02),
    Pair("MLP", lambda: mlp(784), "fashion", "neurons", 2_000, 128, 1e-3, "adamw", 0.01, schedule="cosine"),
    Pair("MLP, BatchNorm", lambda: mlp(784, True), "fashion", "weights", 1_500, 128, 0.05),
    Pair("timm resnet10t, 150 images", lambda: foreign("timm:resnet10t"), "cifar", "filters", 300, 16, 0.05, images=150),
    Pair("timm mobilenetv2_050", lambda: foreign("timm:mobilenetv2_050"), "cifar", "rank", 600, 64, 1e-3, "adamw", 0.01),
    Pair("torchvision shufflenet x0.5", lambda: foreign("torchvision:shufflenet_v2_x0_5"), "cifar", "filters", 1_000, 64, 0.1),
    Pair("torchvision resnet18", lambda: foreign("torchvision:resnet18"), "cifar", "weights", 500, 128, 0.05),
    Pair("ViT", lambda: small_vit(1, 8, 2), "digits", "neurons", 1_200, 64, 1e-3, "adamw", 0.05),
    Pair("ViT", lambda: small_vit(1, 28, 7), "fashion", "weights", 800, 256, 1e-3, "adamw", 0.05),
    Pair("BERT", bert, "text", "neurons", 600, 32, 1e-3, "adamw", 0.01),
    Pair("torch transformer", Recurrent, "text", "2:4", 600, 32, 1e-3, "adamw", 0.01),
    # Not looked at before the defaults were fixed.
    Pair("text CNN", TextCNN, "text", "filters", 400, 64, 1e-3, "adamw", 0.01),
    Pair("text CNN", TextCNN, "text", "weights", 400, 64, 0.1),
    Pair("MLP-mixer", Mixer, "digits", "neurons", 900, 32, 2e-3, "adamw", 0.05, schedule="cosine"),
    Pair("MLP-mixer", Mixer, "digits", "weights", 900, 32, 2e-3, "adamw", 0.05, schedule="cosine"),
    Pair("DenseNet", DenseNet, "digits", "filters", 500, 32, 0.1),
    Pair("DenseNet", DenseNet, "digits", "rank", 300, 128, 1e-2, "adamw", 0.01),
    Pair("all-convolutional", all_convolutional, "digits", "filters", 250, 50, 0.05, schedule="constant"),
    Pair("all-convolutional", all_convolutional, "digits", "weights", 1_200, 16, 0.02),
    # A newcomer's: stacks without norms.
    Pair("MLP, six hidden layers", lambda: deep_mlp(784), "fashion", "neurons", 800, 64, 0.02),
    Pair("MLP, six hidden layers", lambda: deep_mlp(784), "fashion", "weights", 800, 64, 1e-3, "adamw", 0.01),
    Pair("MLP, four hidden layers", lambda: deep_mlp(784, 4), "fashion", "neurons", 3_000, 64, 0.02),
    Pair("VGG without norms", lambda: plain_vgg(3), "cifar", "filters", 400, 64, 0.03),
    Pair("VGG without norms", lambda: plain_vgg(3), "cifar", "rank", 300, 32, 1e-3, "adamw", 0.01),
]  # fmt: skip


# --- the loop -----------------------------------------------------------------------------------------------------------


def factor(schedule: str, done: float) -> float:
    return {"linear": 1 - done, "cosine": 0.5 * (1 + torch.cos(torch.tensor(torch.pi * done)).item()), "constant": 1.0}[
        schedule
    ]


def train(pair: Pair, data: Data, seed: int, constrained: bool, **settings: Any) -> tuple[nn.Module, float]:
    from sparsefw import SFW, constrain

    torch.manual_seed(seed)
    model = pair.network()
    images = data.train[: pair.images], data.train_labels[: pair.images]
    if constrained:
        groups: Any = constrain(model, pair.kind, report=None, **{"steps": pair.steps, **settings})
    else:
        groups = model.parameters()
    if constrained or pair.rest == "sgd":
        optimizer: torch.optim.Optimizer = (
            SFW(groups, lr=pair.lr, momentum=0.9, rest=pair.rest, weight_decay=pair.weight_decay)
            if constrained
            else torch.optim.SGD(groups, lr=pair.lr, momentum=0.9, weight_decay=pair.weight_decay)
        )
    else:
        optimizer = torch.optim.AdamW(groups, lr=pair.lr, weight_decay=pair.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor(pair.schedule, t / pair.steps))
    draw = torch.Generator().manual_seed(seed)
    model.train()
    order, at = torch.randperm(len(images[0]), generator=draw), 0
    for _ in range(pair.steps):
        if at + pair.batch > len(order):
            order, at = torch.randperm(len(images[0]), generator=draw), 0
        chosen = order[at : at + pair.batch]
        at += pair.batch
        optimizer.zero_grad()
        F.cross_entropy(model(images[0][chosen]), images[1][chosen]).backward()
        optimizer.step()
        scheduler.step()
    return model, accuracy(model, data)


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(data.test.split(500), data.test_labels.split(500), strict=True)
    )
    return 100 * hits / len(data.test)


# What is cut from both networks, for the second half of the table.
CUTS = {"filters": ("filters", 0.5), "neurons": ("filters", 0.5), "rank": ("rank", 0.7), "weights": ("weights", 0.9)}


def cut_accuracy(model: nn.Module, pair: Pair, data: Data) -> float | None:
    """Accuracy when the kind's share is removed, BatchNorm statistics recomputed; None where there is nothing to cut."""
    from sparsefw import compress

    if pair.kind not in CUTS:
        return None
    kind, ratio = CUTS[pair.kind]
    images = data.train[: min(pair.images or 1024, 1024)]
    try:
        small = compress(
            model, example=images[:2], calibration=list(images.split(256)), refit=False, progress=False, **{kind: ratio}
        )
    except ValueError:  # no filter of a network with group norms can go
        return None
    return accuracy(small.model, data)


def compare(job: tuple[int, int, dict[str, Any], str | None, str | None]) -> dict[str, Any]:
    """One pair and seed, trained both ways."""
    torch.set_num_threads(1)
    index, seed, settings, fashion, cifar = job
    pair, started = PAIRS[index], time.perf_counter()
    data = load(pair.data, fashion, cifar)
    assert data is not None
    row: dict[str, Any] = {"pair": index, "seed": seed}
    for column, constrained in (("alone", False), ("sfw", True)):
        model, row[column] = train(pair, data, seed, constrained, **(settings if constrained else {}))
        row[f"{column}_cut"] = cut_accuracy(model, pair, data)
    row["seconds"] = time.perf_counter() - started
    print(f"{pair.name}, {pair.data}, {pair.kind}, seed {seed}: {row['alone']:.1f} {row['sfw']:.1f}", flush=True)
    return row


def table(rows: list[dict[str, Any]], left_out: list[str]) -> str:
    lines = [
        "| network | data | kind | steps x batch | rest | alone | SFW | difference | cut | alone | SFW |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    differences = []
    for index in dict.fromkeys(row["pair"] for row in rows):
        pair, own = PAIRS[index], [row for row in rows if row["pair"] == index]
        mean = {key: _mean([row[key] for row in own]) for key in ("alone", "sfw", "alone_cut", "sfw_cut")}
        assert mean["alone"] is not None
        assert mean["sfw"] is not None
        differences.append(mean["sfw"] - mean["alone"])
        kind, ratio = CUTS.get(pair.kind, ("", 0.0))
        cells = [
            pair.name, pair.data, pair.kind, f"{pair.steps} x {pair.batch}", pair.rest, _cell(mean["alone"]), _cell(mean["sfw"]),
            f"{differences[-1]:+.1f}", f"{ratio:.0%} of the {'neurons' if pair.kind == 'neurons' else kind}" if kind else "",
            _cell(mean["alone_cut"]), _cell(mean["sfw_cut"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"{len(differences)} pairs: median {statistics.median(differences):+.1f}, worst {min(differences):+.1f}",
    ]
    return "\n".join([*lines, *(f"left out: {name}" for name in left_out)])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", help="folder of Fashion-MNIST's four files")
    parser.add_argument("--cifar", help="folder of CIFAR-10")
    parser.add_argument("--only", default="", help="pairs whose name, data or kind contains this")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--renewals", type=float, help="the dial; default: what the product chooses")
    parser.add_argument("--out", type=Path, default=RESULTS / "strangers-cpu")
    options = parser.parse_args()
    chosen = [i for i, p in enumerate(PAIRS) if options.only in f"{p.name} {p.data} {p.kind}"]
    given = {"fashion": options.fashion, "cifar": options.cifar}
    possible = [i for i in chosen if given.get(PAIRS[i].data, True)]
    left_out = [f"{PAIRS[i].name} on {PAIRS[i].data}: no folder given" for i in chosen if i not in possible]
    settings = {} if options.renewals is None else {"renewals": options.renewals}
    jobs = [(i, s, settings, options.fashion, options.cifar) for i in possible for s in range(options.seeds)]
    jobs.sort(
        key=lambda job: -PAIRS[job[0]].steps * PAIRS[job[0]].batch
    )  # long ones first, so that both cores end together
    started = time.perf_counter()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = sorted(pool.map(compare, jobs), key=lambda row: (row["pair"], row["seed"]))
    text = table(rows, left_out)
    minutes = round((time.perf_counter() - started) / 60, 1)
    about = {**environment(), "seeds": options.seeds, "renewals": options.renewals, "minutes": minutes}
    print(text)
    options.out.with_suffix(".json").write_text(
        json.dumps({**about, "rows": rows, "left_out": left_out}, indent=1) + "\n"
    )
    hardware, torch_version = about["hardware"], about["versions"]["torch"]
    dial = "" if options.renewals is None else f", renewals {options.renewals:g}"
    said = (
        f"{about['date']}, torch {torch_version}, {hardware['cpus']} cores of {hardware['cpu']}, {minutes} minutes, "
        f"seeds {options.seeds}{dial}"
    )
    options.out.with_suffix(".md").write_text(
        f"# Defaults on networks and data that nobody tuned for\n\n{said}\n\n{text}\n"
    )


if __name__ == "__main__":
    main()
