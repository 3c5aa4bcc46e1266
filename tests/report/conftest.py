"""A real browser for pages: Chromium where it is, or as Debian packages it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser; installed where that is possible, else the test is skipped, and says why."""
    if (path := installed()) is not None:
        return path
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("no Chromium in PATH, and only root on Debian can install one: apt-get install chromium")
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(["apt-get", "update"], env=quietly, capture_output=True, timeout=300)
        command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        done = subprocess.run(command, env=quietly, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        pytest.skip("no Chromium in PATH, and apt-get install chromium took too long")
    if (path := installed()) is None:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"no Chromium in PATH, and apt-get install chromium failed: {last}")
    return path


@pytest.fixture(scope="module")
def browser(chromium):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield found
        found.close()
