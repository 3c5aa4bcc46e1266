"""Tables, against what a person would write."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run
from sparsefw.report import ReportError, ratio_table, read_runs, runs_table
from sparsefw.report.series import compared, headline, kinds_of, refit_sentence


def test_ratios_as_text_and_markdown(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    table = ratio_table(runs, "filters", "removed")
    assert table.text() == (
        "                 SGD           SparseFW\n"
        "filters removed  plain  refit  plain  refit\n"
        "dense            97.48         95.97\n"
        "50%              74.06  96.98  95.97  95.97\n"
        "60%              38.54  95.72  95.97  95.97\n"
        "70%              19.40  93.70  96.22  95.97\n"
        "80%              11.84  91.44  93.45  95.72\n"
        "90%              17.63  80.10  59.19  90.93"
    )
    assert table.markdown().splitlines()[:5] == [
        "| filters removed | SGD plain | SGD refit | SparseFW plain | SparseFW refit |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| dense | 97.48 |  | 95.97 |  |",
        "| 50% | 74.06 | **96.98** | **95.97** | **95.97** |",
        "| 60% | 38.54 | 95.72 | **95.97** | **95.97** |",
    ]


def test_seeds_gaps_and_nan(tmp_path):
    few = curve(90.0, [80.0, 70.0, math.nan, 50.0, None], [None] * 5, form="masked")
    more = curve(92.0, [84.0, 70.0, 60.0, 50.0, 40.0], [None] * 5, form="masked")
    more["points"].pop()
    for seed, content in enumerate((few, more)):
        write_run(tmp_path / str(seed), None, content, seed=seed)
    table = ratio_table(read_runs([tmp_path])[0], "filters", "masked")
    assert table.text() == (
        "                     SGD (2 seeds)\n"
        "filters set to zero          plain\n"
        "dense                  91.00 ±1.41\n"
        "50%                    82.00 ±2.83\n"
        "60%                    70.00 ±0.00\n"
        "70%                            nan\n"
        "80%                    50.00 ±0.00\n"
        "90%                      nan (n=1)"
    )
    assert not table.strong


def test_runs(tmp_path):
    write_demo(tmp_path)
    write_run(tmp_path / "killed", {"name": "a|b"}, finished=False, epochs=2)
    table = runs_table(read_runs([tmp_path])[0])
    assert table.text() == (
        "run                                     recipe  seed  epochs  test accuracy  validation accuracy       time  images/s"
        "      status\n"
        "SGD                                 digits-sgd     0      15          97.50                97.00  1 min 2 s     5,100"
        "    finished\n"
        "SparseFW filters k=0.3 w=0.33  digits-sparsefw     0      15          96.00                95.50  1 min 2 s     5,100"
        "    finished\n"
        "a|b                                 digits-sgd     0       2              -                    -          -         -"
        "  unfinished"
    )
    assert table.markdown().splitlines()[-1].startswith("| a\\|b | digits-sgd | 0 | 2 | - |")


def test_what_was_retrained_is_not_said_to_be_not(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    comparison = compared(runs, "filters", "removed")
    first, second = comparison.series
    again = replace(first, method="retrained removed=0.9")
    assert "removed, after retraining: " in headline(replace(comparison, series=(again,)))
    assert "removed, no retraining but where it is named: " in headline(replace(comparison, series=(again, second)))


def test_the_sentences(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    comparison = compared(runs, "filters", "removed")
    assert headline(comparison).replace("\u00a0", " ") == (
        "70 % of the filters removed, no retraining: 96.2 % accuracy with SparseFW, 19.4 % with SGD"
    )
    assert refit_sentence(comparison).replace("\u00a0", " ") == (
        "With what is left fitted in closed form to unlabelled images: 96.0 % accuracy with SparseFW, 93.7 % with SGD."
    )


def test_the_sentence_does_not_favour_sparsefw(tmp_path):
    write_run(tmp_path / "a", None, curve(**SPARSE))
    write_run(tmp_path / "b", sparse(), curve(SGD["dense"], [50, 40, math.nan, 10, 10], [None] * 5))
    comparison = compared(read_runs([tmp_path])[0], "filters", "removed")
    assert (
        headline(comparison).replace("\u00a0", " ").endswith("96.2 % accuracy with SGD, no number (nan) with SparseFW")
    )


def test_mixed_kinds_in_their_order(tmp_path):
    kinds = [
        ("weights", "masked"),
        ("rank", "removed"),
        ("filters", "masked"),
        ("filters", "removed"),
        ("2:4", "removed"),
    ]
    write_run(tmp_path / "a", None, *(curve(**SGD, kind=kind, form=form) for kind, form in kinds))
    assert kinds_of(read_runs([tmp_path])[0]) == [kinds[3], kinds[2], kinds[1], kinds[0], kinds[4]]


def test_what_cannot_be_compared(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    with pytest.raises(ReportError, match="no run has a curve rank-masked; curves that are there: filters-removed"):
        ratio_table(runs, "rank", "masked")
    write_run(tmp_path / "iou", {"name": "other"}, curve(**SGD, metric="mean_iou"))
    with pytest.raises(ReportError, match="do not belong in one comparison"):
        ratio_table(read_runs([tmp_path])[0], "filters", "removed")
