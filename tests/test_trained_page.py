"""The page "I have a trained model": its commands run in order, word for word, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefw import load

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "trained.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"<!-- run by tests/test_trained_page.py -->\n```console\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == PAGE.count("```console")
    return [command for block in blocks for command in re.findall(r"^\$ (.*?)(?: +#.*)?$", block, flags=re.MULTILINE)]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = {}
    for command in commands():
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[command] = done.stdout
    compressed, fifty, blind = ([text for command, text in printed.items() if f"-o {out}" in command] for out in (
        "small", "fifty", "blind",
    ))  # fmt: skip
    dense, half = map(float, re.search(r"accuracy on the test images: ([\d.]+) -> ([\d.]+)", compressed[0]).groups())
    assert dense > 95
    assert half > 90
    shown = "\n".join(line.strip() for line in PAGE.splitlines())
    for row in re.findall(r"^(?:removed|parameters|MACs|images:) .*$", compressed[0], flags=re.MULTILINE):
        assert row in shown, row
    assert load(tmp_path / "fifty").costs.parameters <= 50_000
    assert "for params=50k" in fifty[0]
    assert "no data were seen" in blind[0]
    assert (tmp_path / "small" / "model.onnx").exists()
    assert (tmp_path / "runs" / "tuned" / "result.json").exists()


def test_the_page_names_commands_that_follow_one_another():
    assert commands()[0] == "python examples/trained.py"
    assert [command.split()[1] for command in commands()[1:]] == [
        "compress", "curve", "compress", "compress", "finetune", "curve",
    ]  # fmt: skip
