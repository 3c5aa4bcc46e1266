"""Run by test_distributed.py through torchrun: dies in its first attempt; in the second, one process starts late."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from sparsefw.train.engine import processes


def main(late: int, out: Path) -> None:
    is_restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
    if is_restarted and int(os.environ["RANK"]) == late:
        time.sleep(3)
    with processes("cpu") as share:
        total = torch.ones(())
        distributed.all_reduce(total)
        if not is_restarted:
            os.kill(os.getpid(), signal.SIGKILL)
        if share.rank == 0:
            out.write_text(str(total.item()))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
