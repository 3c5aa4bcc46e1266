"""Trial runs: a network run on an example, and how far another network, which follows its decisions, is from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparsefw.compression.structure.channels import Channels, Side, tensors_of
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating, hooks
from sparsefw.compression.structure.trace import find_channels


@dataclass(frozen=True)
class TrialRun:
    """What a network computed on an example.

    outputs     of the network
    decisions   that it made
    watched     the outputs of some layers in all of their calls
    """

    outputs: Any
    decisions: Decisions
    watched: Sequence[Tensor] = ()

    def gap(self, leader: TrialRun, whole_numbers: bool = False) -> float:
        """Return how far this run is from the one that it followed: in outputs, watched layers and what decisions look at."""
        wanted, found = self.decisions.grounds
        return relative_gap(
            [tensors_of(leader.outputs), leader.watched, wanted],
            [tensors_of(self.outputs), self.watched, found],
            whole_numbers,
        )


def trial_run(
    model: nn.Module, example: Any, leader: TrialRun | None = None, watched: Collection[str] | None = ()
) -> TrialRun:
    """Run a network in evaluation mode.

    Args:
        model: The network.
        example: Its input.
        leader: A run whose decisions it follows; None: it decides by itself.
        watched: The names of layers whose outputs are noted; None: the network makes no decisions.
    """
    noted: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        noted.append(output.detach().clone())

    def watch(name: str, module: nn.Module) -> Sequence[Any]:
        return (module.register_forward_hook(note),) if name in (watched or ()) else ()

    decisions = Decisions(None if leader is None else leader.decisions)
    with evaluating(model):
        if watched is None:
            return TrialRun(call_on_copy(model, example), decisions)
        with hooks(model, watch), decisions:
            outputs = call_on_copy(model, example)
    return TrialRun(outputs, decisions, noted)


def layers_to_watch(model: nn.Module, example: Any, sets: Sequence[Channels] | None = None) -> frozenset[str] | None:
    """Return the layers that no other layer reads, of a network that makes decisions; None of one that makes none.

    Of what they compute, decisions may leave nothing to compare: where no candidate is good enough, no box is put out.

    Args:
        model: The network.
        example: Its input.
        sets: The sets of channels of the network; None: they are found.
    """
    if not trial_run(model, example).decisions.made:
        return None
    found = find_channels(model, example) if sets is None else sets
    written = {site.layer for channels in found for site in channels.sites if site.side == Side.OUT}
    read = {site.layer for channels in found if channels.readers for site in channels.sites if site.side == Side.OUT}
    return frozenset(written - read)
