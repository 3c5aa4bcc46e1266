"""Files and folders that are complete or absent: what kills leave, modes, errors. Processes are real, and so are kills."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsefw.atomic_io import remove_leftovers, replaced_file, replaced_folder, write_text

FUTURE = time.time() + 1e8
REPLACE = {"file": "replaced_file", "folder": "replaced_folder"}


@contextlib.contextmanager
def writing(target: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has written half of `target`, and waits."""
    code = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from sparsefw.atomic_io import replaced_file, replaced_folder
        with {REPLACE[what]}(Path({str(target)!r})) as aside:
            (aside if {what == "file"} else aside / "weights").write_text("half")
            print("half", flush=True)
            sys.stdin.read()
            (aside if {what == "file"} else aside / "weights").write_text("whole")
    """)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        try:
            yield process
        finally:
            process.kill()


def killed(target: Path, what: str) -> Path:
    """Return what a process leaves that is killed while it writes `target`."""
    before = set(target.parent.iterdir())
    with writing(target, what) as process:
        process.send_signal(signal.SIGKILL)
    (left,) = set(target.parent.iterdir()) - before
    return left


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(target: Path, what: str) -> None:
    if what == "file":
        write_text(target, "new")
    else:
        with replaced_folder(target) as aside:
            (aside / "weights").write_text("new")


@pytest.mark.parametrize("date", [0.0, FUTURE], ids=["of 1970", "of the future"])
@pytest.mark.parametrize("what", REPLACE)
def test_the_next_write_of_a_target_removes_what_a_kill_left_of_it(tmp_path, what, date):
    target = tmp_path / "small"
    left = killed(target, what)
    os.utime(left, (date, date))
    other = killed(tmp_path / "smaller", what)
    write(target, what)
    assert names(tmp_path) == [other.name, "small"]


@pytest.mark.parametrize("what", REPLACE)
def test_what_a_running_process_writes_stays(tmp_path, what):
    target = tmp_path / "small"
    with writing(target, what) as process:
        write(target, what)
        remove_leftovers(tmp_path)
        assert len(names(tmp_path)) == 2
        process.communicate("go on", timeout=100)
        assert process.returncode == 0
    assert names(tmp_path) == ["small"]
    assert (target if what == "file" else target / "weights").read_text() == "whole"


def test_a_link_in_the_place_of_a_leftover_is_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / ".small.01234567.new").symlink_to(tmp_path / "mine")
    write(tmp_path / "small", "folder")
    remove_leftovers(tmp_path)
    assert names(tmp_path / "mine") == []


def test_hidden_files_of_the_user_stay(tmp_path):
    mine = [".small.new", ".small.backup.new", "small.01234567.new", ".small.01234567.new2"]
    for name in mine:
        (tmp_path / name).mkdir()
    write(tmp_path / "small", "file")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*mine, "small"])


def test_the_only_copy_of_a_folder_is_no_leftover(tmp_path):
    """Where names cannot be exchanged, a kill may come after the old folder was moved away and before the new one is there."""
    code = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from sparsefw import atomic_io
        target = Path({str(tmp_path / "small")!r})
        with atomic_io.replaced_folder(target) as aside:
            (aside / "weights").write_text("old")
        atomic_io._exchange = lambda a, b: False
        rename = os.rename
        def rename_and_die(a, b):
            rename(a, b)
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename = rename_and_die
        with atomic_io.replaced_folder(target) as aside:
            pass
    """)
    # The first rename fails, since the target is not empty.
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    remove_leftovers(tmp_path)
    (old,) = left.glob("*/small/weights")
    assert old.read_text() == "old"
    write(tmp_path / "small", "folder")  # now there is a new one
    write(tmp_path / "small", "folder")
    assert names(tmp_path) == ["small"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o027])
def test_new_files_have_the_modes_that_the_umask_says(tmp_path, umask):
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    before = os.umask(umask)
    try:
        write_text(tmp_path / "file", "x")
        with replaced_file(tmp_path / "private") as aside:
            aside.touch(mode=0o600)  # as safetensors does
        with replaced_folder(tmp_path / "folder") as aside:
            (aside / "weights").touch(mode=0o600)
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == mode(tmp_path / "private") == 0o666 & ~umask
    assert mode(tmp_path / "folder") == 0o777 & ~umask
    assert mode(tmp_path / "folder" / "weights") == 0o666 & ~umask


def test_errors_name_the_target_rather_than_a_temporary_path(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path / "folder", "x")
    assert caught.value.filename == str(tmp_path / "folder")
    with pytest.raises(FileNotFoundError) as caught, replaced_folder(tmp_path / "small") as aside:
        (aside / "nowhere" / "x").touch()
    assert caught.value.filename == str(tmp_path / "small" / "nowhere" / "x")
    with pytest.raises(FileNotFoundError) as caught, replaced_folder(tmp_path / "small"):
        (tmp_path / "nowhere").read_text()  # not one of the files that are written
    assert caught.value.filename == str(tmp_path / "nowhere")


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    for name in ("n" * 255, "\N{FROG FACE}" * 63):
        write(tmp_path / name, "file")
        assert (tmp_path / name).read_text() == "new"


def test_a_folder_without_our_lock_is_not_ours(tmp_path):
    """Whatever its name is, except that it may be empty: a kill may come between the folder and its lock."""
    foreign, empty = tmp_path / ".page.html.0123abcd.new", tmp_path / ".page.html.4567cdef.new"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    empty.mkdir()
    write_text(tmp_path / "page.html", "<html>")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, "page.html"]
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
