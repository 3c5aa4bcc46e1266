"""The elastic artifact: every stored size, with no data."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from compression.networks import IMAGES, ROWS, cnn, mlp
from sparsefw import compress, load, save, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact import elastic_folder, files

GRID = (0.3, 0.5, 0.7)


@pytest.fixture(params=["filters", "rank", "weights"])
def stored(request, small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", request.param, GRID, calibration=batches, refit=True)
    return request.param, small_resnet, batches, tmp_path / "e"


@pytest.mark.parametrize("refit", [True, False])
def test_every_point_equals_the_result_of_compress(stored, refit):
    kind, model, batches, folder = stored
    for ratio in GRID:
        direct = compress(model, calibration=batches, refit=refit, **{kind: ratio}).model
        again = load(folder, refit=refit, **{kind: ratio}).model
        torch.testing.assert_close(again(batches[0]), direct(batches[0]), rtol=1e-5, atol=1e-5)
        assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in direct.parameters())


@pytest.mark.parametrize("kind", ["filters", "rank"])
def test_the_recovery_of_every_size_is_the_one_that_compress_chooses(kind, small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", kind, GRID, calibration=batches)
    for ratio in GRID:
        direct = compress(small_resnet, calibration=batches, **{kind: ratio})
        again = load(tmp_path / "e", **{kind: ratio})
        assert (tmp_path / "e" / f"refit-{ratio!r}.safetensors").exists() == direct.plan.request["refit"]
        torch.testing.assert_close(again.model(batches[0]), direct.model(batches[0]), rtol=1e-5, atol=1e-5)


def test_a_pattern_is_loaded_in_the_words_of_compress(tmp_path):
    model = mlp()
    save_elastic(model, tmp_path / "e", "2:4", [0.5], calibration=ROWS, refit=False)
    direct = compress(model, weights="2:4", calibration=ROWS, refit=False).model
    torch.testing.assert_close(load(tmp_path / "e", mlp, weights="2:4").model(ROWS[0]), direct(ROWS[0]))


def test_a_loaded_size_is_described_and_says_why_it_cannot_be_compared(stored):
    kind, _, _, folder = stored
    small = load(folder, **{kind: 0.5})
    assert f"removed: 50 % of the {kind}" in str(small)
    for measured in ("parity", "latency"):
        with pytest.raises(
            ValueError, match=f"{measured} compares with the dense model, which a loaded artifact does not"
        ):
            getattr(small, measured)


def test_a_warning_names_the_neighbours_of_a_size_that_is_not_stored(stored):
    kind, _, _, folder = stored
    with pytest.warns(UserWarning, match=f"{kind}=0.62 is not stored: [^\n]* interpolated between [^\n]* 0.5 and 0.7"):
        load(folder, **{kind: 0.62})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder, **{kind: 0.7})


@pytest.mark.filterwarnings("ignore:.* is not stored")
def test_target_takes_the_largest_that_fits(small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", "filters", GRID, calibration=batches, refit=False)
    dense = sum(p.numel() for p in small_resnet.parameters())
    found = load(tmp_path / "e", target="params=0.3")
    assert 0.27 * dense < sum(p.numel() for p in found.model.parameters()) <= 0.3 * dense
    larger = load(tmp_path / "e", filters=found.plan.request["filters"] - 0.03).model
    assert sum(p.numel() for p in larger.parameters()) > 0.3 * dense
    assert load(tmp_path / "e", target="macs=0.3").certificate["costs"]["compressed"]["macs"] > 0
    with pytest.raises(
        ArtifactError, match=r"^[^\n]*target params=1e-05 cannot be reached: [^\n]* the smallest is [^\n]*$"
    ):
        load(tmp_path / "e", target="params=0.00001")


def test_bad_requests(small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", "filters", GRID, calibration=batches, refit=False)
    save(compress(small_resnet, filters=0.5, calibration=batches, refit=False), tmp_path / "a")
    for wrong in (dict(), dict(rank=0.5), dict(filters=0.5, target="params=0.5"), dict(filters=0.5, rank=0.5)):
        with pytest.raises(ArtifactError, match=r"offers filters = 0.3, 0.5, 0.7"):
            load(tmp_path / "e", **wrong)
    with pytest.raises(ArtifactError, match="no refit points"):
        load(tmp_path / "e", filters=0.5, refit=True)
    with pytest.raises(ArtifactError, match="can be loaded by params, macs, bytes"):
        load(tmp_path / "e", target="latency=0.5")
    with pytest.raises(ArtifactError, match="one size only"):
        load(tmp_path / "a", filters=0.5)
    with pytest.raises(ValueError, match="ratios to remove"):
        save_elastic(small_resnet, tmp_path / "e", "filters", (1.0,), calibration=batches)
    with pytest.raises(ValueError, match="unknown kind 'colour'"):
        save_elastic(small_resnet, tmp_path / "e", "colour", GRID, calibration=batches)


def test_only_the_asked_point_must_be_sound(small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", "filters", GRID, calibration=batches)
    (tmp_path / "e" / "refit-0.3.safetensors").write_bytes(b"gone")
    load(tmp_path / "e", filters=0.5)
    with pytest.raises(ArtifactError, match="damaged or was edited"):
        load(tmp_path / "e", filters=0.3)


def test_a_broken_point_of_an_elastic_artifact_has_no_metric(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "filters", [0.5], calibration=ROWS, evaluate=lambda net: math.nan)
    assert load(tmp_path / "e", mlp, filters=0.5).certificate["metrics"] == {"compressed": None}


@pytest.mark.parametrize("refit", [False, True])
def test_an_elastic_artifact_is_read_as_a_whole(refit, tmp_path, monkeypatch):
    """Another process saves between the reading of plan.json and a file, and between that of two files."""
    first, second = cnn(), cnn()
    with torch.no_grad():
        second[0].weight.neg_()
    how = {"kind": "filters", "at": [0.5], "calibration": IMAGES}

    def output(folder) -> Tensor:
        with torch.no_grad():
            return load(folder, cnn, filters=0.5, refit=refit).model.eval()(IMAGES[0])

    save_elastic(second, tmp_path / "second", **how)
    save_elastic(first, tmp_path / "e", **how)
    read, reads = elastic_folder.read_tensors, []

    def interrupted(path):
        reads.append(path)
        if len(reads) == 1 + refit:
            save_elastic(second, tmp_path / "e", **how)
        return read(path)

    for module in (elastic_folder, files):
        monkeypatch.setattr(module, "read_tensors", interrupted)
    assert torch.equal(output(tmp_path / "e"), output(tmp_path / "second"))
    assert len(reads) > 1 + refit


def test_changes_that_evaluate_makes_to_a_model_are_not_stored(tmp_path):
    def freezing(net: nn.Module) -> float:
        net.eval().requires_grad_(False)
        return 1.0

    save_elastic(mlp().train(), tmp_path / "e", "filters", [0.5], calibration=ROWS, evaluate=freezing)
    net = load(tmp_path / "e", mlp, filters=0.5).model
    assert net.training
    assert net[0].weight.requires_grad
