"""A PostgreSQL server for the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from glob import glob
from pathlib import Path

import pytest

INSTALLATION_SECONDS = 600  # at most


def _program(name: str) -> str | None:
    paths = sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return paths[-1] if paths else shutil.which(name)


def _install() -> None:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(
                ["apt-get", "-q", *words],
                env=environment,
                capture_output=True,
                timeout=INSTALLATION_SECONDS,
                check=False,
            )


@pytest.fixture
def postgres(server):
    """Return the URL of an empty database."""
    import psycopg

    name = f"sweeps_{uuid.uuid4().hex}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


@pytest.fixture(scope="session")
def server():
    """Return the address of a PostgreSQL server that runs as long as the tests."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    if _program("initdb") is None:
        _install()
    if _program("initdb") is None:
        pytest.skip("no PostgreSQL server here, and none can be installed without root and apt-get")
    # The server refuses to run as root.
    user = {"user": "nobody"} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="sparsefw-postgres-"))
    if user:
        shutil.chown(folder, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    subprocess.run(
        [_program("initdb"), "-D", data, "-U", "tester", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, cwd=folder, **user,
    )  # fmt: skip
    words = [_program("postgres"), "-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **user)
    try:
        _wait(port, server)
        yield f"postgresql://tester@127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)  # a SIGTERM would wait until all connections are closed, ours among them
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(port: int, server: subprocess.Popen) -> None:
    import psycopg

    for _ in range(300):
        assert server.poll() is None, "the PostgreSQL server ended"
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="tester", dbname="postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the PostgreSQL server does not answer")
