"""The page in a real browser: what a reader moves, hides, zooms and copies; with the keyboard, on a phone, in the dark."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_run, write_spectra, write_sweep
from sparsefw.report import read_runs, write_page

pytestmark = pytest.mark.slow
PLOT = "section .explorer .plot"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """SGD with two seeds, SparseFW with one and a gap at 90 %, a sweep, spectra, close ratios for the rank."""
    folder = tmp_path_factory.mktemp("page")
    runs = write_sweep(folder / "runs")
    write_spectra(runs / "sgd", conv1=[4.0, 2.0, 1.0], fc=[1.0, 0.5])
    write_run(runs / "sgd1", None, curve(97.0, (76.06, 40, 21, 12, 17), SGD["refit"]), seed=1)
    few, close = curve(**SPARSE), curve(**SPARSE, kind="rank", form="masked")
    few["points"] = few["points"][:4]
    for point, ratio in zip(close["points"], (0.5, 0.97, 0.98, 0.99, 0.995), strict=True):
        point["ratio"] = ratio
    write_spectra(write_run(runs / "sfw", sparse(k=5, w=0.33), few, close), conv1=[4.0, 0.4, 0.0], fc=[1.0, 0.0])
    return write_page(folder / "page.html", *read_runs([runs]))


@pytest.fixture
def opened(browser, path):
    """The page, and what went wrong in it."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url)
    )
    page.goto(path.as_uri())
    yield page
    assert wrong == []
    context.close()


def traces(page, selector=PLOT):
    """Name -> x, y, dash and colour of what is drawn."""
    return page.evaluate(
        """selector => Object.fromEntries(document.querySelector(selector).data.map(
            one => [one.name, {x: one.x, y: one.y, dash: one.line?.dash, colour: one.line?.color}]))""",
        selector,
    )


def axis(page, selector=PLOT):
    return page.evaluate("selector => document.querySelector(selector)._fullLayout.xaxis", selector)


def narrow(page, width):
    page.set_viewport_size({"width": width, "height": 812})
    while page.evaluate(f"document.querySelector('{PLOT}')._fullLayout.width") > width:
        page.wait_for_timeout(50)  # the figures follow when the size has settled


def cells(page):
    rows = page.locator("section .explorer table.sizes").first.locator("tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def test_the_slider_moves_by_keyboard(opened):
    page = opened
    slider = page.locator(".explorer input[type=range]").first
    assert page.get_by_label("How small?").first.get_attribute("type") == "range"
    assert slider.get_attribute("aria-valuetext") == "70\u00a0% of the filters removed"
    assert traces(page)["marker"]["x"] == [70] * 4
    assert traces(page)["marker"]["y"] == [20.2, 93.7, 96.22, 95.97]
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "80\u00a0% of the filters removed"
    assert page.locator(".explorer output").first.inner_text() == "80\u00a0% of the filters removed"
    assert traces(page)["marker"] == {"x": [80] * 4, "y": [11.92, 91.44, 93.45, 95.72], "dash": None, "colour": None}
    sgd, sfw = cells(page)
    assert sgd[:5] == ["SGD", "11.92 ±0.11", "91.44 ±0.00", "13,007 (4.22 %)", "130,070 (4.29 %)"]
    assert sfw[:3] == ["SparseFW", "93.45", "95.72"]
    assert "sparsefw compress" in sfw[-1]
    assert "--filters 0.8 -o" in sfw[-1]
    page.keyboard.press("End")
    assert cells(page)[1][:2] == ["SparseFW", "not measured"]
    assert traces(page)["marker"]["x"] == [90] * 2


def test_axes_and_scales(opened):
    page = opened
    assert axis(page)["type"] == "linear"
    assert axis(page)["ticktext"] == ["50 %", "60 %", "70 %", "80 %", "90 %"]
    page.get_by_label("Against").first.select_option("parameters")
    assert axis(page)["type"] == "log"
    assert axis(page)["title"]["text"] == "parameters left"
    low, high = sorted(axis(page)["range"])
    assert axis(page)["range"] == [high, low]  # the dense network is at the left
    assert traces(page)["SGD plain"]["x"] == [77754, 50352, 28047, 13007, 3266]
    assert traces(page)["marker"]["x"] == [28047] * 4
    page.get_by_label("Scale").first.select_option("linear")
    assert axis(page)["type"] == "linear"
    page.get_by_label("Against").first.select_option("ratio")
    page.get_by_label("Scale").first.select_option("log")
    assert traces(page)["SGD plain"]["x"] == pytest.approx([-math.log10(left) for left in (0.5, 0.4, 0.3, 0.2, 0.1)])


def test_close_ratios_are_pulled_apart(opened):
    page, rank = opened, "#task-1-rank-masked .plot"
    assert page.locator("#task-1-rank-masked select.scale").input_value() == "log"
    assert axis(page, rank)["ticktext"] == ["50 %", "97 %", "98 %", "99 %", "99.5 %"]
    page.locator("#task-1-rank-masked select.scale").select_option("linear")
    assert axis(page, rank)["ticktext"] == ["50 %", "99.5 %"]  # the others do not fit


def test_methods_and_lines_can_be_hidden(opened):
    page = opened
    every = {"SGD plain", "SGD refit", "SGD band", "marker"}
    assert every < set(traces(page))
    page.locator(".methods").first.get_by_label("SGD").press("Space")
    assert not [name for name in traces(page) if name.startswith("SGD")]
    assert len(traces(page)["marker"]["x"]) == 2
    sizes = page.locator("section .explorer table.sizes").first
    assert "SGD" not in [name.strip() for name in sizes.locator("tbody tr:visible th").all_inner_texts()]
    page.locator(".methods").first.get_by_label("SGD").press("Space")
    page.get_by_label("Lines").first.select_option("refit")
    assert {name.split()[-1] for name in traces(page)} == {"refit", "band", "marker"}


def test_seeds_are_a_band_from_the_worst_to_the_best(opened):
    both = opened.evaluate(
        f"document.querySelector('{PLOT}').data.filter(one => one.name === 'SGD band').map(one => one.y)"
    )
    assert both[0] == [74.06, 38.54, 19.4, 11.84, 17, 17.63, 12, 21, 40, 76.06]


def test_dark_and_light(opened):
    page = opened

    def colours():
        return page.evaluate("getComputedStyle(document.body).backgroundColor"), traces(page)["SGD plain"]["colour"]

    assert colours() == ("rgb(255, 255, 255)", "rgba(213,94,0,1)")  # vermillion
    page.get_by_role("button", name="Dark").click()
    assert colours() == ("rgb(18, 22, 28)", "rgba(255,138,61,1)")
    page.get_by_role("button", name="Light").click()
    page.emulate_media(color_scheme="dark")
    assert colours()[0] == "rgb(255, 255, 255)"  # what was chosen stays
    page.evaluate("delete document.documentElement.dataset.theme")
    assert colours()[0] == "rgb(18, 22, 28)"


def test_layers_and_all_runs_are_chosen(opened):
    page, first = opened, "#task-1-spectra .plot"
    assert traces(page, first)["SGD filters"]["y"] == [1, 0.5, 0.25]
    page.get_by_role("combobox", name="Layer").select_option("fc")
    assert traces(page, first)["SGD filters"]["y"] == [1, 0.5]
    training = "#task-1-training .plot"
    before = len(traces(page, training))
    page.get_by_label("Show all runs").check()
    assert len(traces(page, training)) == before + 2 * 6


def test_heat_maps_tell_their_values(opened):
    shown = opened.evaluate(
        "(({z, text, colorscale}) => ({z, text}))(document.querySelector('#task-1-sweep .plot').data[0])"
    )
    assert shown["z"] == [[93, 92, 90], [92, 91, 89]]
    assert shown["text"][1] == ["92.0", "91.0", "89.0"]


def test_a_sweep_is_sorted_and_searched(opened):
    page = opened
    page.locator("#task-1-sweep summary").click()
    column = page.locator("#task-1-sweep tbody tr:visible th")
    assert column.all_inner_texts()[0] == "k1w0.1"
    page.locator("#task-1-sweep").get_by_role("button", name="mean").click()
    assert column.all_inner_texts()[0] == "k2w0.4"
    page.locator("#task-1-sweep").get_by_label("Find").fill("k2w0.1")
    assert column.all_inner_texts() == ["k2w0.1"]


def test_commands_are_copied(opened):
    page = opened
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the command for SGD").first.click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").endswith("/sgd/small-filters-70")


def test_figures_are_saved(opened):
    for format in ("PNG", "SVG"):
        with opened.expect_download() as download:
            opened.get_by_role("button", name=format, exact=True).first.click()
        assert download.value.suggested_filename == f"test-accuracy-against-filters-removed.{format.lower()}"


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_phone_need_not_scroll_sideways(opened, width):
    narrow(opened, width)
    opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert opened.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("what", ["parameters", "macs", "bytes"])
def test_labels_of_axes_do_not_touch(opened, what):
    narrow(opened, 320)
    opened.get_by_label("Against").first.select_option(what)
    boxes = opened.evaluate(
        """selector => [...document.querySelector(selector).querySelectorAll(".xtick text")].map(
            label => (({left, right}) => [left, right])(label.getBoundingClientRect())).sort((a, b) => a[0] - b[0])""",
        PLOT,
    )
    assert len(boxes) >= 2
    assert all(left[1] < right[0] for left, right in pairwise(boxes))


def test_epochs_are_whole(browser, tmp_path):
    write_run(tmp_path / "sgd", None, curve(**SGD), epochs=3)
    page = browser.new_page()
    page.goto(write_page(tmp_path / "page.html", *read_runs([tmp_path])).as_uri())
    assert page.locator("#task-1-training .plot .xtick text").all_text_contents() == ["1", "2", "3"]
    page.close()


def test_all_is_reached_by_tab(opened):
    page = opened
    wanted = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')].filter(
            one => one.checkVisibility() && !one.closest('.modebar')).map((one, i) => { one.dataset.number = i; return i; })"""
    )
    reached = set()
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("Number(document.activeElement.dataset.number ?? -1)"))
    assert set(wanted) <= reached
    assert page.locator('.scroll:not([tabindex="0"])').count() == 0  # not every browser lets a reader scroll otherwise


def test_headings_landmarks_and_names(opened):
    levels = opened.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert opened.get_by_role(landmark).count() == 1
    nameless = (
        "[...document.querySelectorAll('input, select')].filter(one => !one.labels.length && !one.ariaLabel).length"
    )
    assert opened.evaluate(nameless) == 0


def test_without_javascript_there_are_the_tables(browser, path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.get_by_text("Without JavaScript there are no figures here").is_visible()
    assert page.get_by_role("cell", name="96.98 ±0.00").first.is_visible()
    assert not page.locator("select, button, .plot").locator("visible=true").count()
    context.close()
