"""Checkpoints: what is read is what was written, or it is said that it is not; something whole is always left."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from junk import DEEP, JUNK, NOT_JSON
from sparsefw import atomic_io
from sparsefw.config_base import ConfigError
from sparsefw.train.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint

FLIPPED = "flipped"


def names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder))


def steps(folder: Path) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in names(folder))


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == FLIPPED:
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-1], "empty": b"", FLIPPED: content}[how])


def round_trip(folder: Path, state: dict) -> dict:
    return load_checkpoint(save_checkpoint(folder, 1, state))


def test_a_file_that_holds_something_else_is_named_in_one_line(tmp_path):
    """Its name contains its hash, so that it counts as whole."""
    contents = [*NOT_JSON, safetensors(None), safetensors({"state": DEEP})]
    contents += [safetensors({"state": json.dumps(tree)}) for tree in (*JUNK, {"tensor": "7"}, {"dict": [[]]})]
    for content in contents:
        path = tmp_path / f"step-00000001-{hashlib.sha256(content).hexdigest()}.safetensors"
        path.write_bytes(content)
        assert newest_checkpoint(tmp_path) == (path, [])
        with pytest.raises(ConfigError, match=r"step-\S+ is not a checkpoint of sparsefw") as error:
            load_checkpoint(path)
        assert "\n" not in str(error.value)
        path.unlink()


def safetensors(metadata: dict[str, str] | None) -> bytes:
    return save({"0": torch.zeros(1)}, metadata)


def test_nested_values_come_back_with_their_types_and_keys(tmp_path):
    state = {
        "state": {0: {"age": 3, "none": None}, 17: {}},
        "groups": [{"betas": (0.9, 0.999), "nested": ((), [[]], {"a": (1,)})}],
        "flags": [True, False, 1, 0],
        "text": 'quotes " and \n and ü',
        ("a", 1): "a tuple as a key",
        True: "a truth as a key",
    }
    found = round_trip(tmp_path, state)
    assert found == state
    assert [type(flag) for flag in found["flags"]] == [bool, bool, int, int]
    assert [type(key) for key in found["state"]] == [int, int]


def test_kinds_of_tuples_stay_tuples_and_kinds_of_dictionaries_keep_their_order(tmp_path):
    state = {"shape": torch.Size([2, 3]), "ordered": OrderedDict([("b", 1), ("a", 2)])}
    found = round_trip(tmp_path, state)
    assert found["shape"] == (2, 3)
    assert list(found["ordered"].items()) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.inf, -math.inf, 2**70])
def test_numbers_come_back_bit_for_bit(tmp_path, value):
    found = round_trip(tmp_path, {"value": value})["value"]
    assert found == value
    assert type(found) is type(value)
    assert math.copysign(1, found) == math.copysign(1, value)


def test_a_number_that_is_none_comes_back_as_such(tmp_path):
    assert math.isnan(round_trip(tmp_path, {"value": math.nan})["value"])


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool],
    ids=str,
)  # fmt: skip
def test_tensors_of_every_type_come_back_bit_for_bit(tmp_path, dtype):
    tensor = (torch.arange(12).view(3, 4) % 5 - 2).abs().to(dtype)
    found = round_trip(tmp_path, {"t": tensor, "scalar": tensor[1, 2], "none": tensor[:0]})
    assert found["t"].dtype == dtype
    assert torch.equal(found["t"], tensor)
    assert found["scalar"].shape == ()
    assert torch.equal(found["scalar"], tensor[1, 2])
    assert found["none"].shape == (0, 4)


def test_tensors_that_share_memory_or_lie_unusually_in_it_come_back_by_themselves(tmp_path):
    whole = torch.arange(24.0).view(2, 3, 4)
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    state = {"rows": [whole[0], whole[1]], "turned": whole.transpose(0, 2), "same": whole, "image": image}
    state["parameter"] = torch.nn.Parameter(torch.ones(3))
    state["wide"] = torch.ones(1).expand(5)
    found = round_trip(tmp_path, state)
    for key in ("turned", "same", "image", "parameter", "wide"):
        assert torch.equal(found[key], state[key]), key
    assert torch.equal(found["rows"][1], whole[1])
    found["same"].zero_()
    assert torch.equal(found["rows"][0], whole[0])
    assert not found["parameter"].requires_grad


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", 1 + 2j, torch.float32, Path("x")], ids=lambda value: type(value).__name__
)
def test_an_object_is_refused_instead_of_pickled_and_leaves_nothing_behind(tmp_path, value):
    with pytest.raises(TypeError, match=type(value).__name__):
        save_checkpoint(tmp_path, 1, {"a": [value]})
    assert names(tmp_path) == []


def test_the_newest_two_are_kept(tmp_path):
    for step in (5, 10, 99, 1000, 100_000_000, 1_000_000_000):
        path = save_checkpoint(tmp_path, step, {"step": step})
        assert newest_checkpoint(tmp_path) == (path, [])
    assert steps(tmp_path) == [100_000_000, 1_000_000_000]


def test_without_checkpoints_there_is_none(tmp_path):
    assert newest_checkpoint(tmp_path) == (None, [])
    assert newest_checkpoint(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize("how", [FLIPPED, "cut", "empty"])
def test_of_a_damaged_one_is_told_and_the_one_before_is_taken(tmp_path, how):
    first = save_checkpoint(tmp_path, 1, {"x": torch.ones(100)})
    second = save_checkpoint(tmp_path, 2, {"x": torch.zeros(100)})
    damage(second, how)
    assert newest_checkpoint(tmp_path) == (first, [second])
    assert torch.equal(load_checkpoint(first)["x"], torch.ones(100))


@pytest.mark.parametrize("where", range(0, 100, 9))
def test_one_flipped_bit_anywhere_is_noticed(tmp_path, where):
    path = save_checkpoint(tmp_path, 1, {"x": torch.arange(10.0), "step": 1})
    content = bytearray(path.read_bytes())
    content[len(content) * where // 100] ^= 1 << (where % 8)
    path.write_bytes(content)
    assert newest_checkpoint(tmp_path) == (None, [path])


def test_when_all_are_damaged_there_is_none(tmp_path):
    paths = [save_checkpoint(tmp_path, step, {"step": step}) for step in (1, 2)]
    for path in paths:
        damage(path, "cut")
    assert newest_checkpoint(tmp_path) == (None, paths[::-1])


def test_a_damaged_one_ahead_does_not_push_out_whole_ones(tmp_path):
    """Training went back behind step 9: its checkpoint must neither stay for ever nor count as one of the two."""
    save_checkpoint(tmp_path, 3, {"step": 3})
    damage(save_checkpoint(tmp_path, 9, {"step": 9}), "cut")
    save_checkpoint(tmp_path, 4, {"step": 4})
    assert steps(tmp_path) == [3, 4]
    damage(save_checkpoint(tmp_path, 5, {"step": 5}), FLIPPED)
    again = save_checkpoint(tmp_path, 5, {"step": 5, "seconds": 2.0})
    assert steps(tmp_path) == [4, 5]
    assert newest_checkpoint(tmp_path) == (again, [])


def test_what_a_kill_left_half_written_is_no_checkpoint_and_can_be_swept(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"step": 1})
    half = tmp_path / ".step-00000002.0123abcd.new" / path.name
    half.parent.mkdir()
    (half.parent / ".sparsefw-lock").touch()
    half.write_bytes(path.read_bytes()[:20])
    assert newest_checkpoint(tmp_path) == (path, [])
    atomic_io.remove_leftovers(tmp_path)
    assert names(tmp_path) == [path.name]
    atomic_io.remove_leftovers(tmp_path / "nowhere")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_on_a_full_disk_the_one_before_stays_whole_and_nothing_half_is_left(tmp_path, monkeypatch, failing):
    first = save_checkpoint(tmp_path, 1, {"step": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, {"step": 2})
    monkeypatch.undo()
    assert names(tmp_path) == [first.name]
    assert load_checkpoint(first) == {"step": 1}
