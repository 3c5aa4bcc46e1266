"""Run by test_distributed.py, alone or by torchrun: a few steps in which every process gets the same batches."""

from __future__ import annotations

import sys

import torch

from sparsefw.data.batches import Share
from sparsefw.methods import Batch, SparseFW
from sparsefw.models import build
from sparsefw.train.engine import Engine, processes
from sparsefw.train.step import Step
from sparsefw.train.tasks import Classification
from train.harness import settings


def main(out: str) -> None:
    with processes("cpu") as share:
        steps(out, share)


def steps(out: str, share: Share) -> None:
    torch.manual_seed(0)
    model = build("resnet_digits", width=8)
    method = SparseFW(kind="filters", k=0.5)
    engine = Engine(torch.device("cpu"), torch.float32, False, False, False, False, 2, 0, share)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = Step(engine, model, method, Classification(10), method.optimizer(model, settings(), None), scaler, None)
    draw = torch.Generator().manual_seed(1)
    for _ in range(6):
        step(Batch(torch.randn(16, 1, 8, 8, generator=draw), torch.randint(10, (16,), generator=draw)))
    if share.rank == 0:
        torch.save(model.state_dict(), out)


if __name__ == "__main__":
    main(sys.argv[1])
