"""Pipes, sockets, devices, folders and endless files in the place of a file: refused in one line, or passed over."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.readers import READERS
from fuzz.test_readers import refusal


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        where = os.getcwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            opened.bind(path.name[:80])
            os.rename(path.name[:80], path)
        finally:
            os.chdir(where)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_what_is_no_file(reader, tmp_path):
    file = reader.example(tmp_path)
    for kind, make in KINDS.items():
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
        make(file)
        message = refusal(reader, file)
        assert message is None or str(tmp_path) in message, kind


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader.is_whole], ids=str)
def test_a_file_of_a_terabyte(reader, tmp_path):
    """Of zeros, without a block on the disk."""
    file = reader.example(tmp_path)
    file.write_bytes(b"")
    os.truncate(file, 1 << 40)
    message = refusal(reader, file)
    assert message is None or str(tmp_path) in message
