"""Calibration: any iterable of batches is read, the same in every pass; batches that do not fit are refused in one line."""

from __future__ import annotations

import collections
import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sparsefw.compression import compress, recalibrate
from sparsefw.compression.recovery.calibration import Calibration, run

CPU = torch.device("cpu")


def batches(count: int = 3) -> list[Tensor]:
    return list(torch.randn(count, 8, 6, generator=torch.Generator().manual_seed(0)))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


class Keywords(nn.Module):
    """Takes its inputs by name, or two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.norm(x if scale is None else x * scale)


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: (x,),
        lambda x: [x, torch.zeros(8)],
        lambda x: (x, torch.zeros(8), "label"),
        lambda x: ((x,), torch.zeros(8)),
        lambda x: ([x], 0),
        lambda x: {"x": x},
        lambda x: {"x": x, "labels": torch.zeros(8), "label": 3},
        lambda x: collections.UserDict({"x": x, "labels": torch.zeros(8)}),
        lambda x: ({"x": x}, torch.zeros(8)),
    ],
)
def test_a_batch_may_be_a_tensor_a_tuple_a_list_or_a_dict(shape):
    model = Keywords()
    expected = torch.cat(batches()).mean(0)
    found = recalibrate(model, [shape(x) for x in batches()]).norm.running_mean
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "batch", [lambda x: ((x, torch.tensor(2.0)), 0), lambda x: {"x": x, "scale": torch.tensor(2.0)}]
)
def test_several_inputs_at_once(batch):
    found = recalibrate(Keywords(), [batch(x) for x in batches()]).norm.running_mean
    torch.testing.assert_close(found, 2 * torch.cat(batches()).mean(0))


class OwnLoader:
    """Not a list, not a loader: only __iter__."""

    def __iter__(self):
        return iter(batches())


@pytest.mark.parametrize("make", [list, tuple, iter, lambda b: (x for x in b), lambda b: OwnLoader()])
def test_any_iterable_is_read_as_often_as_needed(make):
    calibration = Calibration(make(batches()), CPU)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(calibration, batches(), strict=True))


def loaders() -> list[DataLoader]:
    data = TensorDataset(torch.arange(32.0).unsqueeze(1))
    own = torch.Generator().manual_seed(7)
    return [
        DataLoader(data, batch_size=8, shuffle=True),
        DataLoader(data, batch_size=8, shuffle=True, generator=own),
    ]


@pytest.mark.parametrize("loader", loaders(), ids=["global generator", "its own generator"])
def test_shuffling_repeats(loader):
    calibration = Calibration(loader, CPU)
    first, second = (torch.cat(list(calibration)).flatten().tolist() for _ in range(2))
    assert first == second
    assert first != sorted(first)
    assert sorted(first) == list(range(32))


class Augmented:
    """Random numbers from everywhere, as in augmentation."""

    def __iter__(self):
        for _ in range(3):
            yield torch.tensor([float(torch.rand(())), random.random(), np.random.rand()])


def test_augmentation_repeats():
    calibration = Calibration(Augmented(), CPU)
    first = torch.stack(list(calibration))
    torch.rand(1), random.random(), np.random.rand()  # what the program draws in between
    assert torch.equal(first, torch.stack(list(calibration)))
    assert len(first.unique()) == 9


class Noise(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("used_before", [False, True])
def test_augmentation_in_worker_processes_repeats(persistent, used_before):
    """Workers that live on would go on with the random numbers of the pass before."""
    loader = DataLoader(Noise(), batch_size=4, num_workers=1, persistent_workers=persistent)
    if used_before:
        list(loader)
    calibration = Calibration(loader, CPU)
    first, second = (torch.cat(list(calibration)) for _ in range(2))
    assert torch.equal(first, second)
    assert len(first.unique()) == 16


@pytest.mark.parametrize("whole", [True, False], ids=["to the end", "one batch"])
def test_the_random_state_of_the_caller_is_restored(whole):
    own = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(torch.arange(32.0)), batch_size=8, shuffle=True, generator=own)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = float(torch.rand(())), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    before = own.get_state()
    for source in (loader, Augmented()):
        passed = iter(Calibration(source, CPU))
        next(passed)
        if whole:
            list(passed)
        del passed
    assert (float(torch.rand(())), random.random(), np.random.rand()) == expected
    assert torch.equal(own.get_state(), before)


def test_generators_of_gpus_are_not_reset(monkeypatch):
    """torch.manual_seed would, and nothing here puts their state back."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the GPU's generator was reset"))
    list(Calibration(batches(), CPU))


def test_the_example_is_cut_from_the_first_batch():
    example = Calibration([((torch.zeros(8, 6), torch.tensor(2.0)), 1)], CPU).example
    assert isinstance(example, tuple)
    assert example[0].shape == (2, 6)
    assert example[1].shape == ()
    assert Calibration([{"x": torch.zeros(1, 6), "labels": 0}], CPU).example["x"].shape == (1, 6)


def one_line(match: str):
    """An error whose whole message is one line."""
    return pytest.raises(ValueError, match=rf"^{match}[^\n]*\Z")


@pytest.mark.parametrize("empty", [[], (), iter([]), DataLoader(TensorDataset(torch.empty(0, 6)))])
def test_empty(empty):
    with one_line("calibration is empty"):
        compress(network(), filters=0.5, calibration=empty)


def test_an_empty_batch():
    with one_line("calibration has an empty batch"):
        compress(network(), filters=0.5, calibration=[()])


@pytest.mark.parametrize("value", [3, "images", torch.zeros(4, 6), nn.Linear(6, 2), {"x": torch.zeros(4, 6)}, 0.5])
def test_a_value_that_is_not_an_iterable_of_batches_is_refused(value):
    with one_line(rf"calibration must be an iterable of batches, got {type(value).__name__}"):
        compress(network(), filters=0.5, calibration=value)


@pytest.mark.parametrize("count, said", [(8, True), (31, True), (32, False), (40, False)])
def test_few_inputs_are_noted(count, said):
    small = compress(network(), filters=0.5, calibration=torch.randn(count, 6).split(8))
    remarks = [u.reason for u in small.plan.untouched if u.layer == "calibration"]
    few = f"only {count} inputs, too few to fit weights and statistics well: give some hundred"
    assert few not in remarks if not said else remarks[0] == few


def test_the_error_for_a_wrong_shape_names_the_shapes():
    with one_line(r"calibration does not fit the model: inputs of shape \[\(8, 7\)\]: "):
        recalibrate(network(), [torch.zeros(8, 7)])
    with one_line(r"calibration does not fit the model: inputs of shape \[\(8, 6\), \(2,\)\]: "):
        recalibrate(Keywords(), [{"x": torch.zeros(8, 6), "scale": torch.ones(2)}])


@pytest.mark.parametrize(
    "batch", [{"wrong name": torch.zeros(8, 6)}, torch.zeros(8, 6, dtype=torch.int64)], ids=["name", "dtype"]
)
def test_what_the_model_cannot_take(batch):
    with one_line("calibration does not fit the model: inputs of shape"):
        recalibrate(network(), [batch])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, times: int) -> Tensor:
        return times * self.layer(x)


def test_how_to_write_a_batch_of_several_inputs_is_said_and_works():
    x = torch.zeros(8, 6)
    with one_line(
        r".*missing 1 required positional argument: 'times'; of a batch that is a tuple, .* write \(\(a, b\), labels\)"
    ):
        compress(TwoInputs(), weights=0.5, calibration=[(x, 3)])
    for batch in (((x, 3),), ((x, 3), torch.ones(8))):
        compress(TwoInputs(), weights=0.5, calibration=[batch])


@pytest.mark.parametrize("batch", ["text", 5, None])
def test_a_batch_without_tensors(batch):
    with one_line(r"calibration has no tensor in it: \w+; give torch tensors, with a batch axis"):
        recalibrate(network(), [batch])


@pytest.mark.parametrize("error", [AssertionError, KeyError, AttributeError, RuntimeError])
def test_whatever_a_model_says_is_passed_on_in_one_line(error):
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error("the picture must be 224 x 224\nand some more")

    with one_line("calibration does not fit the model: .*(224 x 224|KeyError)"):
        run(Refuses(), torch.zeros(1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite(bad):
    data = batches()
    data[1][3, 2] = bad
    with one_line("calibration contains NaN or inf"):
        recalibrate(network(), data)
    with one_line("calibration contains NaN or inf"):
        recalibrate(Keywords(), [{"x": batches()[0], "scale": torch.tensor(bad)}])
