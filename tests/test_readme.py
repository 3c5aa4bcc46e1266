"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


class Model(nn.Module):
    """Has the names that the README's rules speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.body = nn.Conv2d(8, 16, 3)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize("number", range(len(snippets())))
def test_snippets_run(number, capsys):
    surroundings = {
        "model": Model(),
        "number_of_steps": 100,
        "loader": [(torch.randn(4, 3, 8, 8), torch.arange(4))],
        "loss_function": nn.functional.cross_entropy,
    }
    exec(snippets()[number], surroundings)


def test_quickstart_prints_what_the_readme_shows():
    done = subprocess.run(
        [sys.executable, "examples/quickstart.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    shown = re.search(r"```text\n(.*?)```", README, flags=re.DOTALL).group(1)

    def numbers(text: str) -> list[tuple[float, float]]:
        return [tuple(map(float, pair)) for pair in re.findall(r": ([\d.]+) % correct, ([\d.]+) % with", text)]

    (_, sgd_pruned), (sfw, sfw_pruned) = numbers(done.stdout)
    assert sgd_pruned < 80 < 95 < sfw_pruned
    assert sfw_pruned > sfw - 3
    # Rounding differs between machines; what is shown must be what anybody gets within a few points.
    for ours, theirs in zip(numbers(done.stdout), numbers(shown), strict=True):
        assert ours == pytest.approx(theirs, abs=6)
    table = [line for line in shown.splitlines() if line.startswith(("parameter", "0.", "1.", "3.", "6.", "w ="))]
    assert all(line in done.stdout for line in table)
    assert len((ROOT / "examples" / "quickstart.py").read_text().splitlines()) < 60


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
