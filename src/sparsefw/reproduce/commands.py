"""Runs `sparsefw` commands, several at a time, each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparsefw.child_processes import end_with_parent
from sparsefw.errors import Interrupted
from sparsefw.sweep.processes import stop_signals_collected, thread_variables

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Command:
    """A `sparsefw` command that can be repeated: finished work is not done again; output: the file that it writes last."""

    words: tuple[str, ...]
    output: Path

    def __str__(self) -> str:
        return " ".join(("sparsefw", *self.words))


def run_commands(commands: Sequence[Command], workers: int, log: Callable[[str], None]) -> list[str]:
    """Run the commands whose output does not exist, `workers` at a time; return a line for each that failed."""
    waiting = [command for command in commands if not command.output.exists()]
    total = len(waiting)
    running: list[tuple[Command, Process]] = []
    failures: list[str] = []
    environment = {**thread_variables(workers), **os.environ}
    with stop_signals_collected() as signals:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    command = waiting.pop(0)
                    log(f"started: {command}")
                    running.append(
                        (command, Process([sys.executable, "-P", "-m", "sparsefw", *command.words], environment))
                    )
                for command, process in [pair for pair in running if pair[1].poll() is not None]:
                    running.remove((command, process))
                    message = process.last_line()
                    if process.returncode:
                        failures.append(f"{command}: {message}")
                    ended = total - len(waiting) - len(running)
                    log(f"[{ended}/{total}] {'failed' if process.returncode else 'done'}: {command}")
                if signals:
                    raise Interrupted(f"{signals[0]}: stopped; the same command continues from here")
                time.sleep(POLL_SECONDS)
        finally:
            _stop([process for _, process in running], signals)
    return failures


def _stop(processes: Sequence[Process], signals: Sequence[str]) -> None:
    """Ask the processes to stop, which makes them write checkpoints, and wait; after a second signal, kill them."""
    for process in processes:
        process.terminate()
    while any(process.poll() is None for process in processes):
        if len(signals) > 1:
            for process in processes:
                process.kill()
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.messages.close()


class Process(subprocess.Popen[str]):
    """A process in a new session, which keeps a Ctrl-C of the terminal from it: `run_commands` stops it."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.messages = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe that nobody reads would fill up and block it)
        super().__init__(
            words,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=self.messages,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )

    def last_line(self) -> str:
        """Return the last line that the process wrote to standard error, and close that file."""
        with self.messages as file:
            file.seek(0)
            lines = file.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}"
