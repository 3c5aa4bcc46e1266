"""The page: one file, whole, offline, and nothing in it that a run's author could make do something."""

from __future__ import annotations

import json
import math
import os
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run, write_spectra, write_sweep
from runfolder.records import config_without_digest
from runfolder.test_round_trip import write_whole_run
from sparsefw.cli.report_page import write_report
from sparsefw.report import Damaged, ReportError, ratio_table, read_runs, write_page
from sparsefw.report.payload import as_script

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[tuple[str, str, str]] = []
        self.text = ""
        self.data: dict = {}
        self.feed(text)
        self.close()
        assert not self.open
        self.figures = self.data["figures"]

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for key, value in attributes if key == "id"]
        self.links += [
            (tag, key, value) for key, value in attributes if key in ("src", "href", "xlink:href", "data", "action")
        ]
        assert not [key for key, _ in attributes if key.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["script"]:
            self.text += data
        elif data.startswith('{"figures"'):
            self.data = json.loads(data)


def test_the_demo(tmp_path):
    runs, damaged = read_runs([write_demo(tmp_path / "runs")])
    path = write_page(tmp_path / "new" / "page.html", runs, damaged, intro="One.\n\nTwo & <b>three</b>.")
    text = path.read_text()
    page = Page(text)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert len(page.ids) == len(set(page.ids))
    outside = [link for link in page.links if not link[2].startswith(("#", "data:text/"))]
    assert outside == [("a", "href", "https://arxiv.org/abs/2205.11921")]
    assert {link[2][1:] for link in page.links if link[2].startswith("#")} <= set(page.ids)
    assert page.tags.count("script") == 3  # the data, Plotly, and page.js; none has a source
    assert page.figures.keys() == {"f0", "f1"}  # the curves, the training
    assert page.tags.count("figcaption") == 2
    assert 'aria-label="test accuracy against filters removed"' in text
    for part in (
        "70\u00a0% of the filters removed",
        "Two & <b>three</b>.",
        "config.yaml --out NEW\n",
        "Example CPU",
        "Without JavaScript",
    ):
        assert part in page.text
    assert "Damaged" not in page.text
    assert write_page(path, runs, damaged, intro="One.\n\nTwo & <b>three</b>.").read_text() == text


def test_what_became_of_constrained_weights_is_drawn_below_the_training(tmp_path):
    write_run(tmp_path / "r" / "sgd", epochs=2)
    write_run(tmp_path / "r" / "sfw", sparse(), epochs=2, renewals=3.0)
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    training, decay = page.figures.values()
    assert len(training["lines"]) == 4
    assert decay["y"] == {"label": "share of the constrained weights", "scale": "share"}
    assert [(line["part"], line["solid"], line["y"]) for line in decay["lines"]] == [
        ("decayed", True, [15, 30]),
        ("compressible", False, [90, 90]),
    ]
    assert "Solid: decayed, filters, directions or weights below 5 % of the largest of their layer." in page.text


def test_downloads_are_in_the_page(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path / "runs")])
    page = Page(write_page(tmp_path / "p.html", runs).read_text())
    found = [unquote(link[2]) for link in page.links if link[2].startswith("data:text/csv")]
    assert f"data:text/csv;charset=utf-8,{ratio_table(runs, 'filters', 'removed').csv()}" in found


def test_the_data_of_the_slider(tmp_path):
    """At every ratio a row per method, with the command that makes that network; where nothing was measured, it says so."""
    few = curve(**SPARSE, calibration=512, score="l2", allocation="global")
    few["points"] = few["points"][:4]
    write_run(tmp_path / "r" / "sgd", None, curve(**SGD))
    write_run(tmp_path / "r" / "my sfw", sparse(), few)
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    (found,) = page.data["explorers"].values()
    assert found["ratios"] == [50, 60, 70, 80, 90]
    assert found["spoken"][2] == "70\u00a0% of the filters removed"
    sgd, sfw = f"{tmp_path}/r/sgd", f"{tmp_path}/r/my sfw"
    sizes = ["28,047 (9.1 %)", "280,470 (9.24 %)", "112,188 (9.06 %)"]
    command = f"sparsefw compress {sgd} --filters 0.7 -o {sgd}/small-filters-70"
    assert found["rows"][2][0] == ["SGD", "19.40", "93.70", *sizes, command]
    name, *_, command = found["rows"][2][1]
    assert name == "SparseFW score=l2 allocation=global"
    assert command == (
        f"sparsefw compress '{sfw}' --filters 0.7 --score l2 --allocation global --calibration 512 "
        f"-o '{sfw}/small-filters-70'"
    )
    assert found["rows"][4][1] == [name, "not measured", "", "", "", "", ""]
    assert "Measured with score l1, default allocation and score l2, global allocation." in page.text


def test_commands_for_other_kinds(tmp_path):
    masked, odd = curve(**SGD, kind="weights", form="masked"), curve(**SGD, kind="2:4")
    folder = write_run(
        tmp_path / "a", None, masked, odd, own_model="mine.nets:make"
    )  # its code runs only if the reader adds --trust
    page = Page(write_page(tmp_path / "p.html", *read_runs([folder])).read_text())
    weights, other = (found["rows"][0][0] for found in page.data["explorers"].values())
    assert weights == [
        "SGD",
        "74.06",
        "96.98",
        f"sparsefw compress {folder} --weights 0.5 -o {folder}/small-weights-50",
    ]
    assert other[-1] == f"sparsefw compress {folder} --weights 2:4 -o {folder}/small-2:4-50"
    assert "These commands make the physically smaller network of the same ratio." in page.text


def test_notes_say_what_is_not_alike(tmp_path):
    for seed, calibration in ((0, 512), (1, 4096)):
        write_run(tmp_path / "r" / f"sgd{seed}", None, curve(**SGD, calibration=calibration), seed=seed, epochs=5)
    write_run(tmp_path / "r" / "sfw", sparse(), curve(**SPARSE), epochs=30)
    write_run(tmp_path / "r" / "again", {"name": "masked", "removed": 0.9}, curve(**SPARSE), epochs=30)
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    for note in (
        "These networks were trained for 5 to 30 epochs (SGD 5, SparseFW 30, retrained 30), not all equally long.",
        "Not all have the same number of seeds: SGD 2, SparseFW 1, retrained 1.",
        "Trained again after pruning, unlike the others: retrained.",
        "Calibrated on 512 to 4,096 images, not all on equally many.",
        "Trained for 5 to 30 epochs, not all equally long.",
    ):
        assert note in page.text


def test_nan_is_null_in_the_data_and_nan_in_the_tables(tmp_path):
    write_run(tmp_path / "r", None, curve(97.0, [90, 80, math.nan, 5, None], [None] * 5))
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    (found,) = page.data["explorers"].values()
    assert [row[0][1] for row in found["rows"]] == ["90.00", "80.00", "nan", "5.00", "nan"]
    assert page.figures["f0"]["lines"][0]["y"] == [90, 80, None, 5, None]


def test_hostile_text_stays_text(tmp_path):
    evil = '<script>alert("1")</script><!--'
    kind = evil.replace("/", "")
    folder = write_run(tmp_path / "runs" / "a", {"name": evil, "kind": evil}, curve(**SGD, kind=kind), name=evil)
    write_spectra(folder, **{evil: [2.0, 1.0]})
    write_run(tmp_path / "runs" / "b", None, name="x\"' onload=1", finished=False)
    runs, _ = read_runs([tmp_path / "runs"])
    damaged = [Damaged(tmp_path / evil, evil)]
    page = Page(write_page(tmp_path / "p.html", runs, damaged, title=evil, intro=evil).read_text())
    assert page.tags.count("script") == 3
    assert page.text.count(evil) >= 5
    assert any(evil in method for method in page.figures["f0"]["methods"])


def test_data_cannot_end_its_script():
    assert as_script({"a": "</script ><!--&"}) == '{"a":"\\u003c/script \\u003e\\u003c!--\\u0026"}'


def test_a_sweep_is_shown_as_heat_maps_and_a_folded_table(tmp_path):
    page = Page(write_page(tmp_path / "p.html", *read_runs([write_sweep(tmp_path / "r")])).read_text())
    curves, mean, dense, training, everything = page.figures.values()
    assert [*curves["methods"]] == ["SGD"]  # validation figures are never among test figures
    assert (mean["xLabel"], mean["x"], mean["yLabel"], mean["y"]) == (
        "method.w",
        ["0.1", "0.2", "0.4"],
        "method.k",
        ["1", "2"],
    )
    assert mean["map"] == [[93, 92, 90], [92, 91, 89]]
    assert dense["map"] == [[96, 96, 96], [97, 97, 97]]
    assert len(training["methods"]) == 1
    assert len(everything["methods"]) == 7
    assert "SparseFW filters, filters removed: 6 configurations on validation images, the best first" in page.text
    assert "SparseFW filters: validation accuracy in %." in page.text


def test_where_nothing_was_measured_on_test_images_validation_is_shown_and_said(tmp_path):
    write_run(tmp_path / "r", None, curve(**SGD, split="validation"))
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    assert page.figures["f0"]["y"]["label"] == "validation accuracy"


def test_what_is_missing_is_listed(tmp_path):
    write_demo(tmp_path / "runs")
    write_run(tmp_path / "runs" / "killed", sparse("rank"), curve(**SPARSE, kind="rank"), finished=False, epochs=0)
    write_run(tmp_path / "runs" / "lost").joinpath("config.yaml").unlink()
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "runs"])).read_text())
    assert "lost: config.yaml is missing" in page.text
    assert "killed): unfinished: no result.json" in page.text
    assert "singular values removed" in page.text


def test_commands_name_the_configuration_of_every_run(tmp_path):
    for seed in (0, 3):
        write_run(tmp_path / "some runs" / str(seed), seed=seed)
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "some runs"])).read_text())
    for seed in (0, 3):
        assert f"sparsefw train '{tmp_path}/some runs/{seed}/config.yaml' --out NEW" in page.text


def test_only_damaged_runs_and_none(tmp_path):
    page = Page(write_page(tmp_path / "p.html", [], [Damaged(tmp_path, "gone")]).read_text())
    assert "gone" in page.text
    with pytest.raises(ReportError, match="nothing to report"):
        write_page(tmp_path / "q.html", [])


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path / "runs")])
    path = tmp_path / "p.html"
    path.write_text("old")
    with pytest.raises(ReportError, match="cannot write"):
        write_page(path / "below.html", runs)
    assert path.read_text() == "old"


def test_two_tasks_have_sections_of_their_own(tmp_path):
    write_demo(tmp_path / "runs")
    other = write_run(tmp_path / "runs" / "other", None, curve(**SPARSE))
    config = other / "config.yaml"
    config.write_text(config_without_digest(config).replace("resnet-mini", "vgg"))
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "runs"])).read_text())
    assert len(page.figures) == 4
    assert page.text.count("vgg on digits: filters removed") == 1


def test_spectra_are_relative_to_the_largest_and_of_the_lowest_seed(tmp_path):
    for seed, values in ((1, [9.0, 9.0]), (0, [4.0, 1.0, 0.0])):
        write_spectra(write_run(tmp_path / "r" / str(seed), None, curve(**SGD), seed=seed), conv=values, fc=[1.0])
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "r"])).read_text())
    filters = page.figures["f2"]  # behind the curves and the training
    assert filters["y"] == {"label": "norm of a filter / largest", "scale": "log"}
    assert filters["lines"][0]["x"]["share"] == [33.333, 66.667, 100]
    assert filters["lines"][0]["y"] == [1, 0.25, 1e-6]
    assert len(page.figures) == 2 + 2 * 2


@pytest.mark.parametrize("name", ["config.yaml", "curves/page.html", ".lock"])
def test_a_page_does_not_take_the_place_of_a_file_of_a_run(tmp_path, name):
    run = write_whole_run(tmp_path / "run").paths.folder
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"is a file of the run .*; choose another name$"):
        write_report([run], run / name)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_page_does_not_take_the_place_of_a_pipe(tmp_path):
    run = write_whole_run(tmp_path / "run").paths.folder
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="a pipe or a device; choose another name"):
        write_report([run], tmp_path / "pipe")
