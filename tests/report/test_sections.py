"""One list of sections: what is in it is in the page, in the data of the page, and among the exported files."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re

import pytest

from report.folders import SGD, SPARSE, curve, write_demo, write_run, write_spectra, write_sweep
from runfolder.records import config_without_digest
from sparsefw.plotting.charts import Axis, Chart, Line, spread_of
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.plotting.palette import line_styles
from sparsefw.report import Table, read_runs, sections, write_files, write_page
from sparsefw.report.contents import contents_of
from sparsefw.report.payload import payload_of
from sparsefw.report.sections import SECTIONS, sections_of
from sparsefw.report.sections.section import ReportSection, all_runs, each_comparison, each_task


def of_another_task(folder):
    config = folder / "config.yaml"
    config.write_text(config_without_digest(config).replace("resnet-mini", "vgg"))


def two_small_tasks(folder):
    """Two networks, with one chart each but for that of their training."""
    write_run(folder / "a", None, curve(**SGD, form="masked"))
    of_another_task(write_run(folder / "b", None, curve(**SPARSE, form="masked")))
    return folder


def two_tasks(folder):
    """A sweep with spectra, and another network with one curve."""
    write_spectra(write_sweep(folder) / "sgd", conv=[2.0, 1.0])
    of_another_task(write_run(folder / "other", None, curve(**SPARSE)))
    return folder


def one_line():
    line = Line(
        "SGD", "SGD", "own", line_styles({"SGD": "sgd"})["SGD"], True, {"x": [1.0, 2.0]}, [spread_of([7.25])] * 2
    )
    return Chart((line,), (Axis("x", "some axis"),), "some value", title="A title")


def added(subjects, **more):
    """A section that no report has."""
    return ReportSection(
        name="extra",
        title=lambda subject: "What is <added>",
        subjects=subjects,
        html=lambda subject, chart_names: f'<p class="extra">{" ".join(chart_names)}</p>',
        charts=lambda subject: [one_line()],
        explorer=lambda subject: {"ratios": [12.5]},
        files=lambda subject: [
            ("extra-table", Table((), ("a", "b"), (("1", "2"),))),
            ("extra-figure", draw_chart(one_line())),
        ],
        **more,
    )


def parts_of(page):
    """The addresses in the list of sections, those of the sections themselves, and the data."""
    text = page.read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text).group(1)
    return (
        re.findall(r'<li><a href="#([^"]*)">', text),
        re.findall(r'<section id="([^"]*)"', text),
        json.loads(data),
        text,
    )


@pytest.mark.parametrize(
    ("place", "subjects", "addresses", "folders"),
    [
        (len(SECTIONS), all_runs, ["extra"], [""]),
        (2, each_task, ["task-1-extra", "task-2-extra"], ["task-1", "task-2"]),
        (
            0,
            each_comparison,
            ["task-1-filters-masked-extra", "task-2-filters-masked-extra"],
            ["task-1", "task-2"],
        ),
    ],
)
def test_a_section_added_to_the_list_is_in_page_data_and_files(
    place, subjects, addresses, folders, tmp_path, monkeypatch
):
    runs, damaged = read_runs([two_small_tasks(tmp_path / "runs")])
    before = parts_of(write_page(tmp_path / "before.html", runs, damaged))
    files_before = {file.relative_to(tmp_path / "before") for file in write_files(tmp_path / "before", runs)}
    monkeypatch.setattr(sections, "SECTIONS", (*SECTIONS[:place], added(subjects), *SECTIONS[place:]))
    listed, there, data, text = parts_of(write_page(tmp_path / "after.html", runs, damaged))
    assert listed == there
    assert sorted(there) == sorted([*before[1], *addresses])
    assert text.count("What is &lt;added&gt;</h2>") == len(addresses)
    names = re.findall(r'<p class="extra">(f\d+)</p>', text)
    assert len(names) == len(addresses)
    assert all(data["figures"][name]["lines"][0]["y"] == [7.25, 7.25] for name in names)
    assert len(data["figures"]) == len(before[2]["figures"]) + len(addresses)
    assert all(data["explorers"][address] == {"ratios": [12.5]} for address in addresses)
    files = {file.relative_to(tmp_path / "after") for file in write_files(tmp_path / "after", runs)}
    endings = ("table.csv", "table.tex", "table.md", "figure.png", "figure.svg")
    assert {str(file) for file in files - files_before} == {
        "/".join(filter(None, (folder, f"extra-{ending}"))) for folder in folders for ending in endings
    }
    assert files_before <= files


def test_a_section_that_is_not_present_is_nowhere(tmp_path, monkeypatch):
    runs, damaged = read_runs([write_demo(tmp_path / "runs")])
    before = write_page(tmp_path / "before.html", runs, damaged).read_bytes()
    monkeypatch.setattr(sections, "SECTIONS", (*SECTIONS, added(all_runs, present=lambda subject: False)))
    assert write_page(tmp_path / "after.html", runs, damaged).read_bytes() == before
    assert not [file for file in write_files(tmp_path / "after", runs) if file.name.startswith("extra")]


def test_comparisons_come_first_then_task_by_task_then_what_is_about_all_runs(tmp_path):
    runs, damaged = read_runs([two_tasks(tmp_path / "runs")])
    found = sections_of(contents_of(runs, damaged))
    assert [section.address_of(subject) for section, subject in found] == [
        "task-1-filters-removed",
        "task-2-filters-removed",
        "task-1-sweep",
        "task-1-training",
        "task-1-spectra",
        "task-2-training",
        "runs",
        "configurations",
        "again",
        "measured",
    ]


def test_every_section_has_a_name_of_its_own_and_every_chart_its_data(tmp_path):
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)
    assert {section.subjects for section in SECTIONS} == {each_comparison, each_task, all_runs}
    runs, damaged = read_runs([two_tasks(tmp_path / "runs")])
    found = sections_of(contents_of(runs, damaged))
    payload = payload_of(found)
    assert [name for names in payload.chart_names.values() for name in names] == list(payload.figures)
    for section, subject in found:
        html = section.html(subject, payload.chart_names[section.address_of(subject)])
        drawn = " ".join(re.findall(r'data-figures="([^"]*)"', html)).split()
        assert drawn == payload.chart_names[section.address_of(subject)]


def test_every_section_is_in_the_list():
    names = [info.name for info in pkgutil.iter_modules(sections.__path__, f"{sections.__name__}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    for section in {value.name: value for value in values if isinstance(value, ReportSection)}.values():
        assert section in SECTIONS, f"add the section {section.name!r} to SECTIONS in report/sections/__init__.py"
