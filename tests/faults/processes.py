"""Commands in processes of their own, forked from one that has imported torch already; one can stop before a file operation.

A command that is to be disturbed at its n-th file operation stops itself there by SIGSTOP. Whatever is done to it then, such as
SIGKILL, is done from outside, as a user, a scheduler or a disk would do it.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sparsefw import cli

PATIENCE = 300  # seconds until a process that hangs is given up
# The operations that change files, before which a process can stop: events of sys.addaudithook, and methods of open files.
# Between an open and the first write, a file that is not written aside is empty.
AUDITED = frozenset(
    {
        "open",
        "os.chmod",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.truncate",
        "shutil.rmtree",
        "fcntl.flock",
    }
)
WRITES = frozenset({"write", "writelines"})
VERBS_IMPORT = (
    *(f"sparsefw.cli.{module.name}" for module in pkgutil.iter_modules(cli.__path__)),
    "sparsefw.compression.artifact.export",
    "sparsefw.sweep.worker",
    "matplotlib.backends.backend_svg",
    "optuna.storages._rdb.alembic",
)


@dataclass(frozen=True)
class Ending:
    """How a process ended. operations: how many file operations it began, 0 where they were not counted."""

    code: int
    out: str
    err: str
    operations: int = 0
    seconds: float = 0.0


class Process:
    """A running command. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, folder: Path) -> None:
        self._log = tempfile.TemporaryDirectory(prefix="sparsefw-fault-")
        self._started = time.monotonic()
        self.folder = folder
        self.log = Path(self._log.name)
        self.pid = 0

    def alive(self) -> bool:
        raise NotImplementedError

    def _code(self) -> int:
        raise NotImplementedError

    def send(self, which: int) -> None:
        if self.alive():
            os.kill(self.pid, which)

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait until the condition holds, and return True; False where the process ended before."""
        while self.alive():
            if until():
                return True
            if time.monotonic() - self._started > PATIENCE:
                self.send(signal.SIGKILL)
                raise AssertionError(f"it hung: {self._read('out')} {self._read('err')}")
            time.sleep(0.001)
        return False

    def is_stopped(self) -> bool:
        return process_state(self.pid) == "T"

    def children(self) -> list[int]:
        """Return the living processes that it has started, oldest first."""
        try:
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in pids if process_state(int(pid)) not in ("Z", "")]

    def ending(self) -> Ending:
        """Wait for its end."""
        self.wait(lambda: False)
        seconds = time.monotonic() - self._started
        ending = Ending(self._code(), self._read("out"), self._read("err"), int(self._read("operations") or 0), seconds)
        self._log.cleanup()
        return ending

    def _read(self, name: str) -> str:
        file = self.log / name
        return file.read_text(errors="replace") if file.exists() else ""


class Forked(Process):
    """`sparsefw WORDS` in a folder.

    stop_before: the number of the file operation in the folder before which it stops itself
    largest_file: bytes that a file may have, in place of a small disk where none can be mounted
    """

    def __init__(
        self, words: tuple[str, ...], folder: Path, stop_before: int | None = None, largest_file: int | None = None
    ) -> None:
        super().__init__(folder)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(VERBS_IMPORT))
        self._process = context.Process(target=_run, args=(words, folder, self.log, stop_before, largest_file))
        self._process.start()
        self.pid = self._process.pid or 0

    def alive(self) -> bool:
        return self._process.is_alive()

    def _code(self) -> int:
        self._process.join()
        return self._process.exitcode or 0


class Ranks(Process):
    """`torchrun --nproc-per-node 2 -m sparsefw WORDS` in a folder."""

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        super().__init__(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", "-m", "sparsefw")
        with (self.log / "out").open("w") as out, (self.log / "err").open("w") as err:
            self._process = subprocess.Popen([sys.executable, *launcher, *words], cwd=folder, stdout=out, stderr=err)
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def _code(self) -> int:
        return self._process.wait()


def process_state(pid: int) -> str:
    """Return the letter of a process's state, such as T for stopped; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def end_processes_in(folder: Path) -> None:
    """End all processes whose current folder this is: workers that have outlived the process that started them."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder:
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


def _run(words: tuple[str, ...], folder: Path, log: Path, stop_before: int | None, largest_file: int | None) -> None:
    """The body of a forked process, up to its exit."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(folder)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    operations = _FileOperations(folder, stop_before)
    sys.addaudithook(operations.audit)
    sys.setprofile(operations.profile)
    try:
        cli.run(words, prog_name="sparsefw")
    finally:
        sys.setprofile(None)
        operations.stop_before = None
        (log / "operations").write_text(str(operations.count))


class _FileOperations:
    """Counts the file operations of this process in a folder, and stops the process before one of them."""

    def __init__(self, folder: Path, stop_before: int | None) -> None:
        self._folder = str(folder)
        self.stop_before = stop_before
        self.count = 0

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        only_reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in AUDITED and not only_reads and self._is_inside(arguments[0]):
            self._begin()

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        if (
            event == "c_call"
            and function.__name__ in WRITES
            and self._is_inside(getattr(function.__self__, "name", "/"))
        ):
            self._begin()

    def _begin(self) -> None:
        self.count += 1
        if self.count == self.stop_before:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _is_inside(self, path: object) -> bool:
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.fsdecode(path)
            return name.startswith(self._folder) or not name.startswith("/")
        return True  # the descriptor of an open file
