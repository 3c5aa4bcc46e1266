"""CPU seconds of recovery against depth: passes that are resumed at each layer, beside whole passes up to it.

python benchmarks/recovery_depth.py [--only NAME ...] [--sequences N] [--json FILE] [--md FILE]

Transformer encoders of 6 to 48 layers, residual networks of 10 to 46, and an encoder of the size of a small sentence encoder
(6 layers of width 384, a vocabulary of 30,522, random weights) on sequences of 64 to 128 tokens. Both ways give the same weights,
which is checked. The seconds are those of one CPU core, for recovery alone: plain (matched moments, or BatchNorm statistics),
and refit. The slope is that of log seconds over log depth: 1 is linear.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from shared import markdown_table, write_record
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery import moments, passes, refit
from sparsefw.compression.settings import Settings
from sparsefw.environment import environment
from sparsefw.kinds import kind_of
from sparsefw.models import build, import_torchvision

KINDS = {"rank": 0.3, "filters": 0.3}
WIDTH = 64
ENCODERS, RESNETS, SENTENCES = "transformer encoder", "wide residual network", "sentence encoder"


@dataclass(frozen=True)
class Task:
    """A network of some depth, its calibration batches, and the kinds to cut it by."""

    family: str
    depth: int
    build: Callable[[], nn.Module]
    batches: Callable[[], list[Any]]
    kinds: tuple[str, ...] = ("rank",)


def encoder(depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.Linear(WIDTH, 10))


def sentence_encoder() -> nn.Module:
    import_torchvision()  # transformers imports it
    from transformers import BertConfig, BertModel

    sizes = dict(vocab_size=30522, hidden_size=384, intermediate_size=1536)
    return BertModel(BertConfig(num_hidden_layers=6, num_attention_heads=12, **sizes))


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Batches of 8 sequences of 64 to 128 tokens, padded to the longest."""
    batches = []
    for _ in range(count // 8):
        lengths = torch.randint(64, 129, (8, 1))
        mask = (torch.arange(int(lengths.max())) < lengths).long()
        batches.append({"input_ids": torch.randint(1000, 30522, mask.shape) * mask, "attention_mask": mask})
    return batches


def tasks(sequences: int) -> list[Task]:
    tokens = partial(lambda: list(torch.randn(32, 16, WIDTH).split(8)))
    images = partial(lambda: list(torch.randn(32, 3, 16, 16).split(8)))
    return [
        *(Task(ENCODERS, depth, partial(encoder, depth), tokens) for depth in (6, 12, 24, 48)),
        *(
            Task(RESNETS, depth, partial(build, "wide_resnet", classes=10, depth=depth, widen=1), images)
            for depth in (10, 16, 28, 46)
        ),
        Task(SENTENCES, 6, sentence_encoder, partial(sentences, sequences), tuple(KINDS)),
    ]


@contextlib.contextmanager
def whole_passes() -> Iterator[None]:
    """Within the block, recovery makes a pass per layer, as it does for networks that no tape repeats."""

    def recover_whole(dense: Any, cuts: Any, order: Any, batches: Any, recover: Any, following: bool = True) -> None:
        recover(passes.WholePasses(dense, cuts, batches, following))

    with contextlib.ExitStack() as stack:
        for module in (refit, moments):
            stack.enter_context(mock.patch.object(module, "recover_in_passes", recover_whole))
        yield


def measured(task: Task, kind: str, refitting: bool) -> dict[str, Any]:
    """Return the CPU seconds of both ways to recover one cut."""
    torch.manual_seed(0)
    pipeline = Pipeline(task.build().eval(), Settings(calibration=task.batches(), progress=False))
    stage = pipeline.stage(kind_of(kind), pipeline.dense)
    counts = stage.counts_for(KINDS[kind])
    seconds = {}
    states = {}
    for way, context in (("whole", whole_passes()), ("resumed", contextlib.nullcontext())):
        cut = stage.cut(counts)
        started = time.process_time()
        with context:
            pipeline.recover(pipeline.dense, [cut], refitting)
        seconds[way] = time.process_time() - started
        states[way] = cut.model.state_dict()
    assert all(torch.equal(value, states["resumed"][name]) for name, value in states["whole"].items())
    return {
        "network": task.family,
        "depth": task.depth,
        "removed": f"{kind}={KINDS[kind]}",
        "recovery": "refit" if refitting else "plain",
        **{way: round(value, 2) for way, value in seconds.items()},
        "ratio": round(seconds["whole"] / seconds["resumed"], 1),
    }


def slope(depths: list[float], seconds: list[float]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    x = torch.tensor(depths).double().log()
    y = torch.tensor(seconds).double().log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def slopes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the slopes of every family that has several depths."""
    found = []
    for family, recovery in sorted({(row["network"], row["recovery"]) for row in rows}):
        own = [row for row in rows if (row["network"], row["recovery"]) == (family, recovery)]
        if len({row["depth"] for row in own}) > 1:
            depths = [row["depth"] for row in own]
            of_ways = {way: round(slope(depths, [row[way] for row in own]), 2) for way in ("whole", "resumed")}
            found.append({"network": family, "recovery": recovery, **of_ways})
    return found


def write(rows: list[dict[str, Any]], sequences: int, json: Path | None, md: Path | None) -> str:
    """Write the figures and return the tables."""
    header = ("network", "depth", "removed", "recovery", "whole, s", "resumed, s", "ratio")
    text = markdown_table(header, [[str(cell) for cell in row.values()] for row in rows])
    of_families = slopes(rows)
    if of_families:
        header = ("network", "recovery", "slope of whole", "slope of resumed")
        text += "\n\n" + markdown_table(header, [[str(cell) for cell in row.values()] for row in of_families])
    where = environment()
    if json:
        write_record(json, {**where, "sequences": sequences, "rows": rows, "slopes": of_families})
    if md:
        versions = f"{where['date']}, torch {where['versions']['torch']}, CPU seconds of one core of a busy machine"
        command = f"`python benchmarks/recovery_depth.py --sequences {sequences}`"
        md.write_text(f"# Recovery against depth\n\n{versions}: {command}\n\n{text}\n")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = (ENCODERS, RESNETS, SENTENCES)
    parser.add_argument("--only", nargs="+", choices=families, default=list(families), metavar="NAME")
    parser.add_argument("--sequences", type=int, default=512, help="for the sentence encoder")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--md", type=Path, help="where to write the tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for task in tasks(args.sequences):
        for kind in task.kinds if task.family in args.only else ():
            for refitting in (False, True):
                rows.append(measured(task, kind, refitting))
                print(*rows[-1].values(), file=sys.stderr, flush=True)
    print(write(rows, args.sequences, args.json, args.md))


if __name__ == "__main__":
    main()
