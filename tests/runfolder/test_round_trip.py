"""Every record is read as it was written, and every file is declared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runfolder.records import (
    CONFIG,
    CURVE,
    DATA,
    ENVIRONMENT,
    EPOCHS,
    FACTS,
    MODEL,
    REQUEST,
    RESULT,
    SPECTRA,
    change_record,
)
from sparsefw import runfolder
from sparsefw.runfolder import (
    EpochWriter,
    RetrainingPaths,
    RunFolderError,
    RunPaths,
    RunStatus,
    RunWriter,
    Split,
    find_runs,
    read_run,
)
from sparsefw.runfolder.files import MARKS, NAMES, is_declared
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
from sparsefw.runfolder.schema import DataChange
from sparsefw.runfolder.write import write_phase_weights, write_retraining


def write_whole_run(folder: Path) -> RunWriter:
    """A run folder with every record."""
    writer = RunWriter(folder)
    writer.begin(CONFIG, FACTS, ENVIRONMENT, "conv: filters")
    writer.data(DATA)
    EpochWriter(folder, 0).append(*EPOCHS)
    writer.model({"weight": torch.ones(2)}, MODEL)
    writer.spectra(SPECTRA)
    writer.result(RESULT)
    writer.curve(CURVE)
    writer.curve(replace(CURVE, split="validation"))
    return writer


def test_every_record_is_read_as_it_was_written(tmp_path):
    write_whole_run(tmp_path)
    run = read_run(tmp_path)
    assert (run.facts, run.config, run.environment) == (FACTS, CONFIG, ENVIRONMENT)
    assert run.epochs == tuple(EPOCHS)
    assert run.result == RESULT
    assert run.curves == (CURVE, replace(CURVE, split="validation"))
    assert run.spectra == SPECTRA
    assert run.status is RunStatus.FINISHED
    assert run.problems == ("no spectrum of fc: its weights are not finite",)


def test_every_file_can_be_read_alone(tmp_path):
    write_whole_run(tmp_path)
    assert read_facts(tmp_path) == FACTS
    assert read_config(tmp_path) == CONFIG
    assert read_environment(tmp_path) == ENVIRONMENT
    assert read_data(tmp_path) == DATA
    assert read_epochs(tmp_path) == EPOCHS
    assert read_result(tmp_path) == RESULT
    assert read_curve(tmp_path, "filters", "removed") == CURVE
    assert read_curve(tmp_path, "filters", "removed", Split.VALIDATION).split == "validation"
    assert read_model_header(tmp_path) == MODEL
    assert torch.equal(read_model_tensors(tmp_path)["weight"], torch.ones(2))
    assert RunPaths(tmp_path).regions.read_text() == "conv: filters\n"


def test_accepted_changes_of_the_data_are_read_as_they_were_written_and_reported(tmp_path):
    writer = write_whole_run(tmp_path)
    changes = (DataChange("the test part has 3 images instead of 4", 1200), DataChange("there is no test part", None))
    writer.data(replace(DATA, changes=changes))
    assert read_data(tmp_path).changes == changes
    assert set(read_run(tmp_path).problems) >= {
        "other data were accepted from step 1,200 on: the test part has 3 images instead of 4",
        "other data were accepted after the training: there is no test part",
    }


def test_a_retraining_is_read_as_it_was_written(tmp_path):
    write_retraining(tmp_path, REQUEST)
    assert read_retraining(tmp_path) == REQUEST
    file = write_phase_weights(tmp_path, 1, {"weight": torch.zeros(2)})
    assert file == RetrainingPaths(tmp_path).weights(1)
    assert file.is_file()


def test_figures_that_are_no_numbers_stay_none(tmp_path):
    RunWriter(tmp_path).result(replace(RESULT, test={"accuracy": math.nan, "loss": math.inf}))
    test = read_result(tmp_path).test
    assert math.isnan(test["accuracy"])
    assert math.isnan(test["loss"])
    RunWriter(tmp_path).curve(replace(CURVE, points=(replace(CURVE.points[0], plain=math.nan),)))
    assert math.isnan(read_curve(tmp_path, "filters", "removed").points[0].plain)


def test_a_resumed_run_keeps_the_facts_with_which_it_began(tmp_path):
    writer = RunWriter(tmp_path)
    writer.begin(CONFIG, FACTS, ENVIRONMENT)
    writer.begin(CONFIG, replace(FACTS, job=None, phase=None), ENVIRONMENT)
    assert read_facts(tmp_path) == FACTS
    writer.paths.facts.write_text("{")
    writer.begin(CONFIG, replace(FACTS, job=None), ENVIRONMENT)
    assert read_facts(tmp_path).job is None


def test_what_is_forgotten_is_gone(tmp_path):
    writer = write_whole_run(tmp_path)
    writer.error("Traceback\nValueError: no")
    writer.paths.checkpoints.mkdir()
    for forget in (writer.forget_error, writer.forget_model, writer.forget_result, writer.forget_checkpoints):
        forget()
        forget()
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.yaml",
        "curves",
        "curves-validation",
        "data.json",
        "environment.json",
        "metrics.jsonl",
        "regions.txt",
        "run.json",
        "spectra.json",
    }
    assert read_model_header(tmp_path) is read_result(tmp_path) is None


def test_every_path_is_declared_and_every_name_is_documented(tmp_path):
    paths = RunPaths(tmp_path)
    properties = [name for name, value in vars(RunPaths).items() if isinstance(value, property)]
    folders = {paths.checkpoints, paths.small, paths.tensorboard}
    for name in properties:
        path = getattr(paths, name)
        if path == paths.picture:
            path = path.with_suffix(".svg")
        if path in folders:
            path /= "file"
        assert is_declared(path.relative_to(tmp_path)), name
    for split in Split:
        assert is_declared(paths.curve("2:4", "masked", split).relative_to(tmp_path))
    assert all(f"\n    {name} " in runfolder.__doc__ for name in NAMES)
    assert set(MARKS) <= {name.removesuffix("/") for name in NAMES}


@pytest.mark.parametrize("name", ["notes.txt", "curves", "result.json/x", "curves-test/filters-removed.json"])
def test_a_file_that_nobody_declared_is_noticed(name):
    assert not is_declared(Path(name))


def test_runs_are_found_at_any_depth_and_not_inside_of_runs(tmp_path):
    for name in ("b/deep", "a"):
        RunWriter(tmp_path / name).begin(CONFIG, FACTS, ENVIRONMENT)
    RunWriter(tmp_path / "a" / "small").begin(CONFIG, FACTS, ENVIRONMENT)
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b" / "deep"]


def test_curves_of_earlier_versions_have_no_choice(tmp_path):
    """Without `chosen` and `refit` in the file: nothing was chosen, and everything was refitted."""
    writer = RunWriter(tmp_path)
    writer.curve(CURVE)
    file = writer.paths.curve(CURVE.kind, CURVE.form)
    content = json.loads(file.read_text())
    del content["refit"], content["sha256"]
    for point in content["points"]:
        del point["chosen"]
    file.write_text(json.dumps(content))
    read = read_curve(tmp_path, CURVE.kind, CURVE.form)
    assert read.settings.refit is True
    assert [point.chosen for point in read.points] == [None, None]
    assert [point.metric for point in read.points] == [None, None]


@pytest.mark.parametrize("damage", [{"chosen": "both"}, {"chosen": 1}, {"chosen": ["refit"]}])
def test_an_unknown_choice_is_damage(tmp_path, damage):
    writer = RunWriter(tmp_path)
    writer.curve(CURVE)
    file = writer.paths.curve(CURVE.kind, CURVE.form)
    content = json.loads(file.read_text())
    change_record(file, points=[content["points"][0] | damage, *content["points"][1:]])
    with pytest.raises(RunFolderError, match="is not one of None, plain, refit"):
        read_curve(tmp_path, CURVE.kind, CURVE.form)


@pytest.mark.parametrize("chosen, metric", [("plain", 50.0), ("refit", 55.0), (None, None)])
def test_the_metric_of_a_point_is_that_of_the_choice(chosen, metric):
    assert replace(CURVE.points[0], chosen=chosen).metric == metric
