"""`sparsefw demo`, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparsefw import load
from sparsefw.cli.digits_demo import DROP

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """Run the demo; return its folder and its output. train/test_learning.py runs its trainings with another seed."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run([sys.executable, "-m", "sparsefw", "demo"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "demo", done.stdout


def curve(folder: Path, variant: str, kind: str) -> dict:
    return json.loads((folder / variant / "curves" / f"{kind}-removed.json").read_text())


def points(folder: Path, variant: str, kind: str) -> dict[float, dict[str, float]]:
    return {point["ratio"]: point for point in curve(folder, variant, kind)["points"]}


def test_training_over_sizes_keeps_the_accuracy_that_sgd_loses(demo):
    folder, _ = demo
    filters = points(folder, "sizes", "filters")
    sgd_filters = points(folder, "sgd", "filters")
    assert filters[0.8]["plain"] >= 93 > 40 > sgd_filters[0.8]["plain"]
    rank = points(folder, "rank", "rank")
    sgd_rank = points(folder, "sgd", "rank")
    assert rank[0.9]["plain"] >= sgd_rank[0.9]["plain"] + 15
    dense = curve(folder, "sizes", "filters")["dense"]
    assert dense >= curve(folder, "sgd", "filters")["dense"] - 0.5  # two of 397 images
    assert filters[0.8]["plain"] >= dense - 1
    assert list(rank) == list(filters) == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def test_the_demo_writes_pictures_and_a_page(demo):
    folder, _ = demo
    for kind in ("filters", "rank"):
        assert (folder / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "index.html").read_text()
    HTMLParser().feed(page)
    assert page.count('data-explorer="') == 2  # filters and rank, each with its slider
    assert "<script src=" not in page  # nothing is fetched


def test_the_small_network_loses_at_most_a_point_on_validation_images(demo):
    folder, text = demo
    small = load(folder / "small")
    dense, compressed = small.plan.request["metric"]
    assert compressed >= dense - DROP
    costs = small.certificate["costs"]
    assert costs["compressed"]["parameters"] < 0.2 * costs["dense"]["parameters"]
    assert (folder / "small" / "model.onnx").exists()
    assert "onnx ms" in text


def test_the_output_explains_the_demo_and_suggests_commands(demo):
    folder, text = demo
    assert "What you just saw" in text
    assert f"sparsefw compress runs/{folder.name}/sizes --filters 0.8" in text
    assert str(Path("runs") / folder.name / "index.html") in text
