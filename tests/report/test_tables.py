"""Tables, against what a person would write."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run, write_sweep
from sparsefw.report import ReportError, Table, ratio_table, read_runs, runs_table
from sparsefw.report.families import families
from sparsefw.report.series import NBSP, compared, headline, kinds_of, refit_sentence
from sparsefw.report.sizes import sizes_header, sizes_rows
from sparsefw.runfolder.schema import SweepJob


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
        "| dense | **97.48** |  | 95.97 |  |",
        "| 50% | 74.06 | **96.98** | 95.97 | 95.97 |",
        "| 60% | 38.54 | 95.72 | **95.97** | **95.97** |",
    ]


def test_ratios_as_latex_and_csv(tmp_path):
    write_demo(tmp_path)
    write_run(tmp_path / "again", None, curve(97.0, (76.06, 40, 21, 12, 17), SGD["refit"]), seed=1)
    table = ratio_table(read_runs([tmp_path])[0], "filters", "removed")
    assert table.latex().splitlines()[:9] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{SGD (2 seeds)} & \multicolumn{2}{c}{SparseFW} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"filters removed & plain & refit & plain & refit \\",
        r"\midrule",
        r"dense & \textbf{97.24$\,\pm\,$0.34} &  & 95.97 &  \\",
        r"50\% & 75.06$\,\pm\,$1.41 & \textbf{96.98$\,\pm\,$0.00} & 95.97 & 95.97 \\",
        r"60\% & 39.27$\,\pm\,$1.03 & 95.72$\,\pm\,$0.00 & \textbf{95.97} & \textbf{95.97} \\",
    ]
    assert table.latex().endswith("\\bottomrule\n\\end{tabular}\n")
    assert table.csv().splitlines()[:3] == [
        "filters removed,SGD (2 seeds) plain,SGD (2 seeds) plain std,SGD (2 seeds) refit,SGD (2 seeds) refit std,"
        "SparseFW plain,SparseFW refit",
        "dense,97.24,0.34,,,95.97,",
        "50%,75.06,1.41,96.98,0.00,95.97,95.97",
    ]


def test_latex_and_csv_of_odd_text():
    table = Table((), ("a_b", "50%"), (("x & y", "28,047 (9.1 %)"), ('\\{"q"}', "nan (n=1)")))
    assert table.latex().splitlines()[2:6] == [
        r"a\_b & 50\% \\",
        r"\midrule",
        r"x \& y & 28,047 (9.1 \%) \\",
        r'\textbackslash{}\{"q"\} & nan (n=1) \\',
    ]
    assert table.csv() == 'a_b,50%,50% n\nx & y,28047,\n"\\{""q""}",nan,1\n'


def test_close_ratios_are_not_rounded_to_one(tmp_path):
    content = curve(**SGD)
    for point, ratio in zip(content["points"], (0.5, 0.97, 0.98, 0.99, 0.995), strict=True):
        point["ratio"] = ratio
    write_run(tmp_path / "a", None, content)
    table = ratio_table(read_runs([tmp_path])[0], "filters", "removed")
    assert [row[0] for row in table.rows] == ["dense", "50%", "97%", "98%", "99%", "99.5%"]


def test_a_family_is_listed_best_first(tmp_path):
    write_sweep(tmp_path)
    odd = curve(95.0, [math.nan] * 5, [None] * 5, split="validation")
    write_run(tmp_path / "nan", sparse(k=1, w=9.0), odd)
    write_run(tmp_path / "tested", sparse(k=1, w=5.0), curve(**SPARSE))
    (family,) = families(read_runs([tmp_path])[0])
    assert (family.name, family.split, family.keys) == ("SparseFW filters", "validation", ("method.k", "method.w"))
    lines = family.table().text().splitlines()
    assert lines[0].split() == ["run", "method.k", "method.w", "dense", "mean", "50%", "60%", "70%", "80%", "90%"]
    assert lines[1].split() == ["k1w0.1", "1", "0.1", "96.00", "93.00", *["93.00"] * 5]
    assert lines[-1].split()[:6] == ["nan", "1", "9", "95.00", "0.00", "nan"]
    assert family.note == "Runs that are left out because they have no curve on validation images: 1."
    assert family.best.replace(NBSP, " ") == (
        "Best of 7 on validation images: method.k = 1, method.w = 0.1 (k1w0.1): "
        "93.0 % on average over 50% to 90%, plain; dense 96.0 %."
    )


def test_seeds_of_a_family_are_averaged_and_other_settings_are_at_their_best(tmp_path):
    for number, (k, w, lr, seed, value) in enumerate(
        [
            (1, 0.1, 0.1, 0, 80.0),
            (1, 0.1, 0.1, 1, 90.0),
            (1, 0.1, 0.5, 0, 70.0),
            (1, 0.2, 0.1, 0, 60.0),
            (2, 0.1, 0.1, 0, 50.0),
        ]
    ):
        values = curve(97.0, [value] * 5, [None] * 5, split="validation")
        write_run(tmp_path / str(number), sparse(k=k, w=w), values, seed=seed, lr=lr)
    (family,) = families(read_runs([tmp_path])[0])
    mean, _ = family.maps()[0]
    assert (mean.x_label, mean.x, mean.y_label, mean.y) == ("method.k", ("1", "2"), "method.w", ("0.1", "0.2"))
    assert [[str(value) for value in row] for row in mean.values] == [["85.0", "50.0"], ["60.0", "nan"]]
    assert mean.subtitle.endswith("In every cell, the best over train.lr.")
    assert len(family.maps()) == 3


def test_rows_of_a_sweep_are_families_of_their_own(tmp_path):
    """As SAM and SAM at equal compute; and what differs only in the seventh digit is another configuration."""
    for row, number, strength, value in (
        ("a", 0, 0.12345671, 90.0),
        ("a", 1, 0.12345674, 10.0),
        ("b", 0, 0.5, 95.0),
        ("b", 1, 0.6, 94.0),
    ):
        content = curve(97.0, [value] * 5, [None] * 5, split="validation", form="masked")
        job = SweepJob("tiny", row, f"000{number}", final=False)
        write_run(tmp_path / f"{row}{number}", sparse(k=1, w=strength), content, job=job)
    first, second = families(read_runs([tmp_path])[0])
    assert [one.mean for one in first.tried] == [90.0, 10.0]
    assert (first.name, second.name) == ("SparseFW filters (tiny-a)", "SparseFW filters (tiny-b)")
    assert "method.w = 0.5 (b0): 95.0" in second.best


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
    again = replace(first, retrained=True)
    assert "removed, after retraining: " in headline(replace(comparison, series=(again,)))
    assert "removed, no retraining unless named: " in headline(replace(comparison, series=(again, second)))


def test_the_sentences(tmp_path):
    runs, _ = read_runs([write_demo(tmp_path)])
    comparison = compared(runs, "filters", "removed")
    assert headline(comparison).replace("\u00a0", " ") == (
        "70 % of the filters removed, no retraining: 96.2 % accuracy with SparseFW (dense 96.0 %), 19.4 % with SGD (97.5 %)"
    )
    assert refit_sentence(comparison).replace("\u00a0", " ") == (
        "With the remaining weights fitted in closed form to unlabelled images: 96.0 % accuracy with SparseFW, 93.7 % with SGD."
    )


def test_the_sentence_does_not_favour_sparsefw(tmp_path):
    write_run(tmp_path / "a", None, curve(**SPARSE))
    write_run(tmp_path / "b", sparse(), curve(SGD["dense"], [50, 40, math.nan, 10, 10], [None] * 5))
    comparison = compared(read_runs([tmp_path])[0], "filters", "removed")
    assert (
        headline(comparison)
        .replace("\u00a0", " ")
        .endswith("96.2 % accuracy with SGD (dense 96.0 %), no number (nan) with SparseFW (97.5 %)")
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
    with pytest.raises(ReportError, match="no run has a curve rank-masked; available curves: filters-removed"):
        ratio_table(runs, "rank", "masked")
    write_run(tmp_path / "iou", {"name": "other"}, curve(**SGD, metric="mean_iou"))
    with pytest.raises(ReportError, match="do not belong in one comparison"):
        ratio_table(read_runs([tmp_path])[0], "filters", "removed")


def test_the_chosen_recovery_has_a_column_where_it_was_recorded(tmp_path):
    """compress takes it, so that it stands beside the command."""
    content = curve(**SPARSE)
    for point, chosen in zip(content["points"], ["plain", "plain", "plain", "refit", "refit"], strict=True):
        point["chosen"] = chosen
    write_run(tmp_path / "sgd", None, curve(**SGD), name="sgd")
    write_run(tmp_path / "sparse", {"name": "sparsefw", "kind": "filters"}, content, name="sparse")
    runs, _ = read_runs([tmp_path])
    comparison = compared(runs, "filters", "removed")
    assert sizes_header(comparison)[:4] == ("method", "plain", "refit", "chosen")
    rows = {ratio: {row[0]: row[1:4] for row in rows} for ratio, rows in sizes_rows(comparison, runs).items()}
    (sparse,) = [name for name in rows[0.5] if name != "SGD"]
    assert rows[0.7][sparse] == ("96.22", "95.97", "96.22")
    assert rows[0.9][sparse] == ("59.19", "90.93", "90.93")
    assert rows[0.9]["SGD"] == ("17.63", "80.10", "-")
    assert "chosen" not in sizes_header(compared([run for run in runs if run.name == "sgd"], "filters", "removed"))
