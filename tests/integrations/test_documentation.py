"""The code of docs/integrations.md runs as it is printed, and the examples train."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from integrations import test_transformers as with_bert
from integrations.plain_loop import IMAGES
from sparsefw import constrain, curve
from sparsefw.integrations.requirements import prepare_torchvision
from sparsefw.models import build

prepare_torchvision()
PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
PROGRAMS = {"Lightning": "lightning", "Transformers": "transformers", "Accelerate": "accelerate", "timm": "timm"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]


def code_of(heading: str) -> str:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", section, flags=re.DOTALL).group(1)


@pytest.mark.parametrize("heading", PROGRAMS)
def test_code_runs(heading, tmp_path, monkeypatch):
    pytest.importorskip(PROGRAMS[heading])
    monkeypatch.chdir(tmp_path)
    surroundings = {
        "model": build("resnet_digits", width=4),
        "bert": with_bert.network(),
        "dataset": with_bert.DATA,
        "tokens": with_bert.TOKENS[:2],
        "loader": [(torch.randn(8, 1, 8, 8), torch.arange(8)) for _ in range(2)],
        "loss_function": cross_entropy,
        "x": torch.randn(2, 1, 8, 8),
    }
    if heading != "timm":
        data = torch.utils.data.TensorDataset(torch.randn(16, 1, 8, 8), torch.arange(16) % 10)
        surroundings["loader"] = torch.utils.data.DataLoader(data, 8)
    exec(code_of(heading), surroundings)
    small = surroundings["small"] if "small" in surroundings else surroundings["shrink"].compressed
    assert isinstance(small.model, nn.Module)


def test_every_program_has_its_section_and_its_file():
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == list(PROGRAMS)
    files = {path.stem for path in (Path(constrain.__code__.co_filename).parents[1] / "integrations").glob("*.py")}
    assert files == {"__init__", "requirements", *PROGRAMS.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program", "kind", "least"),
    [
        ("lightning_sizes", "lightning", "filters", 80),
        ("accelerate_sizes", "accelerate", "filters", 80),
        ("timm_script", "timm", "neurons", 60),
        ("trainer_sizes", "transformers", "neurons", 40),
    ],
)
def test_examples_learn_at_every_size(name, program, kind, least, tmp_path, monkeypatch):
    pytest.importorskip(program)
    monkeypatch.chdir(tmp_path)
    example = importlib.import_module(name)
    net = example.train("SFW over sizes")
    images = example.calibration() if name == "trainer_sizes" else IMAGES.split(32)
    points = curve(net, kind, (0.5,), form="removed", calibration=images, evaluate=example.accuracy, refit=False)
    assert example.accuracy(net) > least
    assert points.points[0].plain > least - 5
