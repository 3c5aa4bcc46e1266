"""Copies of networks: equal to what copy.deepcopy gives, whatever modules keep in their attributes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.copies import copied, copy_sharing_weights


class Slotted(nn.Module):
    """A module that says itself how it is copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> Slotted:
        new = Slotted()
        new.told = True
        return new


class Referring(nn.Module):
    """Keeps its parts a second time, in a list and by a method, and a table under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.own = Slotted()
        self.tied = self.part[0]
        self.listed = [self.part[0], {"norm": self.part[1]}]
        self.run = self.part.forward
        self.register_buffer("table", torch.arange(4.0))
        self.same_table = self.table
        self.options: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x) + self.table.view(1, 4, 1, 1)


def test_a_copy_computes_the_same_and_refers_to_its_own_parts() -> None:
    model = Referring().eval()
    new = copied(model)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(model(x), new(x))
    assert new.listed[0] is new.part[0] is new.tied
    assert new.listed[1]["norm"] is new.part[1]
    assert new.run.__self__ is new.part
    assert new.own.told
    assert list(new.state_dict()) == list(model.state_dict())
    assert not {p.data_ptr() for p in new.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_nothing_that_changes_in_a_copy_changes_in_the_model() -> None:
    model = Referring()
    before = copy.deepcopy(model.state_dict())
    for new in (copied(model), copy_sharing_weights(model, {"part", "attention"})):
        with torch.no_grad():
            for tensor in (*new.parameters(), *new.buffers()):
                tensor.add_(1)
        new.options["a"] = 1
        new.part.append(nn.ReLU())
        new.part[0].register_forward_hook(lambda *_: None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.options
    assert len(model.part) == 2
    assert not model.part[0]._forward_hooks


def test_weights_share_memory_except_where_they_are_to_be_changed_in_place() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    new = copy_sharing_weights(model, {"1"})
    shares = [a.data_ptr() == b.data_ptr() for a, b in zip(model.parameters(), new.parameters(), strict=True)]
    assert shares == [True, True, False, False]
    new[0].weight = nn.Parameter(torch.zeros(2, 2))
    assert bool(model[0].weight.any())


def test_the_weight_that_a_tied_module_changes_in_place_is_apart_under_all_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    new = copy_sharing_weights(model, {"1"})
    assert new[0].weight is new[1].weight
    assert new[0].weight.data_ptr() != model[0].weight.data_ptr()
