"""One fault, tried: the command is run on the scene, the fault happens to it, and what it promises is checked."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from faults.commands import COMMANDS, Command
from faults.processes import Ending, Forked, Process, Ranks
from faults.scene import Files, Scene, comparable, is_inside, leftovers, without_volatile

BY_TIME = 0.3  # of the moments are drawn from the duration of the command, the others from its file operations
# Exit codes of the command line.
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


class Uninterrupted(NamedTuple):
    """What a command leaves behind, prints and says, when nothing happens to it."""

    files: Files
    printed: Any
    said: str
    operations: int
    seconds: float


class Workshop:
    """The scene, and what every command does to it when it is not disturbed, found out once."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        self._uninterrupted: dict[str, Uninterrupted] = {}

    def uninterrupted(self, command: Command) -> Uninterrupted:
        if command.name not in self._uninterrupted:
            self.scene.set_up()
            ending = start(self.scene, command).ending()
            if ending.code != DONE:
                raise BrokenPromiseError(f"undisturbed, it ended with {ending}")
            files = {name: content for name, content in self.scene.files().items() if is_inside(name, command.writes)}
            if command.like is not None:
                like = COMMANDS[command.like]
                files = {
                    name.replace(like.writes, command.writes, 1): content
                    for name, content in self.uninterrupted(like).files.items()
                }
            self._uninterrupted[command.name] = Uninterrupted(
                files, printed(ending), ending.err, ending.operations, ending.seconds
            )
        return self._uninterrupted[command.name]

    def trial(self, command: Command, chance: random.Random) -> Trial:
        """Set the scene up for a command."""
        usual = self.uninterrupted(command)
        self.scene.set_up()
        return Trial(self.scene, command, usual, chance)


class Trial:
    """A command on the scene, and the chance that draws the moment and the place of its fault."""

    def __init__(self, scene: Scene, command: Command, usual: Uninterrupted, chance: random.Random) -> None:
        self.scene = scene
        self.command = command
        self.chance = chance
        self.seconds = usual.seconds
        self.notes: list[str] = []
        self._usual = usual
        self._before = scene.files()
        self._damage: dict[str, bytes] = {}

    def note(self, text: str) -> None:
        """Remember what was drawn, for the message of a promise that is not kept."""
        self.notes.append(text)

    def path(self, name: str) -> Path:
        return self.scene.folder / name

    def start(self, stop_before: int | None = None, largest_file: int | None = None) -> Process:
        return start(self.scene, self.command, stop_before, largest_file)

    def start_until_a_moment(self) -> Process:
        """Start the command, and return it stopped at a moment that is drawn, or ended if it ended before."""
        if self.chance.random() < BY_TIME:
            seconds = self.chance.random() * self.seconds
            self.note(f"after {seconds:.2f} s")
            process = self.start()
            moment = time.monotonic() + seconds
            if process.wait(lambda: time.monotonic() > moment):
                process.send(signal.SIGSTOP)
        else:
            operation = self.chance.randint(1, max(1, self._usual.operations))
            self.note(f"before file operation {operation} of {self._usual.operations}")
            process = self.start(stop_before=operation)
        process.wait(process.is_stopped)
        return process

    def some_file(self) -> Path:
        """Draw a file of those that the command reads."""
        names = [name for name, content in self._before.items() if content and is_inside(name, self.command.reads)]
        return self.path(self.chance.choice(names))

    def run_damaged(self, damage: Mapping[Path, bytes | None]) -> None:
        """Replace files, or remove them where the content is None; run the command; and restore what it did not replace."""
        names = {str(path.relative_to(self.scene.folder)): content for path, content in damage.items()}
        self.note(", ".join(names))
        original = self._before
        self._write(names)
        self._before = self.scene.files()
        self._damage = {name: content for name, content in names.items() if content is not None}
        ending = self.start().ending()
        self.check(ending, DONE, BAD_INPUT)
        if ending.code != DONE:
            self.check_unchanged()
        restored = [name for name in names if ending.code != DONE or not is_inside(name, self.command.writes)]
        self._write({name: original.get(name) for name in restored})
        self._before = original
        self._damage = {name: content for name, content in self._damage.items() if name not in restored}

    def _write(self, contents: Mapping[str, bytes | None]) -> None:
        for name, content in contents.items():
            if content is None:
                self.path(name).unlink(missing_ok=True)
            else:
                self.path(name).write_bytes(content)

    def check(self, ending: Ending, *codes: int) -> None:
        """Check how a disturbed command ended: by one of the codes, with one line unless all is well, losing nothing."""
        self._check_message(ending, codes)
        if ending.code == DONE:
            self._check_result(ending)
        else:
            self._check_nothing_lost()

    def check_two(self, first: Ending, second: Ending) -> None:
        """Check how two processes of the same command ended: one was refused, or all is well."""
        self._check_message(second, (DONE, BAD_INPUT), "the second, ")
        self.check(first, *((DONE, BAD_INPUT) if second.code == DONE else (DONE,)))

    def check_unchanged(self) -> None:
        """Check that every file is what it was."""
        _expect_equal(self.scene.files(), self._before, "although it was refused")

    def check_again(self) -> None:
        """Run the same command again: it must end as if nothing had happened, and leave no temporary files."""
        ending = self.start().ending()
        self._check_message(ending, (DONE,), "again, ")
        self._check_result(ending)
        files = self.scene.files()
        if remains := leftovers(files):
            raise BrokenPromiseError(f"left over: {', '.join(remains)}")
        _expect_equal(self._outside(files), self._outside(self._before), "which is not its own")

    def _check_message(self, ending: Ending, codes: tuple[int, ...], which: str = "") -> None:
        lines = ending.err.strip().splitlines()
        told = f"{which}exit code {ending.code}: {chr(10).join(lines[-30:])}"
        if ending.code not in codes:
            raise BrokenPromiseError(told)
        if self.command.ranks:
            return  # torchrun adds a traceback of its own
        if "Traceback" in ending.err:
            raise BrokenPromiseError(told)
        if ending.code > DONE and (not lines or (len(lines) > 1 and "--quiet" in self.command.words)):
            raise BrokenPromiseError(f"not one line: {told}")

    def _check_result(self, ending: Ending) -> None:
        if self._damage and self.command.verb == "report" and ending.err != self._usual.said:
            return  # it says what is damaged, and shows the rest
        if self._usual.files and printed(ending) != self._usual.printed:
            raise BrokenPromiseError(f"it prints {printed(ending)} instead of {self._usual.printed}")
        files = {name: content for name, content in self.scene.files().items() if is_inside(name, self.command.writes)}
        untouched = {name: content for name, content in self._damage.items() if files.get(name) == content}
        expected = {name: untouched.get(name, content) for name, content in self._usual.files.items()}
        _expect_equal(_comparable(files), _comparable(expected), "in its result")

    def _check_nothing_lost(self) -> None:
        """Check what an interrupted command leaves: every file that was there is as before, or as it will be in the end."""
        files = self.scene.files()
        kept = {name: content for name, content in self._outside(files).items() if not leftovers((name,))}
        _expect_equal(kept, self._outside(self._before), "which is not its own")
        for name, content in self._before.items():
            if is_inside(name, self.command.writes) and not self._is_unfinished(name):
                now, end = files.get(name), self._usual.files.get(name)
                if now is None or (now != content and (end is None or comparable(name, now) != comparable(name, end))):
                    raise BrokenPromiseError(f"{name} was lost")
        for target in self.command.writes.split():
            before = _progress(self._before, target)
            if _progress(files, target) < before:
                raise BrokenPromiseError(f"{target}: what was trained up to step {before} was lost")

    def _is_unfinished(self, name: str) -> bool:
        return self.command.trains and f"{Path(name).parts[0]}/result.json" not in self._before

    def _outside(self, files: Files) -> dict[str, bytes]:
        return {name: content for name, content in files.items() if not is_inside(name, self.command.writes)}


def start(scene: Scene, command: Command, stop_before: int | None = None, largest_file: int | None = None) -> Process:
    if command.ranks:
        return Ranks(command.words, scene.folder)
    return Forked(command.words, scene.folder, stop_before, largest_file)


def printed(ending: Ending) -> Any:
    """Return what a command printed, without what depends on the moment."""
    try:
        return without_volatile(json.loads(ending.out))
    except ValueError:
        return ending.out


def _comparable(files: Files) -> dict[str, Any]:
    return {name: comparable(name, content) for name, content in files.items()}


def _expect_equal(files: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    for name in sorted({*files, *expected}):
        if name not in files:
            raise BrokenPromiseError(f"{name} is missing, {where}")
        if name not in expected:
            raise BrokenPromiseError(f"{name} is left over, {where}")
        if files[name] != expected[name]:
            raise BrokenPromiseError(
                f"{name} differs, {where}: {str(files[name])[:300]} instead of {str(expected[name])[:300]}"
            )


def _progress(files: Files, target: str) -> float:
    """Return the step of the newest checkpoint of a training; infinity if it is over."""
    if f"{target}/result.json" in files:
        return math.inf
    names = [Path(name).name for name in files if name.startswith(f"{target}/checkpoints/step-")]
    return max((int(name.split("-")[1]) for name in names), default=0)
