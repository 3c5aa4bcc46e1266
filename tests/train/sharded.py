"""Run by test_distributed.py through torchrun: shard a network at one of three moments, and train."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sparsefw import SFW, constrain
from sparsefw.train.engine import processes


def train(sharded: str, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if sharded == "before constrain":
        fully_shard(model, mesh=mesh)
    groups = constrain(model, "neurons", steps=100, report=None)
    if sharded == "after constrain":
        fully_shard(model, mesh=mesh)
    optimizer = SFW(groups, lr=0.1)
    if sharded == "after SFW":
        fully_shard(model, mesh=mesh)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    with processes("cpu") as share:
        try:
            train(sys.argv[1], share.world)
        except (TypeError, RuntimeError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
