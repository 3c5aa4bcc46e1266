"""Code that the benchmarks share: results, tables, processes, `sparsefw` commands, and the timing of optimizer steps."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from sparsefw.atomic_io import json_ready

RESULTS = Path(__file__).with_name("results")
# The learning rate is tiny, so that thousands of timed steps leave the weights as they are.
STEP_SETTINGS = dict(lr=1e-6, momentum=0.9, weight_decay=5e-4)
WARM_UP_STEPS = 7
FOLDERS = ("--data", "--fashion", "--cifar")  # options that name a folder of data
CAPTURE_STEPS = 8  # before a step is captured, so that buffers and warm starts exist

Job = TypeVar("Job")
Step = Callable[[], object]


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_slug(device: str) -> str:
    """Return the name of a device for file names: "cpu", or such as "h200"."""
    name = "cpu" if device == "cpu" else torch.cuda.get_device_name(device)
    return re.sub("[^a-z0-9]+", "-", name.lower().removeprefix("nvidia "))


def write_record(path: Path, record: Any) -> None:
    path.write_text(json.dumps(json_ready(record), indent=1) + "\n")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def run_in_processes(function: Callable[[Job], Any], jobs: Sequence[Job], workers: int) -> tuple[list[Any], float]:
    """Call a function for every job in worker processes; return its results, and the minutes that all of it took."""
    started = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(function, jobs))
    return results, round((time.perf_counter() - started) / 60, 1)


class CommandAnswer(NamedTuple):
    """A `sparsefw` command, its JSON output, and how long it took."""

    command: str
    seconds: float
    answer: Any


def run_sparsefw(*arguments: str) -> CommandAnswer:
    """Run a `sparsefw` command with --json, and print how long it took."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "sparsefw", *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"sparsefw {shlex.join(arguments)} ended with exit code {done.returncode}")
    seconds = time.perf_counter() - started
    command = f"sparsefw {reproducible_arguments(arguments)}"
    print(f"{seconds:6.0f} s  {command}", flush=True)
    return CommandAnswer(command, seconds, json.loads(done.stdout))


def reproducible_arguments(arguments: Sequence[str]) -> str:
    """Return the arguments as another user would type them: with DIR for the folder of the data.

    >>> reproducible_arguments(["train", "x", "--data", "/home/me/data"])
    'train x --data DIR'
    """
    words = list(arguments)
    for i, word in enumerate(words[:-1]):
        if word in FOLDERS:
            words[i + 1] = "DIR"
    return shlex.join(words)


def elapsed_seconds(work: Step, device: str) -> float:
    """Return the seconds that a call takes, on the GPU by its own clock."""
    if device == "cpu":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def capture_step(step: Step) -> Step:
    """Return the replay of a step that was captured as one CUDA graph, as in training."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def median_milliseconds(
    steps: dict[str, Step],
    rounds: int,
    device: str,
    *,
    warm_up_each_round: int = 0,
    slow: Sequence[str] = (),
    slow_rounds: int = 3,
) -> dict[str, float]:
    """Return the median milliseconds of every step.

    The steps take turns, round after round, so that a slow moment of the machine falls on all of them.

    Args:
        warm_up_each_round: calls before every timed one, to warm the caches
        slow: names of steps that are timed in the first `slow_rounds` rounds only
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(WARM_UP_STEPS):
            step()
    for number in range(rounds):
        for name, step in steps.items():
            if name not in slow or number < slow_rounds:
                for _ in range(warm_up_each_round):
                    step()
                times[name].append(elapsed_seconds(step, device))
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def add_random_gradients(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
