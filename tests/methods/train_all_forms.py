"""Run by test_every_method.py, alone or by torchrun: take four steps of every form, each on one batch for all processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from methods.forms import FORMS
from sparsefw.data.batches import Share
from sparsefw.methods import Batch, method_from
from sparsefw.train.engine import Engine, processes
from sparsefw.train.step import Step
from sparsefw.train.tasks import Classification
from train.harness import settings
from train.networks import group_norm


def four_steps(form: str, share: Share, out: Path) -> None:
    """Train a network whose layers treat images separately, so that two halves of a batch give the same as the whole."""
    torch.manual_seed(0)
    model, method = group_norm(), method_from(FORMS[form])
    engine = Engine(torch.device("cpu"), torch.float32, False, False, False, False, 1, 0, share)
    optimizer = method.optimizer(model, settings(lr=0.02, rest_lr=0.02, example=torch.zeros(2, 1, 8, 8)), None)
    step = Step(engine, model, method, Classification(10), optimizer, torch.amp.GradScaler("cpu", enabled=False), None)
    draw = torch.Generator().manual_seed(1)
    for i in range(4):
        images, labels = torch.randn(32, 1, 8, 8, generator=draw), torch.randint(10, (32,), generator=draw)
        torch.manual_seed(100 * i + share.rank)  # as in training, where processes draw different numbers
        step(Batch(images.chunk(share.world)[share.rank], labels.chunk(share.world)[share.rank]))
    method.after_epoch(model, optimizer, 1, 2)
    save_file(model.state_dict(), out / f"{form}-{share.rank}.safetensors")


if __name__ == "__main__":
    with processes("cpu") as share:
        for form in FORMS:
            four_steps(form, share, Path(sys.argv[1]))
