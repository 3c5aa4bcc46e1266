"""Trials of parts: what cannot be removed is found in the module around it, and the whole network is run a few times only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from compression.zoo import awake
from sparsefw.compression import compress
from sparsefw.compression.reasons import Cause
from sparsefw.compression.structure.channels import Channels, Side, Site, modes
from sparsefw.compression.structure.parts import first_inputs, module_around
from sparsefw.compression.structure.removal import Trial, removable_channels

X = torch.randn(2, 8)


class Block(nn.Module):
    """Two hidden layers; with `fixed`, its code needs all neurons of the second."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 8)
        self.fixed = fixed

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.b(self.a(x).relu()).relu()
        if self.fixed and hidden.shape[1] != 12:
            raise RuntimeError("twelve, please")
        return x + self.c(hidden)


class Blocks(nn.Module):
    """A network that counts how often it is run, its copies included."""

    runs = 0

    def __init__(self, fixed: tuple[bool, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(one) for one in fixed)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        Blocks.runs += 1
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(*fixed: bool) -> nn.Module:
    torch.manual_seed(0)
    return awake(Blocks(fixed)).eval()


def runs_of(*fixed: bool) -> int:
    model = made(*fixed)
    Blocks.runs = 0
    compress(model, example=X, filters=0.5)
    return Blocks.runs


def test_where_all_can_go_a_network_is_run_equally_often_at_any_depth() -> None:
    assert runs_of(False) == runs_of(*(False,) * 8) <= 16


def test_what_fails_in_every_block_takes_no_more_runs_of_the_network_in_a_deep_one() -> None:
    assert runs_of(*(True,) * 2) == runs_of(*(True,) * 8)


@pytest.mark.parametrize("bad", [0, 3])
def test_of_equal_blocks_the_one_that_fails_is_found_and_only_its_set_is_left(bad: int) -> None:
    found = removable_channels(made(*(i == bad for i in range(4))), X)
    causes = {c.name: c.obstacle.cause for c in found if c.obstacle is not None}
    ends = {"head": Cause.OUTPUT, " + ".join(f"blocks.{i}.c" for i in range(4)): Cause.MEETS_FIXED_SIZE}
    assert causes == {f"blocks.{bad}.b": Cause.FAILS_WITH_FEWER, **ends}


def test_the_silent_network_is_run_once_for_each_draw_whatever_numbers_say() -> None:
    model = made(False, False)
    sets = [c for c in removable_channels(model, X) if c.obstacle is None]
    trial = Trial(model, X, modes(model, X))
    Blocks.runs = 0
    assert trial.problem(sets) is None
    assert Blocks.runs == 4  # two draws, each silent and removed
    number = Site("blocks.0.a.in_features", Side.COUNT, sets[0].sites[0].slots)
    with_number = [replace(sets[0], sites=(*sets[0].sites, number)), *sets[1:]]
    trial.problem(with_number, briefly=True)
    assert Blocks.runs == 6
    assert trial.problem(sets[1:]) is None  # fewer channels: other networks
    assert Blocks.runs == 10


def test_a_module_is_tried_on_what_it_is_first_called_with() -> None:
    model = made(False, False)
    sites = tuple(Site(f"blocks.1.{layer}", Side.OUT, ((0,),)) for layer in "ab")
    name = module_around(Channels(sites, (0,)), model)
    assert name == "blocks.1"
    ((given,), by_name) = first_inputs(model, X, {name})[name]
    assert torch.equal(given, model.blocks[0](X))
    assert by_name == {}
    assert first_inputs(model, X, {"no module"}) == {}
