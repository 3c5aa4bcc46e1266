"""The files of an elastic folder: hardly larger than the dense weights, and refused in one line where they are damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from compression.networks import BATCHES, ROWS, mlp, normed, unnormed
from sparsefw import load, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact.files import digest_of, sha256
from sparsefw.models import build

TEN = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]


@pytest.fixture
def folder(tmp_path) -> Path:
    save_elastic(normed(), tmp_path / "e", "filters", [0.25, 0.75], calibration=BATCHES, refit=False)
    return tmp_path / "e"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
def test_ten_sizes_are_hardly_larger_than_the_dense_weights(kind, batches, tmp_path):
    """1.2 million weights, a ninth of a ResNet-18: channels, names and headers count for more here."""
    model = build("resnet_digits", width=64)
    save_file(model.state_dict(), tmp_path / "dense.safetensors")
    save_elastic(model, tmp_path / "e", kind, TEN, calibration=batches[:1], refit=False)
    assert {path.name for path in (tmp_path / "e").iterdir()} == {"plan.json", "model.safetensors"}
    assert size_of(tmp_path / "e") < 1.03 * (tmp_path / "dense.safetensors").stat().st_size


@pytest.mark.parametrize("make", [normed, unnormed])
def test_a_further_size_costs_two_numbers_per_channel(make, tmp_path):
    """And nothing per weight: a factor in float64 and a bias where there are no batch norms; names and places beside them."""
    sizes = {}
    for count in (1, 9):
        save_elastic(make(), tmp_path / "e", "filters", TEN[:count], calibration=BATCHES, refit=False)
        sizes[count] = size_of(tmp_path / "e")
    channels = sum(p.numel() for name, p in make().named_parameters() if p.ndim == 1 and name.endswith("weight"))
    channels += sum(p.shape[0] for p in make().parameters() if p.ndim > 1) if make is unnormed else 0
    assert sizes[9] - sizes[1] < 8 * (12 * channels + 700)


@pytest.mark.parametrize("ratio", [0.25, 0.5])
@pytest.mark.parametrize("part", ["start", "middle", "end", "truncated", "missing", "foreign"])
@pytest.mark.parametrize("name", ["model.safetensors", "plan.json"])
def test_a_damaged_file_gives_one_line(name, part, ratio, folder):
    path = folder / name
    content = bytearray(path.read_bytes())
    if part == "missing":
        path.unlink()
    elif part == "foreign":
        path.write_bytes(b"\x80\x04PK something else")
    elif part == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[{"start": 0, "middle": len(content) // 2, "end": -2}[part]] ^= 1
        path.write_bytes(content)
    with pytest.raises(ArtifactError) as error:
        load(folder, normed, filters=ratio)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_files_of_another_folder_are_refused(folder, tmp_path):
    save_elastic(normed(), tmp_path / "other", "filters", [0.25, 0.7], calibration=BATCHES, refit=False)
    os.replace(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ArtifactError, match="damaged or was edited"):
        load(folder, normed, filters=0.25)


@pytest.mark.parametrize("other", [mlp, unnormed, lambda: nn.Sequential(*list(normed())[:3])])
@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_the_constructor_of_another_network_is_refused(other, ratio, folder):
    with pytest.raises(ArtifactError, match="fit the network") as error:
        load(folder, other, filters=ratio)
    assert "\n" not in str(error.value)


def test_a_folder_of_an_earlier_version_is_to_be_saved_again(folder):
    rewritten(folder, lambda d: d.update(schema=3))
    with pytest.raises(ArtifactError, match=r"schema 3 is not the one that this version reads \(4\); save it again$"):
        load(folder, normed, filters=0.25)
    save_elastic(normed(), folder, "filters", [0.5], calibration=BATCHES, refit=False)
    load(folder, normed, filters=0.5)


def rewritten(folder, change, change_tensors=None) -> None:
    """plan.json and weights rewritten by somebody who also knows how hashes work."""
    path, weights = folder / "plan.json", folder / "model.safetensors"
    data = json.loads(path.read_text())
    if change_tensors is not None:
        tensors = {name: t.clone() for name, t in load_file(weights).items()}
        change_tensors(tensors)
        save_file(tensors, weights)
        data["sha256"]["model.safetensors"] = sha256(weights)
    change(data)
    path.write_text(json.dumps({**data, "digest": digest_of(data)}))


def order(data):
    return data["order"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("order"),
        lambda d: d.pop("statistics"),
        lambda d: d.pop("sha256"),
        lambda d: d.pop("probe"),
        lambda d: d.update(probe=3),
        lambda d: d["probe"].pop("input"),
        lambda d: d.update(order=None),
        lambda d: d.update(order={}),
        lambda d: d.update(kind="colour"),
        lambda d: d.update(state=None),
        lambda d: d.update(statistics=[]),
        lambda d: d.update(statistics={"colour": ["1"]}),
        lambda d: d["statistics"].update(running_mean=["nowhere"]),
        lambda d: d["statistics"].update(running_mean=["0"]),
        lambda d: d["statistics"].update(running_mean=["1"]),
        lambda d: d.update(points=[]),
        lambda d: d.update(points=[1]),
        lambda d: d["points"][0].update(kept=[16]),
        lambda d: d["points"][0].update(kept=None),
        lambda d: d["points"][0].update(ratio="x"),
        lambda d: d["points"][0].update(plain={}),
        lambda d: order(d).update(allocation="fair"),
        lambda d: order(d).update(round_to=0),
        lambda d: order(d).update(include=None),
        lambda d: order(d)["units"].pop(),
        lambda d: order(d)["units"][0].__setitem__(1, 7),
        lambda d: order(d)["channels"].pop(),
        lambda d: order(d)["channels"][0].update(groups=99),
        lambda d: order(d)["channels"][0]["sites"][0].__setitem__(0, "nowhere"),
        lambda d: order(d)["channels"][0]["sites"][0].__setitem__(1, "top"),
        lambda d: order(d)["channels"][0]["sites"][0].__setitem__(2, 99),
        lambda d: d.update(prepared={"edits": [{"edit": "split", "layer": "0", "rank": 2}]}),
    ],
    ids=range(32),
)
def test_an_edited_plan_gives_one_line(change, folder):
    rewritten(folder, change)
    with pytest.raises(ArtifactError) as error:
        load(folder, normed, filters=0.25)
    assert "\n" not in str(error.value)


def add(tensors, name, value):
    tensors[name] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop(".order.magnitudes"),
        lambda t: t.pop(".order.slots.0"),
        lambda t: t.pop(".statistics.0.running_mean"),
        lambda t: add(t, ".order.magnitudes", torch.zeros(3)),
        lambda t: add(t, ".order.slots.1", t[".order.slots.1"] + 1000),
        lambda t: add(t, ".order.slots.3", t[".order.slots.3"] + 1000),
        lambda t: add(t, ".order.slots.0", torch.tensor(3)),
        lambda t: add(t, ".statistics.0.running_var", torch.zeros(3)),
        lambda t: add(t, "0.weight", torch.zeros(3)),
        lambda t: add(t, "surplus", torch.zeros(3)),
    ],
    ids=range(10),
)
def test_other_tensors_give_one_line(change, folder):
    rewritten(folder, lambda d: None, change)
    with pytest.raises(ArtifactError) as error:
        load(folder, normed, filters=0.25)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "shapes", [3, {}, {"shape": [1], "dtype": "os.system"}, {"shape": "x", "dtype": "torch.float32"}]
)
def test_an_input_that_is_none(shapes, folder):
    rewritten(folder, lambda d: d.update(input=shapes))
    with pytest.raises(ArtifactError, match="input") as error:
        load(folder, normed, filters=0.5)
    assert "\n" not in str(error.value)


def test_inputs_of_calibration_are_not_stored(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "neurons", [0.5], calibration=ROWS, refit=False)
    assert json.loads((tmp_path / "e" / "plan.json").read_text())["input"] == {
        "shape": [2, 8],
        "dtype": "torch.float32",
    }
