"""Trains for thousands of steps with a checkpoint after each, while another process measures curves and writes reports over and
over, and samples what both take: memory, handles, threads, disk.

    python benchmarks/soak.py [--steps N] [--out FOLDER]

Writes benchmarks/results/soak-cpu.json and .png. The training is `sparsefw train digits-resnet-filters`; the other process calls
what `sparsefw curve` and `sparsefw report` call, without ending in between, so that nothing it forgets to give back is hidden.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shared import RESULTS, write_record
from sparsefw.cli.curve_run import curve_run
from sparsefw.cli.report_page import write_report
from sparsefw.environment import device_name, environment
from sparsefw.plotting.figure_io import DPI, new_figure
from sparsefw.plotting.labels import LARGE_TEXT, NORMAL_TEXT, SMALL_TEXT, plain_frame
from sparsefw.plotting.palette import INK, LINE_COLOURS, MUTED, TEXT_COLOURS
from sparsefw.runfolder import RunPaths
from sparsefw.runfolder.read import read_epochs
from sparsefw.train.checkpoint import newest_step
from sparsefw.train.evaluate_run import TrainedRun

RECIPE = "digits-resnet-filters"
WIDTH = 4
BATCH = 32
STEPS_PER_EPOCH = 39
MEASURED = ("RSS (MiB)", "handles", "threads")
DISK = ("files", "MiB without metrics.jsonl")
COUNTS = ("handles", "threads", "files")
MAX_SAMPLES = 200  # in the result
MEBI = 1 << 20


def train_command(folder: Path, epochs: int) -> list[str]:
    """Return the command of a training that writes a checkpoint after every step."""
    changes = {
        "model.arguments.width": WIDTH,
        "data.batch_size": BATCH,
        "train.epochs": epochs,
        "engine.checkpoint_seconds": 0,
        "engine.device": "cpu",
    }
    words = ["train", RECIPE, "--quiet", "--out", str(folder)]
    return [*words, *(word for key, value in changes.items() for word in ("--set", f"{key}={value}"))]


def measure_and_report(trained: Path, runs: Path, page: Path, stopped: Event, rounds: Any) -> None:
    """Measure curves of a trained run, and report it and the running one, until stopped; count the rounds."""
    while not stopped.is_set():
        run = TrainedRun.open(trained, None, "cpu")
        settings = {"calibration": 128, "progress": False}
        curve_run(run, "filters", (0.5, 0.9), "removed", "test", settings)
        write_report([runs], page)
        rounds.value += 1


def sample(process: int) -> dict[str, float]:
    """Return what a process takes: its resident memory, open file descriptors and threads."""
    proc = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    values = int(status["VmRSS"].split()[0]) / 1024, len(list((proc / "fd").iterdir())), int(status["Threads"])
    return dict(zip(MEASURED, values, strict=True))


def disk(folder: Path) -> dict[str, float]:
    """Return the number of files of a folder, and their size without the lines of epochs, which grow by design."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(0 if path.name == RunPaths(folder).metrics.name else path.stat().st_size)
        except FileNotFoundError:  # it was replaced meanwhile
            continue
    return dict(zip(DISK, (len(sizes), sum(sizes) / MEBI), strict=True))


def soak(folder: Path, steps: int, seconds_between: float = 1.0) -> dict[str, Any]:
    """Train for so many steps and measure meanwhile; return samples by process and measure, in the order of time."""
    runs, trained, running = folder / "runs", folder / "runs" / "trained", folder / "runs" / "running"
    sparsefw = [sys.executable, "-m", "sparsefw"]
    subprocess.run([*sparsefw, *train_command(trained, 1)], check=True, stdout=subprocess.DEVNULL)
    context = multiprocessing.get_context("spawn")
    stopped, rounds = context.Event(), context.Value("i", 0)
    reader = context.Process(target=measure_and_report, args=(trained, runs, folder / "report.html", stopped, rounds))
    samples: dict[str, list[Any]] = {"steps": [], "training": [], "curves and reports": [], "run folder": []}
    command = train_command(running, math.ceil(steps / STEPS_PER_EPOCH))
    with subprocess.Popen([*sparsefw, *command], stdout=subprocess.DEVNULL) as training:
        try:
            while not RunPaths(running).checkpoints.is_dir() and training.poll() is None:
                time.sleep(0.1)
            reader.start()
            while training.poll() is None and reader.is_alive():
                step = newest_step(RunPaths(running).checkpoints)
                try:
                    taken = [sample(training.pid), sample(reader.pid or 0), disk(running)]
                except (OSError, KeyError):  # the training has just ended
                    break
                if step and rounds.value:  # before its first round, the reader is importing
                    for name, value in zip(samples, [step, *taken], strict=True):
                        samples[name].append(value)
                time.sleep(seconds_between)
            ended = reader.exitcode
        finally:
            stopped.set()
            if training.poll() is None and reader.exitcode:
                training.terminate()
    reader.join()
    if training.returncode or ended or reader.exitcode:
        raise SystemExit(f"the training ended with {training.returncode}, the reader with {reader.exitcode}")
    metrics = RunPaths(running).metrics
    return {
        "steps": max(record.step or 0 for record in read_epochs(running)),
        "rounds": rounds.value,
        "bytes_of_metrics_per_epoch": round(metrics.stat().st_size / len(read_epochs(running))),
        "samples": samples,
    }


def early_and_late(samples: Sequence[Mapping[str, float]], measure: str) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter of the samples; the first warms up."""
    values = [taken[measure] for taken in samples]
    quarter = len(values) // 4
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def summary(samples: Mapping[str, list[Any]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return early and late medians, by process and measure."""
    return {
        name: {measure: early_and_late(taken, measure) for measure in taken[0]}
        for name, taken in samples.items()
        if name != "steps"
    }


def draw(samples: Mapping[str, list[Any]], subtitle: str) -> Figure:
    """Draw every measure against the steps, side by side."""
    figure = new_figure(11.5, 5.6)
    panels = [(measure, ("training", "curves and reports")) for measure in MEASURED]
    panels += [(measure, ("run folder",)) for measure in DISK]
    colours = dict(zip(("training", "curves and reports", "run folder"), LINE_COLOURS, strict=False))
    for i, (measure, names) in enumerate(panels):
        column, row = i % 3, i // 3
        axes = figure.add_axes((0.055 + 0.325 * column, 0.54 - 0.45 * row, 0.275, 0.27))
        for name in names:
            axes.plot(samples["steps"], [taken[measure] for taken in samples[name]], color=colours[name], lw=1.4)
        plain_frame(axes)
        axes.set_ylim(0, 1.25 * max(taken[measure] for name in names for taken in samples[name]))
        axes.set_xlim(0, None)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=measure in COUNTS))
        axes.set_title(measure, size=NORMAL_TEXT, color=INK, loc="left", pad=8)
        axes.set_xlabel("step", size=SMALL_TEXT, color=MUTED)
    for i, (name, colour) in enumerate(colours.items()):
        figure.text(0.74, 0.33 - 0.06 * i, name, size=NORMAL_TEXT, weight="bold", color=TEXT_COLOURS[colour], va="top")
    heading = "What a long training takes, with a checkpoint after every step, curves and reports"
    figure.text(0.012, 0.975, heading, size=LARGE_TEXT, weight="bold", color=INK, va="top")
    figure.text(0.012, 0.92, subtitle, size=SMALL_TEXT, color=MUTED, va="top")
    return figure


def subtitle_of(record: Mapping[str, Any]) -> str:
    return (
        f"{record['steps']:,} steps, {record['rounds']:,} curves and reports; {record['device']}, {record['date']}.\n"
        f"metrics.jsonl, which is left out of the run folder, grows by {record['bytes_of_metrics_per_epoch']} bytes per epoch."
    )


def thinned(values: Sequence[Any]) -> list[Any]:
    return list(values[:: math.ceil(len(values) / MAX_SAMPLES)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        measured = soak(Path(folder), args.steps)
    samples = measured.pop("samples")
    medians = summary(samples)
    for name, by_measure in medians.items():
        for measure, (early, late) in by_measure.items():
            print(f"{name:20} {measure:26} {early:10.2f} -> {late:10.2f}")
    record = {
        "command": f"python benchmarks/soak.py --steps {args.steps}",
        "training": f"sparsefw {shlex.join(train_command(Path('DIR'), math.ceil(args.steps / STEPS_PER_EPOCH)))}",
        "device": device_name("cpu"),
        "seconds": round(time.perf_counter() - started),
        **environment(),
        **measured,
        "medians_of_second_and_last_quarter": medians,
        "samples": {name: thinned(values) for name, values in samples.items()},
    }
    write_record(args.out / "soak-cpu.json", record)
    draw(samples, subtitle_of(record)).savefig(args.out / "soak-cpu.png", dpi=DPI)
    print(args.out / "soak-cpu.png")


if __name__ == "__main__":
    main()
