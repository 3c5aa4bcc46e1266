"""Channels followed through a model, for the tests: the sets are as expected, nothing is touched, removing equals silencing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from compression.zoo import table
from sparsefw.compression.structure import removal
from sparsefw.compression.structure.channels import Channels
from sparsefw.compression.structure.removal import removable_channels, removal_edits

SILENCE = "removing them is not the same as silencing them"


def image(channels: int = 3, size: int = 6) -> Tensor:
    return torch.randn(2, channels, size, size)


def fingerprint(model: nn.Module) -> list[Any]:
    """Everything about a model that following its channels must leave as it was."""
    tensors = [(name, t.clone().tolist()) for name, t in model.state_dict().items()]
    modules = [
        (name, m.training, len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m)))
        for name, m in model.named_modules()
    ]
    return [tensors, modules, [p.requires_grad for p in model.parameters()]]


def parity(model: nn.Module, inputs: Any, removed: removal.Removed) -> float:
    """How far removing these channels is from silencing them."""
    return removal.parity(model, removal_edits(model, removed), inputs)


def check(model: nn.Module, inputs: Any, expected: dict[str, tuple[int, str]]) -> list[Channels]:
    """The sets are as expected, the model is untouched, and removing any removable ones equals silencing them."""
    before = fingerprint(model)
    found = removable_channels(model, inputs)
    assert fingerprint(model) == before
    assert table(found) == expected
    removable = [channels for channels in found if not channels.obstacle]
    for seed in range(4 if removable else 0):
        generator = torch.Generator().manual_seed(seed)
        choice = {channels: some(channels, generator) for channels in removable}
        assert parity(model, inputs, choice) <= 1e-5
    for channels in removable:
        assert parity(model, inputs, {channels: some(channels, generator)}) <= 1e-5
    return found


def some(channels: Channels, generator: torch.Generator) -> list[int]:
    """As many channels from each group, at random, but not all."""
    groups = torch.as_tensor(channels.groups)
    per_group = channels.count // len(groups.unique())
    count = int(torch.randint(1, per_group, (), generator=generator))
    order = [(groups == b).nonzero().flatten() for b in groups.unique()]
    return sorted(
        int(i) for members in order for i in members[torch.randperm(len(members), generator=generator)][:count]
    )
