"""The page: one file, whole, offline, and nothing in it that a run's author could make do something."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run
from sparsefw.report import Damaged, ReportError, read_runs, write_page

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
        self.feed(text)
        self.close()
        assert not self.open

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
        self.text += data


def test_the_demo(tmp_path):
    runs, damaged = read_runs([write_demo(tmp_path / "runs")])
    path = write_page(tmp_path / "new" / "page.html", runs, damaged, intro="One.\n\nTwo & <b>three</b>.")
    text = path.read_text()
    page = Page(text)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert len(page.ids) == len(set(page.ids))
    assert [link for link in page.links if not link[2].startswith("#")] == [
        ("a", "href", "https://arxiv.org/abs/2205.11921")
    ]
    assert {link[2][1:] for link in page.links if link[2].startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)
    assert len(re.findall("https?://", text)) == 1
    assert page.tags.count("svg") == 6  # three figures, each for a screen and a phone
    assert page.tags.count("figcaption") == 3
    assert "script" not in page.tags
    assert all(f'role="img" aria-label="{start}' in text for start in ("accuracy against", "Training of"))
    for part in (
        "70\u00a0% of the filters removed",
        "Two & <b>three</b>.",
        "config.yaml --out NEW\n",
        "Example CPU",
    ):
        assert part in page.text
    assert "Damaged" not in page.text
    assert "#0072b2" not in text.replace("--line-0: #0072b2", "")  # figures take the colours of light and dark
    assert write_page(path, runs, damaged, intro="One.\n\nTwo & <b>three</b>.").read_text() == text


def test_hostile_text_stays_text(tmp_path):
    evil = '<script>alert("1")</script>'
    write_run(
        tmp_path / "runs" / "a", {"name": evil, "kind": evil}, curve(**SGD, kind=evil.replace("/", "")), name=evil
    )
    write_run(tmp_path / "runs" / "b", None, name="x\"' onload=1", finished=False)
    runs, _ = read_runs([tmp_path / "runs"])
    image = tmp_path / "x.png"
    image.write_bytes(b"\x89PNG")
    damaged = [Damaged(tmp_path / evil, evil)]
    page = Page(
        write_page(tmp_path / "p.html", runs, damaged, title=evil, intro=evil, images={evil: image}).read_text()
    )
    assert "script" not in page.tags
    assert page.text.count(evil) >= 5
    assert ("img", "src", "data:image/png;base64,iVBORw==") in page.links


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
    for bad, match in ((tmp_path / "none.png", "cannot read .*none.png"), (tmp_path / "x.svg", "must be one of .png")):
        with pytest.raises(ReportError, match=match):
            write_page(path, runs, images={"caption": bad})
    assert path.read_text() == "old"
    with pytest.raises(ReportError, match="cannot write"):
        write_page(path / "below.html", runs)


def test_two_tasks_have_sections_of_their_own(tmp_path):
    write_demo(tmp_path / "runs")
    other = write_run(tmp_path / "runs" / "other", None, curve(**SPARSE))
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("resnet-mini", "vgg"))
    page = Page(write_page(tmp_path / "p.html", *read_runs([tmp_path / "runs"])).read_text())
    assert page.tags.count("svg") == 2 * 6
    assert "vgg on digits" in page.text


def test_a_hundred_runs_are_fast(tmp_path):
    for i in range(100):
        write_run(tmp_path / "runs" / str(i), sparse(k=1 + i // 5), curve(**SPARSE), seed=i % 5)
    start = time.perf_counter()
    runs, _ = read_runs([tmp_path / "runs"])
    read = time.perf_counter() - start
    write_page(tmp_path / "p.html", runs)
    assert len(runs) == 100
    assert read < 5
    assert time.perf_counter() - start < 30
