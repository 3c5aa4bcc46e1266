"""A run that was killed, or lost a file, is read as far as it goes, and says what is missing."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from junk import DEEP
from runfolder.records import CONFIG, CURVE, DATA, ENVIRONMENT, EPOCHS, FACTS, RESULT, SPECTRA, change_record
from runfolder.test_round_trip import write_whole_run
from sparsefw.report import read_run as read_reported_run
from sparsefw.report.charts import run_charts
from sparsefw.runfolder import EpochWriter, RunFolderError, RunKind, RunPaths, RunStatus, RunWriter, read_run
from sparsefw.runfolder.read import (
    read_config,
    read_curve,
    read_data,
    read_environment,
    read_epochs,
    read_facts,
    read_model_header,
    read_model_tensors,
    read_result,
    read_retraining,
)
from sparsefw.runfolder.schema import ConfigRecord, DataChange, EnvironmentRecord, SpectraRecord


def test_a_killed_run_has_a_torn_last_line_and_goes_on_from_its_checkpoint(tmp_path):
    RunWriter(tmp_path).begin(CONFIG, FACTS, ENVIRONMENT)
    third = replace(EPOCHS[1], epoch=3, step=30)
    EpochWriter(tmp_path, 0).append(*EPOCHS, third)
    path = RunPaths(tmp_path).metrics
    whole = path.read_text()
    path.write_text(whole + '{"epoch": 4, "step": 40, "tr')
    run = read_run(tmp_path)
    assert run.epochs == (*EPOCHS, third)
    assert run.problems == ("unfinished: no result.json", "the last line of metrics.jsonl is torn")
    assert run.status is RunStatus.UNFINISHED
    resumed = EpochWriter(tmp_path, 20)
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:2])  # to the byte
    resumed.append(third)
    assert path.read_text() == whole


def test_a_line_that_lacks_figures_is_read_as_far_as_it_goes(tmp_path):
    RunPaths(tmp_path).metrics.write_text(
        '{"epoch": 1}\n{"epoch": 2, "step": "x", "constraint": {"renewed": "x"}}\n[]\n'
    )
    first, second = read_epochs(tmp_path)
    assert (first.step, first.figures.train, first.figures.validation) == (None, {}, None)
    assert (second.step, second.figures.constraint.renewed) == (None, None)
    EpochWriter(tmp_path, 100)
    assert read_epochs(tmp_path) == []  # without a step, nobody knows whether the checkpoint is behind it


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl", "spectra.json", "curves", "regions.txt"])
def test_a_missing_file_leaves_the_rest(tmp_path, name):
    writer = write_whole_run(tmp_path)
    whole = read_run(tmp_path)
    path = tmp_path / name
    if path.is_dir():
        writer.paths.curve(CURVE.kind, CURVE.form).unlink()
    else:
        path.unlink()
    run = read_run(tmp_path)
    expected = {
        "environment.json": dict(environment=EnvironmentRecord()),
        "metrics.jsonl": dict(epochs=(), problems=("no metrics.jsonl", *whole.problems)),
        "spectra.json": dict(spectra=SpectraRecord(), problems=()),
        "curves": dict(curves=whole.curves[1:]),
        "regions.txt": {},
    }
    assert run == replace(whole, **expected[name])


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
def test_without_what_it_is_a_run_is_damaged(tmp_path, name):
    write_whole_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunFolderError, match=f"{name} is missing") as error:
        read_run(tmp_path)
    assert (error.value.folder, error.value.reason) == (tmp_path, f"{name} is missing")


@pytest.mark.parametrize(
    "name, read",
    [
        ("run.json", read_facts),
        ("environment.json", read_environment),
        ("data.json", read_data),
        ("result.json", read_result),
        ("curves/filters-removed.json", lambda folder: read_curve(folder, "filters", "removed")),
        ("model.safetensors", read_model_header),
        ("model.safetensors", read_model_tensors),
        ("retrain.json", read_retraining),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, name, read):
    write_whole_run(tmp_path)
    for content in ("{", "[]", '{"versions": 3, "run": 1}'):
        (tmp_path / name).write_text(content)
        with pytest.raises(RunFolderError) as error:
            read(tmp_path)
        assert (tmp_path / name).name in str(error.value)
        assert "\n" not in str(error.value)


def test_records_of_another_run_are_left_out_and_named(tmp_path):
    whole = write_whole_run(tmp_path / "run")
    other = RunWriter(tmp_path / "other")
    other.begin(ConfigRecord({**CONFIG.values, "seed": 4}), FACTS, ENVIRONMENT)
    for path in (whole.paths.result, whole.paths.metrics, whole.paths.spectra, whole.paths.curve("filters", "removed")):
        place = other.folder / path.relative_to(whole.folder)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
    run = read_run(other.folder)
    assert (run.result, run.epochs, run.curves, run.spectra) == (None, (), (), SpectraRecord())
    assert run.problems == (
        "result.json is left out: it belongs to another run",
        "metrics.jsonl: 2 lines are left out: they belong to another run",
        "filters-removed.json is left out: it was measured on a network that result.json does not name",
        "spectra.json is left out: it was measured on a network that result.json does not name",
    )


def test_what_was_measured_on_another_network_of_the_run_is_left_out_and_named(tmp_path):
    """As when the training began again, with another precision."""
    write_whole_run(tmp_path).result(replace(RESULT, model="2" * 64))
    run = read_run(tmp_path)
    assert (run.curves, run.spectra) == ((), SpectraRecord())
    assert [problem.partition(" ")[0] for problem in run.problems] == [
        "filters-removed.json",
        "filters-removed.json",
        "spectra.json",
    ]


def test_records_of_earlier_versions_name_neither_run_nor_network_and_are_read(tmp_path):
    writer = write_whole_run(tmp_path)
    writer.result(replace(RESULT, run=None))
    writer.spectra(replace(SPECTRA, model=None))
    writer.curve(replace(CURVE, model=None))
    EpochWriter(tmp_path, 0).append(*(replace(epoch, run=None) for epoch in EPOCHS))
    run = read_run(tmp_path)
    assert (len(run.curves), len(run.epochs), run.spectra.layers) == (2, 2, SPECTRA.layers)
    assert run.problems == ("no spectrum of fc: its weights are not finite",)


@pytest.mark.parametrize(
    "kept, problem",
    [
        ((), "metrics.jsonl has no whole line of epoch 1, which has been trained"),
        (EPOCHS[:1], "metrics.jsonl has no whole line of epoch 2, which has been trained"),
        (EPOCHS[1:], "metrics.jsonl has no whole line of epoch 1, which has been trained"),
        ((EPOCHS[0], replace(EPOCHS[1], step=15)), "metrics.jsonl ends at step 15, and the training at step 20"),
    ],
)
def test_a_finished_training_whose_epochs_are_lost_is_not_whole(tmp_path, kept, problem):
    writer = write_whole_run(tmp_path)
    EpochWriter(tmp_path, 0).append(*kept)
    assert read_run(tmp_path).problems[0] == problem
    writer.data(replace(DATA, changes=(DataChange("the train part has 3 images instead of 4", 10),)))
    assert problem not in read_run(tmp_path).problems  # with other data, epochs have another number of steps


def test_what_is_not_there_is_none(tmp_path):
    readers = (read_facts, read_environment, read_data, read_result, read_model_header, read_retraining)
    assert [read(tmp_path) for read in readers] == [None] * 6
    assert read_epochs(tmp_path) == []


def test_a_damaged_result_is_neither_finished_nor_missing(tmp_path):
    write_whole_run(tmp_path)
    RunPaths(tmp_path).result.write_text("{")
    run = read_run(tmp_path)
    assert (run.result, run.status) == (None, RunStatus.UNFINISHED)
    assert run.problems[0] == "result.json cannot be read"


def test_a_failure_is_a_status_with_a_reason(tmp_path):
    writer = RunWriter(tmp_path)
    writer.begin(CONFIG, FACTS, ENVIRONMENT)
    writer.error("Traceback (most recent call last):\n  ...\nsparsefw.Diverged: by step 1\n\n")
    run = read_run(tmp_path)
    assert (run.status, run.failure) == (RunStatus.FAILED, "sparsefw.Diverged: by step 1")
    assert run.problems[0] == "failed: sparsefw.Diverged: by step 1"


def test_facts_do_not_depend_on_labels_and_folder_names(tmp_path):
    folder = tmp_path / "0007-seed-2"
    RunWriter(folder).begin(CONFIG, FACTS, ENVIRONMENT)
    change_record(RunPaths(folder).facts, label="SGD", name="other-0009")
    moved = folder.rename(tmp_path / "phase-9")
    facts = read_run(moved).facts
    assert facts.kind is RunKind.RETRAINED
    assert (facts.phase, facts.job, facts.seed) == (FACTS.phase, FACTS.job, FACTS.seed)


RECORDS = (
    "run.json",
    "config.yaml",
    "data.json",
    "environment.json",
    "spectra.json",
    "result.json",
    "curves/filters-removed.json",
)


@pytest.mark.parametrize("name", RECORDS)
def test_one_flipped_bit_in_a_figure_is_noticed(tmp_path, name):
    """Also where it turns one digit into another."""
    write_whole_run(tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    below_comment = content.index(b"\n") if path.suffix == ".yaml" else 0
    place = next(
        i for i in range(below_comment, len(content)) if all(chr(content[i] ^ bit).isalnum() for bit in (0, 1))
    )
    content[place] ^= 1
    path.write_bytes(content)
    try:
        problems = read_run(tmp_path).problems
    except RunFolderError as error:
        problems = (error.reason,)
    assert any(path.name in problem for problem in problems)


def test_a_configuration_that_was_cut_off_between_two_lines_is_noticed(tmp_path):
    write_whole_run(tmp_path)
    path = RunPaths(tmp_path).config
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))
    with pytest.raises(RunFolderError, match=r"config\.yaml is damaged"):
        read_config(tmp_path)


def test_one_flipped_bit_in_the_figures_of_an_epoch_is_noticed(tmp_path):
    write_whole_run(tmp_path)
    path = RunPaths(tmp_path).metrics
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace("1", "3", 1), *others]))
    assert "metrics.jsonl: 1 lines cannot be read, the first is line 1" in read_run(tmp_path).problems


@pytest.mark.parametrize(
    "deep", [DEEP, "{a: " * 20_000, "- " * 50_000, "? " * 50_000], ids=["json", "map", "list", "key"]
)
def test_a_configuration_that_is_nested_too_deeply_is_refused(tmp_path, deep):
    """libyaml would overrun the stack, and end the process."""
    write_whole_run(tmp_path)
    RunPaths(tmp_path).config.write_text(deep)
    with pytest.raises(RunFolderError, match=r"config\.yaml cannot be read"):
        read_config(tmp_path)


def test_a_metric_that_is_unknown_is_drawn_under_its_own_name(tmp_path):
    write_whole_run(tmp_path)
    path = RunPaths(tmp_path).facts
    change_record(path, metric="beauty")
    assert "beauty" in str(run_charts(read_reported_run(tmp_path))[0])
