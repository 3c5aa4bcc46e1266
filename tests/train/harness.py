"""Trainings as a user starts them, in processes of their own; and the pieces of one, for tests that take a step by hand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from sparsefw.data.batches import Share
from sparsefw.methods import Method, OptimizerSettings
from sparsefw.runfolder.read import read_epochs
from sparsefw.train.average import Average
from sparsefw.train.engine import Engine
from sparsefw.train.step import Step
from sparsefw.train.tasks import Classification

TESTS = str(Path(__file__).parents[1])
PATIENCE = 120  # seconds until a process that hangs is given up


def cpu_engine(accumulate: int = 1, precision: torch.dtype = torch.float32) -> Engine:
    return Engine(torch.device("cpu"), precision, False, False, False, False, accumulate, 0, Share())


def settings(**changes) -> OptimizerSettings:
    usual = {
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "nesterov": False,
        "rest": "sgd",
        "rest_lr": 0.1,
        "steps": 20,
    }
    return OptimizerSettings(**{**usual, **changes})


def step_of(
    model: nn.Module,
    method: Method,
    classes: int,
    *,
    ema: float | None = None,
    smoothing: float = 0.0,
    loss_scale: float | None = None,
    **how,
) -> Step:
    """A step as `prepare` makes it, for a model of our own."""
    optimizer = method.optimizer(model, settings(**how.pop("settings", {})), None)
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale or 1.0, enabled=loss_scale is not None)
    average = None if ema is None else Average(model, ema)
    return Step(cpu_engine(**how), model, method, Classification(classes, smoothing), optimizer, scaler, average)


def command(recipe: str, folder: Path, *changes: str, width: int | None = 8, epochs: int = 3) -> list[str]:
    """`sparsefw train` with a checkpoint after every step; networks of train.networks may be named."""
    fixed = [f"train.epochs={epochs}", "engine.checkpoint_seconds=0", "engine.device=cpu"]
    if width is not None:
        fixed.append(f"model.arguments.width={width}")
    words = ["-m", "sparsefw", "train", recipe, "--out", str(folder), "--trust"]
    for change in (*fixed, *changes):
        words += ["--set", change]
    return words


def start(words: list[str], launcher: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen(
        [sys.executable, *launcher, *words], env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], code: int | None = 0, patience: float = PATIENCE) -> tuple[str, str]:
    """What it wrote to standard output and standard error, once it ended with that exit code."""
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends those that it started
        out, err = process.communicate()
        raise AssertionError(f"it hung: {out} {err}") from None
    assert code is None or process.returncode == code, (process.returncode, out, err)
    return out, err


def trained(words: list[str], **environment: str) -> str:
    return ended(start(words, **environment))[1]


def torchrun(words: list[str], processes: int = 2, restarts: int = 0, **environment: str) -> subprocess.Popen[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={port}")
    launcher += (f"--max-restarts={restarts}",)
    module = ("-m",) if words[0] == "-m" else ()
    return start(words[len(module) :], (*launcher, *module), **environment)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether there is such a process; a dead one that nobody has waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def send_when(process: subprocess.Popen[str], condition: Callable[[], bool], which: int = signal.SIGKILL) -> bool:
    """Signal the process as soon as the condition holds; False where it ended before."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:
        if condition():
            process.send_signal(which)
            return True
        if time.monotonic() > deadline:
            process.terminate()
            raise AssertionError(f"the moment never came: {process.communicate()}")
        time.sleep(0.0005)
    return False


def checkpoint_steps(folder: Path) -> list[int]:
    try:
        found = os.listdir(folder / "checkpoints")
    except FileNotFoundError:
        return []
    return sorted(int(name.split("-")[1]) for name in found if name.startswith("step-"))


def being_written(folder: Path) -> bool:
    """Whether a checkpoint is being written right now."""
    try:
        return any(name.startswith(".") for name in os.listdir(folder / "checkpoints"))
    except FileNotFoundError:
        return False


def reached(folder: Path, step: int) -> Callable[[], bool]:
    return lambda: max(checkpoint_steps(folder), default=0) >= step


def untimed(folder: Path) -> list[dict]:
    """The rows of metrics.jsonl without what depends on the clock."""
    rows = [epoch.to_json() for epoch in read_epochs(folder)]
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in rows]


def result(folder: Path) -> dict:
    found = json.loads((folder / "result.json").read_text())
    return {k: v for k, v in found.items() if k not in ("seconds", "images_per_second", "sha256")}


def assert_same_run(folder: Path, reference: Path) -> None:
    assert (folder / "model.safetensors").read_bytes() == (reference / "model.safetensors").read_bytes()
    assert untimed(folder) == untimed(reference)
    assert result(folder) == result(reference)
    assert not (folder / "checkpoints").exists()
    assert not [name for name in os.listdir(folder) if name.endswith(".new")]
