"""One process of a torch.distributed job (test_processes.py): python worker.py FOLDER RANK SIZE"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sparsefw.compression import compress, recalibrate
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.sensitivity import measure_sensitivity
from sparsefw.compression.settings import Settings
from sparsefw.kinds import FILTERS

HOW = [
    {"filters": 0.5},
    {"rank": 0.5},
    {"weights": 0.8, "score": "activation"},
    {"filters": 0.5, "score": "activation"},
]


def falling(slope: float) -> Callable[[nn.Module], float]:
    """A metric that falls with the number of parameters."""
    return lambda net: slope * sum(p.numel() for p in net.parameters()) / 650


def damage(net: nn.Module, batches: list[Tensor]) -> Tensor:
    pipeline = Pipeline(net, Settings(calibration=batches, refit=False))
    stage = pipeline.stage(FILTERS, pipeline.dense)
    measured = measure_sensitivity(stage, next(iter(pipeline.calibration)))
    return torch.tensor(list(measured.damage.values()), dtype=torch.float64)


def main(folder: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    net, batches = torch.load(f"{folder}/task.pt", weights_only=False)
    own = batches[rank::size]
    statistics = recalibrate(net, own).state_dict()
    refits = [compress(net, calibration=own, **how).model.state_dict() for how in HOW]
    chosen = compress(net, target="drop=0.5", calibration=own, evaluate=falling(1 + 3 * rank)).costs.parameters
    torch.save((statistics, refits, chosen, damage(net, own)), f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
