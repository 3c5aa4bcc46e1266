"""Progress: a bar on terminals, nothing elsewhere, or the user's function."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from sparsefw import compress
from sparsefw.compression.progress import Bar, shown


def test_a_bar_by_hand():
    stream = io.StringIO()
    bar = Bar(stream, width=4, after=0.0)
    bar(0, 2, "first layer")
    bar(1, 2, "second")
    bar(2, 2, "")
    assert stream.getvalue().split("\r") == [
        "",
        "fitting 0/2 [....] first layer",
        "fitting 1/2 [##..] second     ",  # written over what was there
        " " * 25,
        "",
    ]


def test_short_work_shows_none():
    stream = io.StringIO()
    bar = Bar(stream, after=60.0)
    bar(0, 2, "layer")
    bar(2, 2, "")
    assert stream.getvalue() == ""


def test_no_bar_without_a_terminal():
    assert shown(None) is None  # the tests run without one
    assert shown(False) is None
    assert isinstance(shown(True), Bar)
    assert shown(print) is print


@pytest.mark.parametrize("wrong", [3, "yes", [print]])
def test_a_wrong_progress_is_refused(wrong):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"^progress must be True, False or a function of \(done, total, layer name\)"):
        compress(net, filters=0.5, example=torch.randn(2, 3), progress=wrong)


def test_on_a_terminal():
    """A real one: the bar is there while layers are fitted, and gone afterwards."""
    code = textwrap.dedent("""
        import torch
        from torch import nn
        from sparsefw.compression import compress, progress
        progress.Bar.__init__.__defaults__ = (20, 0.0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        compress(net, filters=0.5, calibration=[torch.randn(64, 8)])
    """)
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, timeout=120)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "fitting 1/3 [######..............] 2" in text
    assert text.endswith("\r")
    assert text.split("\r")[-2].strip() == ""
