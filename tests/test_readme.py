"""The commands and snippets of the README, and of some pages of docs, run and print what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from sparsefw import SFW, constrain
from sparsefw.cli.main import app
from sparsefw.models import build
from sparsefw.reproduce import EXPERIMENTS
from sparsefw.sweep.grids import grid_descriptions
from sparsefw.train import load_recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
SHOWN = README + "".join((ROOT / "docs" / page).read_text() for page in ("optimizer.md", "sizes.md"))


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", SHOWN, flags=re.DOTALL)


def test_the_readme_is_read_in_three_minutes():
    assert len(README.split()) <= 900


class Model(nn.Module):
    """A network with the layer names that the rules in the documentation use."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.body = nn.Conv2d(8, 16, 3)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.hidden(self.body(self.stem(x)).mean((2, 3))))


@pytest.mark.parametrize("number", range(len(snippets())))
def test_snippets_run(number, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Model()
    surroundings = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "build_model": Model,
        "number_of_steps": 100,
        "loader": [(torch.randn(8, 3, 8, 8), torch.arange(8)) for _ in range(2)],
        "accuracy": lambda net: float(net(torch.ones(2, 3, 8, 8)).detach().sum()),
        "loss_function": nn.functional.cross_entropy,
        "x": torch.randn(2, 3, 8, 8),
        "constrain": constrain,
        "SFW": SFW,
    }
    exec(snippets()[number], surroundings)


def rows(text: str) -> list[dict[str, float]]:
    """Return the lines of the printed curves: SGD's, then SFW's, each for 50 ... 90 % removed."""
    lines = re.findall(
        r"^ +(\d+)% +([\d.]+) +([\d.]+) +(?:plain|refit) +[\d.]+ +([\d,]+) +([\d,]+)", text, flags=re.MULTILINE
    )
    names = ("ratio", "plain", "refit", "parameters", "macs")
    return [dict(zip(names, (float(cell.replace(",", "")) for cell in row), strict=True)) for row in lines]


@pytest.mark.slow
def test_quickstart_prints_what_its_page_shows(tmp_path):
    example = ROOT / "examples" / "quickstart.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = re.search(r"```text\n(.*?)```", QUICKSTART, flags=re.DOTALL).group(1)
    got, printed = rows(done.stdout), rows(shown)
    assert len(got) == len(printed) == 10
    for ours, theirs in zip(got, printed, strict=True):  # sizes are exact, accuracies differ a little between machines
        assert [ours[key] for key in ("ratio", "parameters", "macs")] == [
            theirs[key] for key in ("ratio", "parameters", "macs")
        ]
    for text, table in ((done.stdout, got), (shown, printed)):
        sgd, sfw = table[:5], table[5:]
        assert all(row["refit"] > row["plain"] + 10 for row in sgd)
        assert sgd[2]["plain"] < 50
        assert all(row["refit"] > 85 for row in sfw)
        sgd_dense, dense = map(float, re.findall(r"^ +dense +([\d.]+)", text, flags=re.MULTILINE))
        assert dense >= sgd_dense - 1  # four of 397 images; over several seeds, the two are alike
        assert sfw[3]["plain"] >= dense - 1
    assert "loaded again" in done.stdout
    assert sum(map(bool, example.read_text().splitlines())) <= 40  # as `make help` says


def console_blocks() -> tuple[list[str], list[str]]:
    """Return the commands that are run here, and those that take hours or need other data."""
    run, shown = [], []
    for marked, block in re.findall(r"(<!-- run by .*? -->\n)?```console\n(.*?)```", README, flags=re.DOTALL):
        (run if marked else shown).extend(re.findall(r"^\$ (.*?)(?: +#.*)?$", block, flags=re.MULTILINE))
    return run, shown


@pytest.mark.slow
def test_console_commands_run(tmp_path):
    """Run the commands in order, word for word."""
    commands, _ = console_blocks()
    assert len(commands) >= 4
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "small" / "model.onnx").exists()


def test_console_commands_that_are_only_shown_exist():
    """Check that their names are listed and their options are in the help."""
    _, commands = console_blocks()
    assert len(commands) >= 3
    for command in commands:
        program, verb, name, *options = command.split()
        assert program == "sparsefw"
        assert name in {"sweep": grid_descriptions(), "reproduce": EXPERIMENTS}[verb], command
        helped = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
        assert all(option in helped for option in options if option.startswith("--")), command


def test_the_recipe_of_the_documentation_is_one(tmp_path):
    text = (ROOT / "docs" / "train.md").read_text()
    (tmp_path / "own.yaml").write_text(re.search(r"```yaml\n(.*?)```", text, flags=re.DOTALL).group(1))
    config = load_recipe(str(tmp_path / "own.yaml"))
    assert config.name == "own"
    model = build(config.model.name)
    assert constrain(model, config.method.kind, steps=1000, report=None)


def test_every_measured_claim_has_its_command():
    section = README.split("## Measured")[1].split("```console")[0]
    claims = section.strip().split("\n- ")
    assert len(claims) >= 5
    assert all(re.search(r"`(python benchmarks/|sparsefw bench )", claim) for claim in claims)


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
