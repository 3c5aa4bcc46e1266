"""Figures: drawn for all that runs may hold, with labels apart, and nothing global changed."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import pytest
from PIL import Image

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run
from sparsefw.report import ReportError, curves_figure, read_runs, sizes_figure, training_figure, write_figures
from sparsefw.report.canvas import DPI, apart, looks


def drawn(figure):
    """Label -> y values of the lines that have points."""
    return [list(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 5]


def texts(figure):
    return [text.get_text().replace("\u00a0", " ").replace("\n", " ") for text in figure.texts]


def test_the_demo(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    before = dict(matplotlib.rcParams)
    figure = curves_figure(runs, "filters", "removed")
    assert drawn(figure) == [list(SGD["plain"]), list(SGD["refit"]), list(SPARSE["plain"]), list(SPARSE["refit"])]
    assert [*texts(figure)[:4]] == ["SGD plain", "SGD refit", "SparseFW plain", "SparseFW refit"]
    assert texts(figure)[4].startswith("70 % of the filters removed")
    assert figure.axes[0].get_ylim()[0] == 0
    assert dict(matplotlib.rcParams) == before


def test_pyplot_stays_out(tmp_path):
    code = "import sys; from sparsefw.report import *; write_figures(Path(sys.argv[2]), read_runs(sys.argv[1:2])[0])"
    code = f"from pathlib import Path; {code}; print('matplotlib.pyplot' in sys.modules)"
    command = [sys.executable, "-c", code, str(write_demo(tmp_path / "runs")), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_files(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path / "runs")])
    files = write_figures(tmp_path / "out", runs)
    names = [
        f"{name}{ending}"
        for name in ("filters-removed", "filters-parameters", "training")
        for ending in (".png", ".svg")
    ]
    assert [file.name for file in files] == names == [*dict.fromkeys(names)]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(names)  # nothing left aside
    figure = curves_figure(runs, "filters", "removed")
    with Image.open(files[0]) as image:
        assert image.width == 8 * DPI
        assert image.height == pytest.approx(figure.get_figheight() * DPI, abs=1)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50
    for file in files[1::2]:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    first = files[1].read_bytes()
    assert write_figures(tmp_path / "out", runs)[1].read_bytes() == first  # equal runs, equal file


def test_seeds_become_a_band(tmp_path):
    for seed, shift in enumerate((0.0, 2.0, -1.0)):
        values = [value + shift for value in SGD["plain"]]
        write_run(tmp_path / str(seed), None, curve(SGD["dense"], values, SGD["refit"]), seed=seed)
    figure = curves_figure(read_runs([tmp_path])[0], "filters", "removed")
    assert len(drawn(figure)) == len(figure.axes[0].collections) == 2
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(10.84), pytest.approx(76.06))


@pytest.mark.parametrize("width", [4.0, 8.0])
def test_names_at_line_ends_do_not_overlap(width, tmp_path):
    write_run(tmp_path / "sgd", None, curve(**SGD))
    for k in (1, 2, 3):
        write_run(tmp_path / str(k), sparse(k=k), curve(**SPARSE))
    figure = curves_figure(read_runs([tmp_path])[0], "filters", "removed", title="", width=width)
    figure.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in figure.texts if t.get_text()), key=lambda box: box.y0)
    assert len(boxes) == 8
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_labels_are_put_apart_in_the_middle_of_where_they_belong():
    assert apart([5.0, 1.0], [1.0, 1.0], 0.0, 10.0) == [5.0, 1.0]
    assert apart([5.0, 5.0, 5.0], [2.0, 2.0, 2.0], 0.0, 10.0) == [3.0, 5.0, 7.0]
    assert apart([0.0, 0.0], [1.0, 3.0], 0.0, 10.0) == [0.5, 2.5]
    assert apart([10.0, 9.9], [1.0, 1.0], 0.0, 10.0) == [9.5, 8.5]
    assert apart([], [], 0.0, 1.0) == []


@pytest.mark.parametrize("label", ["_hidden", "$x^$", "a&<b>"])
def test_more_methods_than_fit_get_a_legend(label, tmp_path):
    for k in range(12):
        write_run(tmp_path / str(k), sparse(k=k + 1), curve(**SPARSE))
    write_run(tmp_path / "odd", {"name": label}, curve(**SGD))
    runs, _ = read_runs([tmp_path])
    figure = curves_figure(runs, "filters", "removed")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == len(set(names)) == 26
    assert f"{label} plain" in names
    assert len(set(looks(run.method for run in runs).values())) == 13
    write_figures(tmp_path / "out", runs)


def test_nan_masked_and_lonely_points(tmp_path):
    nan = curve(math.nan, [math.nan, math.inf, *[math.nan] * 3], [None, 50.0, None, math.nan, None], form="masked")
    one = curve(**SGD, kind="rank")
    one["points"] = one["points"][:1]
    write_run(tmp_path / "a", None, nan, one, epochs=1)
    runs, _ = read_runs([tmp_path])
    assert len(write_figures(tmp_path / "out", runs)) == 8
    with pytest.raises(ReportError, match="no run has a curve filters-removed"):
        sizes_figure(runs, "filters")


def test_training_without_validation_and_without_epochs(tmp_path):
    folder = write_run(tmp_path / "a", epochs=0, finished=False)
    with pytest.raises(ReportError, match="no run has finished an epoch"):
        training_figure(read_runs([folder])[0])
    (folder / "metrics.jsonl").write_text("".join(f'{{"epoch": {i}, "train": {{"mean_iou": {i}}}}}\n' for i in (1, 2)))
    figure = training_figure(read_runs([folder])[0])
    assert texts(figure)[:2] == ["SGD", "After training: 2.0 % training mean IoU with SGD"]
