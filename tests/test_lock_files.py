"""What has the name of a lock file is neither emptied nor waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsefw.config_base import ConfigError
from sparsefw.lock_files import open_lock
from sparsefw.sweep.files import WORKERS_FOLDER
from sparsefw.sweep.locks import Worker, reap_if_dead
from sparsefw.train import RunFolder


def linked(path: Path) -> None:
    victim = path.with_name("victim.txt")
    victim.write_text("precious")
    path.symlink_to(victim)


@pytest.mark.parametrize(
    ("make", "reason"), [(linked, "symbolic link"), (os.mkfifo, "pipe or a device"), (os.mkdir, "directory")]
)
def test_a_run_folder_is_not_locked_by_something_else(tmp_path, make, reason):
    make(tmp_path / ".lock")
    with pytest.raises(ConfigError, match=rf"\.lock cannot be locked: .*{reason}"), RunFolder(tmp_path).locked():
        pass
    assert all(file.read_text() == "precious" for file in tmp_path.glob("victim.txt"))


@pytest.mark.parametrize("make", [linked, os.mkfifo])
def test_a_worker_is_not_dead_because_something_else_has_the_name_of_its_lock(tmp_path, make):
    (tmp_path / WORKERS_FOLDER).mkdir()
    lock = tmp_path / WORKERS_FOLDER / "0123456789ab.lock"
    make(lock)
    assert not reap_if_dead(Worker("0123456789ab", os.uname().nodename).record, tmp_path)
    assert os.path.lexists(lock)


def test_what_a_lock_file_holds_stays(tmp_path):
    (tmp_path / "lock").write_text("a note")
    open_lock(tmp_path / "lock").close()
    assert (tmp_path / "lock").read_text() == "a note"
    with pytest.raises(FileNotFoundError):
        open_lock(tmp_path / "other", create=False)
