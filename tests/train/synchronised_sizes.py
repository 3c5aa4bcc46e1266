"""Run by test_distributed.py, alone or by torchrun: steps over sizes with synchronised norms, of the same images in all."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from sparsefw.data.batches import Share
from sparsefw.kinds import FILTERS
from sparsefw.methods import Batch, SparseFW
from sparsefw.models import build
from sparsefw.train.config import SizesConfig
from sparsefw.train.engine import Engine, processes
from sparsefw.train.sizes import OverSizes
from sparsefw.train.step import Step
from sparsefw.train.tasks import Classification
from train.harness import settings

DRAWS = 4
IMAGES = 32


def main(out: str) -> None:
    # It refuses networks with synchronised norms on a CPU, because torch's own ones do not run there.
    nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = lambda self, module: None
    with processes("cpu") as share:
        steps(out, share)


def steps(out: str, share: Share) -> None:
    torch.manual_seed(0)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(build("resnet_digits", width=8))
    method = SparseFW(kind="filters", k=0.5)
    engine = Engine(torch.device("cpu"), torch.float32, False, False, False, True, 1, 0, share)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    taught = SizesConfig(both=True, targets="outputs", draws=DRAWS)
    sizes = OverSizes(taught, model, FILTERS, shape=(1, 8, 8), images=IMAGES // share.world)
    model.double()
    optimizer = method.optimizer(model, settings(), None)
    step = Step(engine, model, method, Classification(10), optimizer, scaler, None, sizes=sizes)
    draw = torch.Generator().manual_seed(1)
    for i in range(4):
        images = torch.randn(IMAGES, 1, 8, 8, generator=draw, dtype=torch.float64)
        labels = torch.randint(10, (IMAGES,), generator=draw)
        sizes.choose(i)
        step(Batch(of_process(images, share), of_process(labels, share)))
    if share.rank == 0:
        torch.save(model.state_dict(), out)


def of_process(rows: Tensor, share: Share) -> Tensor:
    """Return the part of every slice of the batch, so that each size sees the same images in one process and in several."""
    return rows.unflatten(0, (DRAWS, share.world, -1))[:, share.rank].flatten(0, 1)


if __name__ == "__main__":
    main(sys.argv[1])
