"""Networks that were trained elsewhere, on the command line: compressed, measured and fine-tuned, or refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cli.test_verbs import refused, sparsefw
from sparsefw import load
from sparsefw.models import build
from train.given import ARGUMENTS, FORM, NAME, write_all, write_images

NETWORK = [NAME, *(word for argument in ARGUMENTS for word in ("--argument", argument))]


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    return write_all(tmp_path_factory.mktemp("mine"))


def weights(mine: Path) -> list[str]:
    return [*NETWORK, "--checkpoint", str(mine / "weights.safetensors"), *FORM]


def test_a_file_of_weights_becomes_a_smaller_network(mine, tmp_path):
    images = mine / "images"
    how = ["--calibration", images, "--evaluate", images, "--filters", "0.5", "-o", tmp_path / "small", "--json", "-q"]
    answer = json.loads(sparsefw("compress", *weights(mine), *how))
    small = load(tmp_path / "small")
    assert sum(p.numel() for p in small.model.parameters()) == answer["costs"]["compressed"]["parameters"]
    assert answer["test"]["dense"]["accuracy"] > 95
    assert answer["test"]["compressed"]["accuracy"] > 95
    assert small.certificate["metrics"] == {k: v["accuracy"] for k, v in answer["test"].items()}
    assert not any("synthetic" in note.reason for note in small.plan.untouched)


def test_without_labels_nothing_is_evaluated_and_the_form_of_the_inputs_is_told(mine, tmp_path):
    how = ["--calibration", mine / "images", "--target", "params=5k", "-o", tmp_path / "small", "-q"]
    text = sparsefw("compress", *weights(mine), *how)
    assert text.startswith("there are no images with labels: not evaluated\n")
    assert (
        "images: 8 x 8, gray, the central 1, mean 0.5, std 0.25 (--mean, --std as given, the rest by sparsefw)" in text
    )
    assert "for params=5k" in text
    assert sum(p.numel() for p in load(tmp_path / "small").model.parameters()) <= 5000


def test_a_drop_is_chosen_on_one_half_of_the_labels_and_reported_on_the_other(mine, tmp_path):
    images = mine / "images"
    how = [
        "--calibration",
        images,
        "--evaluate",
        images,
        "--target",
        "drop=5pt",
        "-o",
        tmp_path / "small",
        "--json",
        "-q",
    ]
    answer = json.loads(sparsefw("compress", *weights(mine), *how))
    assert answer["request"]["target"] == "drop=5pt"
    before, after = answer["request"]["metric"]
    assert before - after <= 5
    assert answer["costs"]["compressed"]["parameters"] < answer["costs"]["dense"]["parameters"]


def test_a_drop_from_chance_is_refused(mine, tmp_path):
    torch.manual_seed(0)
    save_file(build(NAME, width=4, classes=3).state_dict(), tmp_path / "fresh.safetensors")
    command = [*NETWORK, "--checkpoint", tmp_path / "fresh.safetensors", *FORM, "--calibration", mine / "images"]
    line = refused(
        "compress", *command, "--evaluate", mine / "images", "--target", "drop=1%", "-o", tmp_path / "small", "-q"
    )
    assert re.search(r"is right on [\d.]+ % of 24 images, no more than guessing may be", line)
    assert not (tmp_path / "small").exists()


def test_curve(mine):
    images = mine / "images"
    how = ["--calibration", images, "--evaluate", images, "--at", "0.25,0.5", "-q"]
    answer = json.loads(sparsefw("curve", *weights(mine), *how, "--json"))
    assert [point["ratio"] for point in answer["points"]] == [0.25, 0.5]
    assert answer["dense"] > 95
    assert answer["run"] == NAME


def test_inputs_from_files_of_arrays(mine, tmp_path):
    inputs = np.random.default_rng(0).normal(size=(64, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "inputs.npy", inputs)
    save_file({"x": torch.from_numpy(inputs)}, tmp_path / "inputs.safetensors")
    for name in ("inputs.npy", "inputs.safetensors"):
        how = ["--calibration", tmp_path / name, "--filters", "0.5", "-o", tmp_path / name.replace(".", "-"), "-q"]
        sparsefw("compress", *weights(mine)[:-4], *how)  # without the form of images
    one, other = (load(tmp_path / f"inputs-{end}").model.state_dict() for end in ("npy", "safetensors"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_compressed_network_is_compressed_further(mine, tmp_path):
    how = ["--calibration", mine / "images", "--filters", "0.5", "-q"]
    sparsefw("compress", *weights(mine), *how, "-o", tmp_path / "half")
    sparsefw("compress", tmp_path / "half", *FORM, *how, "-o", tmp_path / "quarter")
    half, quarter = (load(tmp_path / name) for name in ("half", "quarter"))
    assert quarter.dense == half.costs
    assert quarter.costs.parameters < half.costs.parameters
    assert quarter.model.conv1.out_channels * 4 == 4


def test_finetune_continues_from_a_file_of_weights(mine, tmp_path):
    out = tmp_path / "tuned"
    small = ["--epochs", "1", "--set", "data.batch_size=8", "-q", "-o", out]
    rgb = ["--argument", "in_channels=3"]
    torch.manual_seed(0)
    save_file(build(NAME, width=4, classes=3, in_channels=3).state_dict(), tmp_path / "rgb.safetensors")
    command = [*NETWORK, *rgb, "--checkpoint", tmp_path / "rgb.safetensors", *FORM, "--data", mine / "images"]
    shown = json.loads(sparsefw("finetune", *command, *small, "--show", "--json"))
    assert shown["data"]["mean"] == [0.5, 0.5, 0.5]
    assert shown["data"]["size"] == [8, 8]
    assert shown["sizes"]["kind"] == "filters"
    assert not out.exists()
    text = sparsefw("finetune", *command, *small)
    assert f"sparsefw curve {out}" in text
    assert (out / "result.json").exists()


def test_bad_input_ends_in_one_line_and_writes_nothing(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("none")
    (tmp_path / "broken").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "broken" / name).write_text("none")
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04.")
    np.save(tmp_path / "bytes.npy", np.zeros((4, 8, 8), np.uint8))
    write_images(tmp_path / "two", 2, classes=2)
    images = str(mine / "images")
    file = str(mine / "weights.safetensors")
    known = weights(mine)
    cut = ["--filters", "0.5", "-o", "out", "-q"]
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, message in [
        (["resnet_digit", "--checkpoint", file, *cut], "did you mean 'resnet_digits'?"),
        (["timm:resnt18", "--checkpoint", file, *cut], "did you mean 'timm:resnet18'?"),
        ([NAME, *cut], "give its trained weights by --checkpoint FILE"),
        ([NAME, "--weights", file, "-o", "out"], "a file of trained weights is given by --checkpoint"),
        (
            [NAME, "--argument", "width=4", "--checkpoint", file, *cut],
            "--argument classes=3 builds a network for these",
        ),
        (["resnet18", "--checkpoint", file, *cut], "more do not fit)"),
        ([*NETWORK, "--checkpoint", "none.pt", *cut], "none.pt: there is no such file"),
        ([*NETWORK, "--checkpoint", file, "--calibration", images, *cut], "give --mean, --std"),
        ([*NETWORK, "--argument", "width", "--checkpoint", file, *cut], "write KEY=VALUE"),
        (known, "give the fraction to remove"),
        ([*known, "--filters", "0.5"], "give the folder for the smaller network by --out FOLDER"),
        ([*known, *cut], "give --calibration FOLDER"),
        ([*known, *cut, "--calibration", "512"], "there are no training images to take 512 from"),
        ([*known, *cut, "--calibration", "nowhere"], "nowhere is not there; expected a folder of images"),
        ([*known, *cut, "--calibration", "empty"], "empty holds no images"),
        ([*known, *cut, "--calibration", "words"], "holds no images, only a.txt"),
        ([*known, *cut, "--calibration", "broken"], "is not a readable image"),
        ([*known, *cut, "--calibration", "pickle.npy"], "expected one array of inputs"),
        ([*known, *cut, "--calibration", "bytes.npy"], "expected one array of inputs"),
        ([*known, *cut, "--calibration", images, "--evaluate", "empty"], "expected at least two class folders"),
        (
            [*known, *cut, "--calibration", images, "--evaluate", "two"],
            "two has 2 class folders, but the network tells 3",
        ),
        ([*known, *cut, "--calibration", images, "--images", "1"], "--images 1: must be at least 2"),
        ([*known, *cut, "--calibration", images, "--image-size", "0"], "must be one whole number"),
        ([*known, *cut, "--calibration", images, "--std", "0"], "--std: must be above 0"),
        ([*known, *cut, "--calibration", images, "--mean", "0.5,0.5"], "must be one number or 1"),
        ([*known, *cut, "--calibration", images, "--data", images], "--data is for runs"),
        ([*known, "-o", "out", "--calibration", images, "--target", "drop=1pt"], "give --evaluate FOLDER"),
        (["empty", *cut], "is not a run folder"),
        (["mine.nets:Net", "--checkpoint", file, *cut], "add --trust"),
    ]:
        assert message in refused("compress", *arguments), arguments
    assert "give --evaluate FOLDER" in refused("curve", *known, "--calibration", images)
    assert "give images with labels by --data" in refused("finetune", *known)
    assert "only a run, or a network given by name" in refused("finetune", NAME, "--data", images)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_options_of_other_networks_are_refused_for_runs(tmp_path):
    (tmp_path / "run").mkdir()
    line = refused("compress", tmp_path / "run", "--filters", "0.5", "--image-size", "8", "--mean", "0")
    assert line.endswith("is a run: --image-size, --mean: only for networks that were trained elsewhere")
