"""Figures: drawn for all that runs may hold, with labels apart, and nothing global changed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise

import matplotlib
import pytest
from PIL import Image

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run, write_spectra, write_sweep
from runfolder.records import config_without_digest
from sparsefw.plotting.figure_io import DPI
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.plotting.palette import line_styles
from sparsefw.report import (
    ReportError,
    curves_figure,
    read_run,
    read_runs,
    run_figure,
    sizes_figure,
    training_figure,
    write_files,
)
from sparsefw.report.charts import curves_chart, decay_chart
from sparsefw.report.series import compared


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
    code = "import sys; from sparsefw.report import *; write_files(Path(sys.argv[2]), read_runs(sys.argv[1:2])[0])"
    code = f"from pathlib import Path; {code}; print('matplotlib.pyplot' in sys.modules)"
    command = [sys.executable, "-c", code, str(write_demo(tmp_path / "runs")), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_files(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path / "runs")])
    files = write_files(tmp_path / "out", runs)
    figures = [f"filters-removed{axis}" for axis in ("", "-parameters", "-macs", "-bytes")] + ["training"]
    tables = ["runs", "configurations", "filters-removed", "filters-removed-sizes"]
    names = [f"{name}{ending}" for name in tables for ending in (".csv", ".tex", ".md")]
    names += [f"{name}{ending}" for name in figures for ending in (".png", ".svg")]
    assert [file.name for file in files] == names == [*dict.fromkeys(names)]
    files = files[12:]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(names)  # nothing left aside
    figure = curves_figure(runs, "filters", "removed")
    with Image.open(files[0]) as image:
        assert image.width == 8 * DPI
        assert image.height == pytest.approx(figure.get_figheight() * DPI, abs=1)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50
    for file in files[1::2]:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    first = files[1].read_bytes()
    assert write_files(tmp_path / "out", runs)[13].read_bytes() == first  # equal runs, equal file


def test_files_of_sweeps_spectra_and_several_tasks(tmp_path):
    write_spectra(write_sweep(tmp_path / "runs") / "sgd", conv=[2.0, 1.0], fc=[1.0, 0.0])
    other = write_run(tmp_path / "runs" / "other", None, curve(**SPARSE, kind="2:4"))
    config = other / "config.yaml"
    config.write_text(config_without_digest(config).replace("resnet-mini", "vgg"))
    written = write_files(tmp_path / "out", read_runs([tmp_path / "runs"])[0])
    found = {str(file.relative_to(tmp_path / "out")) for file in written}
    sweep = "task-1/sweep-SparseFW_filters-filters-removed-validation"
    for name in (
        f"{sweep}.csv",
        f"{sweep}-method.w-method.k.png",
        "task-1/spectra-filters.svg",
        "task-2/2_4-removed.md",
    ):
        assert name in found
    assert all(file.stat().st_size for file in written)


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
    chart = curves_chart(compared(read_runs([tmp_path])[0], "filters", "removed"))
    figure = draw_chart(replace(chart, title="", subtitle=""), width=width)
    figure.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in figure.texts if t.get_text()), key=lambda box: box.y0)
    assert len(boxes) == 8
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


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
    assert len(set(line_styles({run.method: run.method_name for run in runs}).values())) == 13
    draw_chart(curves_chart(compared(runs, "filters", "removed")), "macs").savefig(tmp_path / "x.png")


def test_ratios_close_to_all_are_pulled_apart(tmp_path):
    """0.9, 0.97, 0.98 and 0.99 on a linear axis from 0.3: three labels on top of each other."""
    content = curve(**SGD)
    for point, ratio in zip(content["points"], (0.3, 0.9, 0.97, 0.98, 0.99), strict=True):
        point["ratio"] = ratio
    write_run(tmp_path / "a", None, content)
    figure = curves_figure(read_runs([tmp_path])[0], "filters", "removed")
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["30 %", "90 %", "97 %", "98 %", "99 %"]
    assert all(low.x1 < high.x0 for low, high in pairwise(boxes))


def test_nan_masked_and_lonely_points(tmp_path):
    nan = curve(math.nan, [math.nan, math.inf, *[math.nan] * 3], [None, 50.0, None, math.nan, None], form="masked")
    one = curve(**SGD, kind="rank")
    one["points"] = one["points"][:1]
    write_run(tmp_path / "a", None, nan, one, epochs=1)
    runs, _ = read_runs([tmp_path])
    figures = [file for file in write_files(tmp_path / "out", runs) if file.suffix in (".png", ".svg")]
    assert len(figures) == 2 * (1 + 4 + 1)  # masked, rank over four axes, training
    with pytest.raises(ReportError, match="no run has a curve filters-removed"):
        sizes_figure(runs, "filters")


def test_training_without_validation_and_without_epochs(tmp_path):
    folder = write_run(tmp_path / "a", epochs=0, finished=False, metric="mean_iou")
    with pytest.raises(ReportError, match="no run has finished an epoch"):
        training_figure(read_runs([folder])[0])
    (folder / "metrics.jsonl").write_text("".join(f'{{"epoch": {i}, "train": {{"mean_iou": {i}}}}}\n' for i in (1, 2)))
    figure = training_figure(read_runs([folder])[0])
    assert texts(figure)[:2] == ["SGD", "After training: 2.0 % training mean IoU with SGD"]


def shown(axes):
    """(x, y) of the lines that have points."""
    return [
        (list(line.get_xdata()), [round(float(y), 6) for y in line.get_ydata()])
        for line in axes.lines
        if len(line.get_xdata())
    ]


def test_a_run_shows_its_metric_and_below_it_what_became_of_its_weights(tmp_path):
    folder = write_run(tmp_path / "a", sparse(), name="mine", epochs=4, final=90.0, renewals=4.0)
    figure = run_figure(read_run(folder))
    above, shares, renewed = figure.axes
    epochs = [1.0, 2.0, 3.0, 4.0]
    validation = [round(90 - 60 * 0.6**i, 6) for i in (1, 2, 3, 4)]
    assert shown(above) == [(epochs, validation), (epochs, [y + 1 for y in validation])]
    assert [line.get_linestyle() for line in above.lines] == ["-", "--"]
    assert shown(shares) == [(epochs, [10.0, 20.0, 30.0, 40.0]), (epochs, [90.0] * 4)]
    assert shown(renewed) == [(epochs, [1.0, 2.0, 3.0, 4.0])]
    assert (shares.get_ylim()[0], list(shares.get_yticks())) == (0, [0, 50, 100])
    assert {"validation", "training", "decayed", "compressible", "renewed"} <= set(texts(figure))
    assert f"mine: {validation[-1]:.1f} % validation accuracy" in texts(figure)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "epoch"]


def test_all_is_drawn_over_the_same_epochs_though_some_were_not_looked_at(tmp_path):
    folder = write_run(tmp_path / "a", sparse(), epochs=6, renewals=6.0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows[:2]:
        del row["constraint"], row["validation"], row["sha256"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    above, shares, renewed = run_figure(read_run(folder)).axes
    assert [len(x) for x, _ in shown(above)] == [4, 6]
    assert shown(renewed) == [([3.0, 4.0, 5.0, 6.0], [3.0, 4.0, 5.0, 6.0])]
    assert above.get_xlim() == shares.get_xlim() == renewed.get_xlim()


def test_where_nothing_is_constrained_there_is_nothing_below_and_where_nothing_was_trained_nothing_at_all(tmp_path):
    figure = run_figure(read_run(write_run(tmp_path / "a", epochs=3)))
    assert len(figure.axes) == 1
    assert "Decayed" not in " ".join(texts(figure))
    with pytest.raises(ReportError, match="no epoch has ended"):
        run_figure(read_run(write_run(tmp_path / "b", epochs=0, finished=False)))


@pytest.mark.parametrize("epochs", [1, 2, 12, 13, 200])
def test_the_texts_of_a_training_do_not_overlap(epochs, tmp_path):
    figure = run_figure(read_run(write_run(tmp_path / "a", sparse(), epochs=epochs, renewals=10.0)))
    figure.draw_without_rendering()
    found = [text for text in figure.texts if text.get_text()]
    for axes in figure.axes:
        found += [text for text in (*axes.texts, axes.xaxis.label) if text.get_text()]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]  # no others are drawn
            found += [tick.label1 for tick in ticks if tick.label1.get_visible()]
    boxes = [text.get_window_extent() for text in found]
    for i, one in enumerate(boxes):
        assert 0 <= one.x0 <= one.x1 <= figure.bbox.x1, found[i]
        assert 0 <= one.y0 <= one.y1 <= figure.bbox.y1, found[i]
        assert not [found[j] for j in range(i) if one.shrunk(0.9, 0.9).overlaps(boxes[j])], found[i]


def test_a_report_shows_the_decay_of_those_that_have_one(tmp_path):
    write_run(tmp_path / "runs" / "sgd", None, curve(**SGD), epochs=3)
    for seed, renewals in enumerate((2.0, 4.0)):
        write_run(tmp_path / "runs" / str(seed), sparse(), curve(**SPARSE), seed=seed, epochs=2, renewals=renewals)
    runs, _ = read_runs([tmp_path / "runs"])
    chart = decay_chart(runs)
    assert [(line.method, line.part, line.solid) for line in chart.lines] == [
        ("SparseFW filters k=0.3 w=0.33", "decayed", True),
        ("SparseFW filters k=0.3 w=0.33", "compressible", False),
    ]
    assert [(y.low, y.mean, y.high) for y in chart.lines[0].y] == [
        (10, pytest.approx(15), 20),
        (20, pytest.approx(30), 40),
    ]
    assert chart.title == "After training: 30.0\u00a0% decayed with SparseFW"
    assert {"decay.png", "decay.svg"} <= {file.name for file in write_files(tmp_path / "out", runs)}
    assert decay_chart([run for run in runs if run.method == "SGD"]) is None
