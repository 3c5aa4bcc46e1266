"""What every reproduction is given, what it finds, and how commands are run for it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefw.atomic_io import write_json, write_text
from sparsefw.environment import environment
from sparsefw.errors import Interrupted
from sparsefw.plotting.canvas import draw_chart, save_figure
from sparsefw.plotting.charts import Chart, HeatMap
from sparsefw.plotting.panels import draw_heat_maps
from sparsefw.report.tables import Table, save_table
from sparsefw.sweep.run import stop_asked, threads

POLL = 0.1  # seconds
QUICK_STEM = "digits-resnet"


@dataclass(frozen=True)
class Setting:
    """
    quick      on handwritten digits, in minutes, in place of what the paper trains
    seeds      None: as many as usual
    """

    folder: Path
    quick: bool
    seeds: int | None
    data: Path | None
    workers: int
    changes: tuple[str, ...]
    storage: str | None
    say: Callable[[str], None]

    def count(self, usual: int) -> int:
        return usual if self.seeds is None else self.seeds


@dataclass(frozen=True)
class Findings:
    """Tables and figures by name; deviations from the paper, a sentence each; record: all numbers, for machines."""

    title: str
    tables: Mapping[str, Table]
    charts: Mapping[str, Chart | Sequence[HeatMap]]
    deviations: Sequence[str]
    record: Mapping[str, Any]
    failed: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        lines = [self.title]
        for name, table in self.tables.items():
            lines += ["", name, table.text()]
        lines += ["", "What is not as in the paper:", *(f"- {sentence}" for sentence in self.deviations)]
        return "\n".join([*lines, *(f"failed: {line}" for line in self.failed)])

    def write(self, folder: Path, name: str) -> list[Path]:
        """Every table and figure as files, and a Markdown page with all of it."""
        files, parts = [], [f"# {self.title}"]
        for number, (what, table) in enumerate(self.tables.items()):
            files += save_table(table, folder / (name if number == 0 else f"{name}-{number + 1}"))
            parts += [f"## {what}", table.markdown()]
        for what, chart in self.charts.items():
            figure = draw_chart(chart) if isinstance(chart, Chart) else draw_heat_maps(chart)
            files += save_figure(figure, folder / f"{name}-{what}")
            parts.append(f"![{what}]({name}-{what}.png)")
        parts += ["## What is not as in the paper", "\n".join(f"- {sentence}" for sentence in self.deviations)]
        write_text(folder / "README.md", "\n\n".join(parts) + "\n")
        about = {"title": self.title, "deviations": list(self.deviations), "failed": list(self.failed)}
        write_json(folder / "result.json", {**about, **self.record, **environment()})
        return [folder / "README.md", *files]


class Experiment(ABC):
    """A table or figure of the paper. name: how it is called; shows: what it is."""

    name: str
    shows: str

    def title(self, setting: Setting) -> str:
        return f"Scaled down to digits, for orientation only ({self.shows})" if setting.quick else self.shows

    @abstractmethod
    def planned(self, setting: Setting) -> list[str]:
        """What would be trained, a line each; all of it checked, nothing trained."""

    @abstractmethod
    def run(self, setting: Setting) -> Findings: ...


@dataclass(frozen=True)
class Command:
    """A `sparsefw` command that can be repeated: what is there already is not done again. makes: the file it leaves."""

    words: tuple[str, ...]
    makes: Path

    def __str__(self) -> str:
        return " ".join(("sparsefw", *self.words))


def run_commands(commands: Sequence[Command], setting: Setting) -> list[str]:
    """So many at once as there are workers. One that fails does not stop the rest; returns a line for each that did."""
    waiting = [command for command in commands if not command.makes.exists()]
    total, running, failed = len(waiting), list[tuple[Command, Process]](), list[str]()
    with stop_asked() as asked:
        try:
            while waiting or running:
                while waiting and len(running) < setting.workers:
                    command = waiting.pop(0)
                    words = [sys.executable, "-m", "sparsefw", *command.words]
                    setting.say(f"begun: {command}")
                    running.append((command, Process(words, {**threads(setting.workers), **os.environ})))
                for command, process in [one for one in running if one[1].poll() is not None]:
                    running.remove((command, process))
                    said = process.last_line()
                    if process.returncode:
                        failed.append(f"{command}: {said}")
                    number = total - len(waiting) - len(running)
                    setting.say(f"[{number}/{total}] {'failed' if process.returncode else 'done'}: {command}")
                if asked:
                    raise Interrupted(f"{asked[0]}: stopped; the same command goes on from here")
                time.sleep(POLL)
        finally:
            for _, process in running:
                process.terminate()  # it writes a checkpoint
            while any(process.poll() is None for _, process in running):
                if len(asked) > 1:
                    for _, process in running:
                        process.kill()
                time.sleep(POLL)
            for _, process in running:
                process.said.close()
    return failed


class Process(subprocess.Popen[str]):
    """A command in a session of its own: a Ctrl-C at the terminal is for this process, which asks the others to end."""

    def __init__(self, words: list[str], around: dict[str, str]) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe that nobody empties would stop it)
        super().__init__(
            words,
            env=around,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

    def last_line(self) -> str:
        with self.said as file:
            file.seek(0)
            lines = file.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}"


def _end_with_parent() -> None:
    """Where the system can: a SIGTERM when the process that started this one is gone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
