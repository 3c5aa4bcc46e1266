"""Run folders are read as far as they go, and what is wrong with them is said."""

from __future__ import annotations

import json
import math

import pytest

from report.folders import SGD, SPARSE, curve, sparse, write_demo, write_run, write_spectra
from runfolder.records import change_record
from sparsefw.report import read_run, read_runs, runs_table
from sparsefw.runfolder import RunFolderError, RunPaths, RunStatus
from sparsefw.runfolder.schema import CurveSettings, EnvironmentRecord, Spectrum


def test_a_whole_run(tmp_path):
    run = read_run(write_run(tmp_path / "a", sparse(), curve(**SPARSE)))
    assert (run.label, run.name, run.task) == ("SparseFW filters k=0.3 w=0.33", "digits-sgd", "resnet-mini on digits")
    assert (run.finished, run.problems, run.metric) == (True, (), "accuracy")
    assert (run.measured("test"), run.measured("validation"), run.record.result.seconds) == (97.5, 97.0, 61.5)
    assert len(run.epochs) == 15
    found = run.curve("filters", "removed")
    assert (found.dense, found.size.parameters, found.points[2].plain) == (95.97, 308_074, 96.22)
    assert run.curve("rank", "removed") is None


def test_what_failed_says_why(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    (folder / "error.txt").write_text("Traceback (most recent call last):\n  ...\nsparsefw.Diverged: by step 1\n\n")
    (run,) = read_runs([folder])[0]
    assert run.problems == ("failed: sparsefw.Diverged: by step 1",)
    assert run.record.status is RunStatus.FAILED
    assert "failed" in runs_table([run]).text().splitlines()[1].split()


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"results.json: it is a file, and a run is a folder"):
        read_runs([tmp_path / "results.json"])


def test_unfinished_with_a_torn_last_line(tmp_path):
    folder = write_run(tmp_path / "a", finished=False, epochs=3)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "train": {"accu')
    run = read_run(folder)
    assert [epoch.number for epoch in run.epochs] == [1, 2, 3]
    assert run.problems == ("unfinished: no result.json", "the last line of metrics.jsonl is torn")
    assert not run.finished
    assert run.measured("test") is None


def test_what_became_of_constrained_weights_is_read_where_it_was_looked_at(tmp_path):
    folder = write_run(tmp_path / "a", epochs=1, renewals=2.0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "train": {"accuracy": 50.0}}\n{"epoch": 3, "constraint": {"renewed": "x"}}\n')
    found = [(epoch.renewed, epoch.decayed, epoch.compressible) for epoch in read_run(folder).epochs]
    assert found == [(2.0, 20.0, 90.0), (None, None, None), (None, None, None)]


def test_broken_lines_are_counted_and_the_last_of_an_epoch_holds(tmp_path):
    folder = write_run(tmp_path / "a", epochs=2)
    lines = ["[]", '{"epoch": "x"}', '{"epoch": 1, "train": {"accuracy": NaN}, "validation": null}', '{"epoch": 3}']
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    run = read_run(folder)
    assert [epoch.number for epoch in run.epochs] == [1, 2, 3]
    assert math.isnan(run.epochs[0].train)
    assert run.epochs[0].validation is run.epochs[2].train is None
    assert run.problems == ("metrics.jsonl: 2 lines cannot be read, the first is line 3",)


@pytest.mark.parametrize(
    "content, note",
    [
        ("{", "filters-removed.json cannot be read"),
        ("[1]", "filters-removed.json cannot be read"),
        ("{}", "filters-removed.json is not a curve (KeyError: 'points')"),
        (
            json.dumps({**curve(**SGD), "points": []}),
            "filters-removed.json is not a curve (ValueError: it has no points)",
        ),
        (json.dumps(curve(**SGD)).replace("0.5", "50", 1), "filters-removed.json is not a curve (ValueError: a ratio"),
        (json.dumps({**curve(**SGD), "dense": None}), "filters-removed.json is not a curve (TypeError"),
    ],
)
def test_a_broken_curve_is_noted(content, note, tmp_path):
    folder = write_run(tmp_path / "a", None, curve(kind="rank", **SGD))
    (folder / "curves" / "filters-removed.json").write_text(content)
    run = read_run(folder)
    assert [found.kind for found in run.curves] == ["rank"]
    assert run.problems[0].startswith(note)


def test_test_and_validation_are_never_mixed(tmp_path):
    run = read_run(write_run(tmp_path / "a", None, curve(**SGD), curve(**SPARSE, split="validation")))
    assert (run.curve("filters", "removed").dense, run.curve("filters", "removed", "validation").dense) == (
        97.48,
        95.97,
    )
    only = read_run(write_run(tmp_path / "b", None, curve(**SPARSE, split="validation")))
    assert only.curve("filters", "removed") is None
    assert (only.has_curves("validation"), only.has_curves("test")) == (True, False)


def test_how_a_curve_was_measured(tmp_path):
    run = read_run(write_run(tmp_path / "a", None, curve(**SGD, score="l2", allocation="global", calibration=512)))
    assert run.curves[0].settings == CurveSettings("l2", "global", 512, refit=True)  # files of earlier versions
    other = read_run(write_run(tmp_path / "b", None, curve(**SGD)))
    assert other.curves[0].settings == CurveSettings("l1", None, None, refit=True)


def test_spectra(tmp_path):
    folder = write_spectra(write_run(tmp_path / "a"), conv=[2.0, 1.0])
    assert read_run(folder).record.spectra.layers == {
        "conv": {"filters": Spectrum(2, (0, 1), (2.0, 1.0)), "rank": Spectrum(2, (0, 1), (1.0, 0.5))}
    }
    (folder / "spectra.json").write_text('{"layers": {}, "left_out": {"fc": "its weights are not finite"}}')
    assert read_run(folder).problems == ("no spectrum of fc: its weights are not finite",)
    for content in ("[]", '{"layers": {"a": {"filters": {"count": 1, "index": [0], "value": []}}}}', '{"layers": 3}'):
        (folder / "spectra.json").write_text(content)
        assert read_run(folder).problems[0].startswith("spectra.json ")


def test_retrained_runs_are_known_by_the_recorded_fact(tmp_path):
    folder = write_run(tmp_path / "a", {"name": "masked", "removed": 0.9})
    assert read_run(folder).method == "retrained removed=0.9"
    change_record(RunPaths(folder).facts, label="SGD pruned")
    run = read_run(folder)
    assert (run.method, run.retrained) == ("SGD pruned", True)


def test_a_label_does_not_make_a_run_retrained(tmp_path):
    folder = write_run(tmp_path / "a")
    change_record(RunPaths(folder).facts, label="retrained 0.9")
    assert not read_run(folder).retrained


def test_nothing_but_the_configuration_and_the_facts(tmp_path):
    folder = write_run(tmp_path / "a")
    for name in ("metrics.jsonl", "result.json", "environment.json"):
        (folder / name).unlink()
    run = read_run(folder)
    assert (run.epochs, run.curves, run.record.environment) == ((), (), EnvironmentRecord())
    assert run.problems == ("unfinished: no result.json", "no metrics.jsonl")


def test_runs_below_a_folder_are_found_and_damaged_ones_listed(tmp_path):
    write_demo(tmp_path / "deep" / "demo")
    broken = write_run(tmp_path / "broken")
    (broken / "config.yaml").write_text("a: [")
    write_run(tmp_path / "lost").joinpath("config.yaml").unlink()
    (write_run(tmp_path / "bare") / "config.yaml").write_text("name: x")
    write_run(tmp_path / "unknown").joinpath("run.json").unlink()
    (write_run(tmp_path / "torn") / "run.json").write_text('{"name": "x"}')
    runs, damaged = read_runs([tmp_path, tmp_path / "deep"])  # twice the same: once in the report
    assert [run.label for run in runs] == ["SGD", "SparseFW filters k=0.3 w=0.33"]
    assert {(one.folder.name, one.reason) for one in damaged} == {
        ("broken", "config.yaml cannot be read (it is not YAML)"),
        ("lost", "config.yaml is missing"),
        ("bare", "config.yaml has no method.name"),
        ("unknown", "run.json is missing"),
        ("torn", "run.json is not the record of a run (KeyError: 'phase')"),
    }


def test_what_is_inside_a_run_is_not_a_run(tmp_path):
    folder = write_run(tmp_path / "a")
    write_run(folder / "small")
    assert [run.folder for run in read_runs([tmp_path])[0]] == [folder]


@pytest.mark.parametrize("make", ["nothing", "empty", "other"])
def test_no_run_is_an_error_of_one_line(make, tmp_path):
    folder = tmp_path / "there"
    if make != "nothing":
        folder.mkdir()
    if make == "other":
        (folder / "certificate.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"there: (no such folder|it is not a run folder)") as caught:
        read_runs([folder])
    assert "\n" not in str(caught.value)
    with pytest.raises(RunFolderError, match="not a run folder"):
        read_run(folder)


def test_names_tell_seeds_and_settings_apart(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"sgd{seed}", seed=seed)
    for k in (10, 2):
        write_run(tmp_path / f"sfw{k}", sparse(k=k, w=None), lr=0.1)
    write_run(tmp_path / "lr", sparse(k=2, w=None), lr=0.05)
    runs, _ = read_runs([tmp_path])
    assert [run.label for run in runs] == [
        "SGD, seed 0",
        "SGD, seed 1",
        "SparseFW filters k=2 lr=0.05",
        "SparseFW filters k=2 lr=0.1",
        "SparseFW filters k=10",
    ]
    assert runs[0].method == runs[1].method == "SGD"


def test_many_differences_are_told_by_the_recipe(tmp_path):
    write_run(tmp_path / "a", name="short")
    write_run(tmp_path / "b", name="long", epochs=20, lr=0.3, mixup=0.2)
    assert [run.label for run in read_runs([tmp_path])[0]] == ["SGD (long)", "SGD (short)"]
