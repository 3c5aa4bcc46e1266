"""The kinds of faults: the promise of each in words, the commands that it can happen to, and how it happens."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from faults.commands import COMMANDS, Command
from faults.scene import can_mount
from faults.trial import BAD_INPUT, DONE, FAILED, INTERRUPTED, Trial

LEFT_FREE = 1 << 16  # bytes, at most, on a full disk
FAR_AWAY = (0.0, 4102444800.0)  # the years 1970 and 2100


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    promise    what a command does when it happens, in words
    commands   the names of those that it can happen to
    happens    makes it happen to the command of a trial, and checks how that ends; what the same command does afterwards is
               checked for all kinds alike
    disk       it needs a disk of its own
    """

    name: str
    promise: str
    commands: tuple[str, ...]
    happens: Callable[[Trial], None] = field(repr=False)
    disk: bool = False

    def try_on(self, trial: Trial) -> None:
        with trial.scene.small_disk() if self.disk and can_mount() else contextlib.nullcontext():
            self.happens(trial)
            trial.check_again()


KINDS: dict[str, Kind] = {}
Happens = Callable[[Trial], None]


def kind(name: str, commands: Iterable[Command], promise: str, disk: bool = False) -> Callable[[Happens], Happens]:
    """Register a function as the way in which a kind of fault happens."""

    def register(happens: Happens) -> Happens:
        KINDS[name] = Kind(name, promise, tuple(command.name for command in commands), happens, disk)
        return happens

    return register


IN_ONE_PROCESS = [command for command in COMMANDS.values() if not command.ranks]
WRITING = [command for command in IN_ONE_PROCESS if command.writes]
READING = [command for command in WRITING if command.reads]
OF_NETWORKS = [command for command in READING if command.verb != "report"]
OF_DATA = [COMMANDS[name] for name in ("resume", "curve", "compress", "export")]
SWEEPS = [command for command in IN_ONE_PROCESS if command.verb == "sweep"]


@kind("kill", IN_ONE_PROCESS, "SIGKILL at any moment: the same command then ends as if nothing had happened")
def kill(trial: Trial) -> None:
    process = trial.start_until_a_moment()
    process.send(signal.SIGKILL)
    trial.check(process.ending(), DONE, -signal.SIGKILL)


@kind("term", IN_ONE_PROCESS, "SIGTERM: it stops, a training with a checkpoint and one line; the same command goes on")
def terminate(trial: Trial) -> None:
    process = trial.start_until_a_moment()
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)
    trial.check(process.ending(), DONE, INTERRUPTED, -signal.SIGTERM)


@kind("int", IN_ONE_PROCESS, "Ctrl-C: it stops, with one line and exit code 130; the same command goes on")
def interrupt(trial: Trial) -> None:
    process = trial.start_until_a_moment()
    process.send(signal.SIGINT)
    process.send(signal.SIGCONT)
    trial.check(process.ending(), DONE, INTERRUPTED)


@kind(
    "full disk",
    WRITING,
    "no room from any moment on: one line; as soon as there is room, the same command goes on",
    disk=True,
)
def fill_the_disk(trial: Trial) -> None:
    if not can_mount():
        most = trial.chance.randrange(LEFT_FREE)
        trial.note(f"without the right to mount a small disk: no file longer than {most} bytes")
        trial.check(trial.start(largest_file=most).ending(), DONE, FAILED, BAD_INPUT)
        return
    process = trial.start_until_a_moment()
    free = trial.chance.choice((0, trial.chance.randrange(LEFT_FREE)))
    trial.note(f"{free} bytes free")
    with trial.scene.full_disk(free):
        process.send(signal.SIGCONT)
        ending = process.ending()
    trial.check(ending, DONE, FAILED, BAD_INPUT)


@kind("read-only", WRITING, "nothing can be written: one line, and nothing has changed", disk=True)
def make_read_only(trial: Trial) -> None:
    if not can_mount():
        trial.note("without the right to mount a disk: all folders read-only")
    with trial.scene.read_only():
        ending = trial.start().ending()
    trial.check(ending, DONE, FAILED, BAD_INPUT)
    if ending.code != DONE:
        trial.check_unchanged()


@kind("truncate", READING, "a file that it reads was cut off: refused with exit code 2, or the result is right")
def truncate(trial: Trial) -> None:
    path = trial.some_file()
    content = path.read_bytes()
    trial.run_damaged({path: content[: trial.chance.randrange(len(content))]})


@kind("flip", READING, "a bit of a file that it reads has flipped: refused with exit code 2, or the result is right")
def flip(trial: Trial) -> None:
    path = trial.some_file()
    content = bytearray(path.read_bytes())
    content[trial.chance.randrange(len(content))] ^= 1 << trial.chance.randrange(8)
    trial.run_damaged({path: bytes(content)})


@kind(
    "swap",
    OF_NETWORKS,
    "networks or checkpoints of two runs were exchanged: refused with exit code 2, or the result is right",
)
def swap(trial: Trial) -> None:
    if trial.command.name == "resume":
        pairs = [(trial.path("half") / "checkpoints", trial.path("half-other") / "checkpoints")]
    else:
        names = trial.chance.choice((("model.safetensors",), ("model.safetensors", "result.json")))
        pairs = [(trial.path("finished") / name, trial.path("other") / name) for name in names]
    damage: dict[Path, bytes | None] = {}
    for here, there in pairs:
        damage |= dict.fromkeys((*_files(here), *_files(there)))
        damage |= {here / path.relative_to(there): path.read_bytes() for path in _files(there)}
        damage |= {there / path.relative_to(here): path.read_bytes() for path in _files(here)}
    trial.run_damaged(damage)


@kind("deleted data", OF_DATA, "an image is gone: refused with exit code 2, or the result is right")
def delete_data(trial: Trial) -> None:
    trial.run_damaged({trial.chance.choice(_files(trial.path("data"))): None})


@kind("changed data", OF_DATA, "an image is another one: refused with exit code 2, or the result is right")
def change_data(trial: Trial) -> None:
    image, other = trial.chance.sample(_files(trial.path("data")), 2)
    trial.run_damaged({image: other.read_bytes()})


@kind(
    "clock", WRITING, "killed, and files dated 1970 or 2100: the same command goes on, and removes what was left over"
)
def date(trial: Trial) -> None:
    kill(trial)
    for path in sorted(trial.scene.folder.rglob("*")):
        moment = trial.chance.choice(FAR_AWAY)
        os.utime(path, (moment, moment))


@kind("second process", WRITING, "started twice: the second is refused in one line, or both end well")
def start_twice(trial: Trial) -> None:
    first = trial.start_until_a_moment()
    if trial.command in SWEEPS or trial.chance.random() < 0.5:
        first.send(signal.SIGCONT)  # now, and not when the second has ended
    second = trial.start().ending()
    first.send(signal.SIGCONT)
    trial.check_two(first.ending(), second)


@kind("dead worker", SWEEPS, "workers are killed: others take their jobs over, and the sweep ends well")
def kill_workers(trial: Trial) -> None:
    sweep = trial.start()
    for _ in range(trial.chance.randint(1, 2)):
        moment = time.monotonic() + trial.chance.random() * trial.seconds / 2
        if sweep.wait(lambda moment=moment: time.monotonic() > moment and bool(sweep.children())):
            for worker in sweep.children():
                os.kill(worker, signal.SIGKILL)
    trial.check(sweep.ending(), DONE)


@kind("dead rank", [COMMANDS["ranks"]], "a process of torchrun is killed: all end, and the same command goes on")
def kill_rank(trial: Trial) -> None:
    launcher = trial.start()
    rank, step = trial.chance.randrange(2), trial.chance.randint(1, 10)
    checkpoints = trial.path("new") / "checkpoints"

    def has_come_far() -> bool:
        return len(launcher.children()) == 2 and any(
            int(p.name.split("-")[1]) >= step for p in checkpoints.glob("step-*")
        )

    if launcher.wait(has_come_far):
        os.kill(launcher.children()[rank], signal.SIGKILL)
    trial.check(launcher.ending(), DONE, FAILED)


def _files(path: Path) -> list[Path]:
    """Return the files in a folder, at any depth; a file itself."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
