"""The scene of a fault: a folder with tiny images, recipes, and runs, artifacts and a sweep that real commands have made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from faults.processes import Forked, end_processes_in
from sparsefw.atomic_io import is_leftover

CLASSES, SIDE = ("circle", "cross", "square"), 8
IMAGES = {"train": 16, "test": 6}  # of every class
RECIPE = """
data: {name: folder, batch_size: 8, size: [8, 8]}
model: {name: wide_resnet, arguments: {depth: 10, widen: 1}}
method: {name: sparsefw, kind: filters, k: 0.3}
train: {epochs: 2, lr: 0.1}
engine: {device: cpu, workers: 0, checkpoint_seconds: 0}
curve: {kind: filters, at: [0.5], calibration: 32}
"""
GRID = """
recipe: digits-resnet
kind: filters
at: [0.5]
train: {epochs: 1}
methods:
  SparseFW: {method: {name: sparsefw, kind: filters, k: [0.2, 0.3]}}
"""
SMALL = "--set model.arguments.width=4 --set data.batch_size=400 --set engine.device=cpu"
TRAIN = "train tiny.yaml --data data --quiet --json --out"
SWEEP = f"sweep grid.yaml {SMALL} --seeds 1 --workers 1 --grace 2 --json --out"
STOPPED_AT = 0.6  # of the file operations of a training
DISK_BYTES = 32 << 20  # of a disk that is mounted
FILLER = "filler"
FILLED_AT_ONCE = 1 << 16  # bytes
# What depends on the moment or on the machine; tokens, digests and hashes of files that contain such values as well.
VOLATILE = frozenset(
    {
        "seconds", "images_per_second", "milliseconds", "latency", "date", "memory", "commit", "token", "storage", "digest",
        "sha256", "hours",
    }
)  # fmt: skip

Files = Mapping[str, bytes]


class Scene:
    """One folder, always the same, because runs record absolute paths; `set_up` makes it what it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "scene"
        self._original = folder / "original"
        self.folder.mkdir(parents=True)
        self._prepare()
        shutil.copytree(self.folder, self._original)

    def set_up(self) -> None:
        end_processes_in(self.folder)
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._original, self.folder, dirs_exist_ok=True)

    def _prepare(self) -> None:
        chance = np.random.default_rng(0)
        for part, count in IMAGES.items():
            for number, name in enumerate(CLASSES):
                (self.folder / "data" / part / name).mkdir(parents=True)
                for i in range(count):
                    pixels = chance.integers(0, 160, (SIDE, SIDE, 3)) + 40 * (np.arange(3) == number)
                    Image.fromarray(pixels.astype(np.uint8)).save(self.folder / "data" / part / name / f"{i:02d}.png")
        (self.folder / "tiny.yaml").write_text(RECIPE)
        (self.folder / "grid.yaml").write_text(GRID)
        for seed, (whole, half) in enumerate((("finished", "half"), ("other", "half-other"))):
            operations = self._done(f"{TRAIN} {whole} --seed {seed}")
            training = self._start(f"{TRAIN} {half} --seed {seed}", stop_before=int(STOPPED_AT * operations))
            assert training.wait(training.is_stopped)
            training.send(signal.SIGTERM)
            training.send(signal.SIGCONT)
            training.ending()
        self._done("compress finished --filters 0.25 --out small --quiet --json")
        self._done("curve finished --at 0.25 --quiet --json")
        self._done("report finished --out page.html --json")
        sweep = self._start(f"{SWEEP} begun")
        assert sweep.wait((self.folder / "begun" / "sweep.json").exists)
        sweep.send(signal.SIGKILL)
        sweep.ending()
        end_processes_in(self.folder)
        for name in leftovers(os.listdir(self.folder / "begun")):
            shutil.rmtree(self.folder / "begun" / name)

    def _start(self, line: str, stop_before: int | None = None) -> Forked:
        return Forked(tuple(line.split()), self.folder, stop_before)

    def _done(self, line: str) -> int:
        """Run a command to its end, and return the number of its file operations."""
        ending = self._start(line).ending()
        assert ending.code == 0, ending
        return ending.operations

    def files(self) -> dict[str, bytes]:
        """Return the content of every file, by its path in the scene."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != FILLER
        }

    @contextlib.contextmanager
    def small_disk(self) -> Iterator[None]:
        """For the duration of the block, the scene is a disk of its own, which can be filled or made read-only."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", self.folder], check=True)
        try:
            shutil.copytree(self._original, self.folder, dirs_exist_ok=True)
            yield
        finally:
            end_processes_in(self.folder)
            subprocess.run(["umount", "--lazy", self.folder], check=True)

    @contextlib.contextmanager
    def full_disk(self, free: int) -> Iterator[None]:
        """For the duration of the block, the disk has so many bytes left."""
        filler = self.folder / FILLER
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(FILLED_AT_ONCE)):
                pass
        os.truncate(filler, max(0, filler.stat().st_size - free))
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """For the duration of the block, nothing in the scene can be written."""
        if can_mount():
            subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
            yield
            subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)
            return
        folders = [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]
        try:
            for folder in folders:
                folder.chmod(0o555)
            yield
        finally:
            for folder in folders:
                folder.chmod(0o755)


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def is_inside(name: str, targets: str) -> bool:
    """Return whether a file is one of these, or in one of these folders; they are separated by spaces."""
    return any(name == target or name.startswith(f"{target}/") for target in targets.split())


def comparable(name: str, content: bytes) -> Any:
    """Return what a file must have in common with that of an uninterrupted command; None: it must only be there.

    Pictures contain speeds and dates, a database the times of its entries, environment.json the machine.
    """
    path = Path(name)
    if path.name in (".lock", "environment.json") or path.suffix in (".png", ".svg", ".db"):
        return None
    try:
        if path.suffix == ".jsonl":
            return [without_volatile(json.loads(line)) for line in content.decode().splitlines()]
        return without_volatile(json.loads(content)) if path.suffix == ".json" else content
    except ValueError:
        return content


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    return [without_volatile(item) for item in value] if isinstance(value, list) else value


def leftovers(files: Iterable[str]) -> list[str]:
    """Return the temporary files of processes that did not live to remove them."""
    return [name for name in files if any(is_leftover(part) for part in Path(name).parts)]
