"""Passes: what layers of the dense network give and those of its cuts read, batch by batch, while the cuts are being recovered.

WholePasses     a pass per layer and network, up to this layer; recovering all layers takes the square of the depth
ResumedPasses   the same numbers from passes that stop before a layer and go on when its weights are final: every layer runs
                once, beside the recording of its operations
"""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from sparsefw.compression.recovery.batchnorm import RunningStatistics, batch_statistics
from sparsefw.compression.recovery.calibration import NotFiniteError, mean_over_ranks, rank_of, run
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.tape import NoTapeError, OtherPathError, Playback, Tape, record, stopping_at
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.layers import evaluating

KEPT_BYTES = 2 * 2**30  # of all passes that wait before a layer; those beyond start anew
CHECKED = 2  # batches that look alike of which whole passes are compared
MOST_CHECKED = 12  # batches of any look
ENTRIES = 4096  # of every tensor that is compared
LARGEST_SLACK = (
    2**-9
)  # of entries that are the same up to rounding: the same operations round alike, also in half precision
PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)  # what inputs may hold beside tensors


@dataclass(frozen=True)
class Reached:
    """One batch at one layer.

    number   of the batch, over all processes
    output   what the layer of the dense network gives
    inputs   what the layer of each cut reads; computed when asked for
    """

    number: int
    output: Tensor
    inputs: Iterator[Tensor]


class Passes(ABC):
    """Forward passes of a dense network and its cuts over calibration batches."""

    def __init__(
        self, dense: nn.Module, cuts: Sequence[CutNetwork], calibration: Iterable[Any], following: bool = True
    ) -> None:
        self.dense = dense
        self.cuts = cuts
        self.calibration = calibration
        self._following = following  # of the cuts: the decisions of the dense network

    @abstractmethod
    def at(self, name: str) -> Iterator[Reached]:
        """Yield every batch at this layer. Layers before it that are fitted have their final weights."""

    def _whole(self, name: str, inputs: Any) -> tuple[Tensor, Iterator[Tensor]]:
        """Return what passes from the inputs to a layer find there."""
        decided = Decisions()
        with evaluating(self.dense), batch_statistics(self.dense), self._deciding(decided):
            output = until(self.dense, self.dense.get_submodule(name), inputs, output=True)
        return output, (self._input(cut.model, name, inputs, decided) for cut in self.cuts)

    def _input(self, model: nn.Module, name: str, inputs: Any, decided: Decisions) -> Tensor:
        # Rows of inputs and outputs belong together: those of a detector's head to the same boxes.
        with evaluating(model), batch_statistics(model), self._deciding(Decisions(decided)):
            return until(model, model.get_submodule(name), inputs, output=False)

    def _deciding(self, decisions: Decisions) -> contextlib.AbstractContextManager[Any]:
        return decisions if self._following else contextlib.nullcontext()


class WholePasses(Passes):
    """A pass per layer and network, from the inputs to this layer."""

    def at(self, name: str) -> Iterator[Reached]:
        rank, ranks = rank_of()
        for number, inputs in enumerate(self.calibration):
            yield Reached(number * ranks + rank, *self._whole(name, inputs))


@dataclass
class _Waiting:
    """The passes of one batch as far as they have come, the dense network's first; none where they start anew.

    has_tape   whether tapes repeat them: else they are whole
    bytes      of memory that they take
    """

    playbacks: list[Playback] = field(default_factory=list)
    has_tape: bool = True
    bytes: int = 0

    def drop(self) -> None:
        self.playbacks = []
        self.bytes = 0


class ResumedPasses(Passes):
    """Passes that wait before a layer and go on once it is recovered, within a limit of memory.

    The passes of a batch that would exceed it start anew for the next layer, and so do those that no tape repeats. `agree` says
    whether whole passes give the same, once all layers are recovered.
    """

    def __init__(
        self,
        dense: nn.Module,
        cuts: Sequence[CutNetwork],
        order: Sequence[str],
        calibration: Iterable[Any],
        following: bool = True,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        super().__init__(dense, cuts, calibration, following)
        self._order = order
        self._kept_bytes = kept_bytes
        self._networks = [dense, *(cut.model for cut in cuts)]
        self._tapes: dict[tuple[int, str], Tape] = {}  # by network, and by what inputs look like
        self._statistics = [RunningStatistics(model) for model in self._networks]
        self._waiting: list[_Waiting] = []
        self._all_read = False
        self._bytes = 0
        self._checked: dict[int, str] = {}  # the batches of which whole passes are compared -> what they look like
        self._seen: dict[tuple[int, int, str], Tensor] = {}  # batch, network, layer -> entries of the tensor there

    def at(self, name: str) -> Iterator[Reached]:
        rank, ranks = rank_of()
        for number, inputs in self._batches():
            yield Reached(number * ranks + rank, *self._reach(name, number, inputs))
            self._keep(self._waiting[number])

    def _keep(self, waiting: _Waiting) -> None:
        """Let the passes of a batch wait for the next layer, unless that takes too much memory."""
        before = waiting.bytes
        waiting.bytes = sum(playback.bytes for playback in waiting.playbacks)
        if self._bytes - before + waiting.bytes > self._kept_bytes:
            waiting.drop()
        self._bytes += waiting.bytes - before

    def put_back_statistics(self) -> None:
        """Give all batch norms their running statistics: tapes write those of the batch into them."""
        for statistics in self._statistics:
            statistics.put_back()

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Yield the batches; without their inputs, which are not read again, where all passes go on."""
        if self._all_read and all(waiting.playbacks for waiting in self._waiting):
            yield from ((number, None) for number in range(len(self._waiting)))
            return
        for number, inputs in enumerate(self.calibration):
            if number == len(self._waiting):
                self._waiting.append(_Waiting())
            yield number, inputs
        self._all_read = True

    def _reach(self, name: str, number: int, inputs: Any) -> tuple[Tensor, Iterator[Tensor]]:
        waiting = self._waiting[number]
        try:
            if waiting.has_tape:
                output, *read = (self._resumed(i, name, number, inputs) for i in range(len(self._networks)))
                return output, iter(read)
        except (NoTapeError, OtherPathError):
            waiting.has_tape = False
            waiting.playbacks = []
        self.put_back_statistics()
        return self._whole(name, self._read_again(number) if inputs is None else inputs)

    def _resumed(self, network: int, name: str, number: int, inputs: Any) -> Tensor:
        """Return what the pass of a network finds at a layer: the pass that waits, or a new one."""
        playbacks = self._waiting[number].playbacks
        if network == len(playbacks):
            self._choose_to_check(number, _looks(inputs))
            playbacks.append(Playback(self._tape(network, inputs), inputs))
        try:
            found = playbacks[network].until(name)
        except OtherPathError:  # the tape is that of another batch
            inputs = self._read_again(number) if inputs is None else inputs
            playbacks[network] = Playback(self._tape(network, inputs, anew=True), inputs)
            found = playbacks[network].until(name)
        if number in self._checked:
            self._seen[number, network, name] = _some_entries(found)
        return found

    def _choose_to_check(self, number: int, looks: str) -> None:
        """Check the first batches of every look: code may go other ways in each."""
        if list(self._checked.values()).count(looks) < CHECKED and len(self._checked) < MOST_CHECKED:
            self._checked.setdefault(number, looks)

    def _read_again(self, number: int) -> Any:
        return next(itertools.islice(iter(self.calibration), number, None))

    def _tape(self, network: int, inputs: Any, anew: bool = False) -> Tape:
        """Return a tape for inputs that look like these."""
        key = (network, _looks(inputs))
        if anew or key not in self._tapes:
            model = self._networks[network]
            layers = {name: model.get_submodule(name) for name in self._order}
            self.put_back_statistics()
            with evaluating(model), batch_statistics(model):
                self._tapes[key] = record(model, layers, inputs, after=network == 0)
        return self._tapes[key]

    def agree(self) -> bool:
        """Return whether whole passes over some batches find the same at every layer; alike in all processes."""
        differ = False
        batches = iter(self.calibration if self._seen else ())
        for number, inputs in enumerate(itertools.islice(batches, max(self._checked, default=-1) + 1)):
            for network, model in enumerate(self._networks if number in self._checked else ()):
                for name, now in self._entries(network, model, inputs).items():
                    differ |= not _agrees(now, self._seen.get((number, network, name), now))
        return mean_over_ranks(float(differ)) == 0

    def _entries(self, network: int, model: nn.Module, inputs: Any) -> dict[str, Tensor]:
        """Map every layer to entries of its input, or its output in the dense network, in one whole pass."""
        known: dict[str, Tensor] = {}

        def note(name: str, tensor: Any) -> None:
            if isinstance(tensor, Tensor):
                known.setdefault(name, _some_entries(tensor))

        layers = {name: model.get_submodule(name) for name in self._order}
        with evaluating(model), batch_statistics(model), stopping_at(layers, network == 0, note):
            run(model, inputs)
        return known


def _some_entries(tensor: Tensor) -> Tensor:
    """Return entries from all over a tensor."""
    values = tensor.detach().flatten()
    count = min(ENTRIES, len(values))
    return values[torch.arange(count, device=values.device) * len(values) // max(1, count)]


def _agrees(now: Tensor, before: Tensor) -> bool:
    """Return whether entries are the same up to rounding: half of their digits."""
    if (now.shape, now.dtype) != (before.shape, before.dtype):
        return False
    slack = min(math.sqrt(torch.finfo(now.dtype).eps), LARGEST_SLACK) if now.is_floating_point() else 0.0
    size = float(now.double().where(now.isfinite(), 0).square().mean().sqrt()) if len(now) else 0.0
    return torch.allclose(now, before, slack, slack * size, equal_nan=True)


def _looks(inputs: Any) -> str:
    """Return the structure of inputs, the layout of their tensors and all else that is in them.

    NoTapeError where there are sparse tensors or objects: two of them may print alike and hold other numbers.
    """
    leaves, structure = tree_flatten(inputs)
    if not all(leaf.layout == torch.strided if isinstance(leaf, Tensor) else type(leaf) in PLAIN for leaf in leaves):
        raise NoTapeError
    looks = [(t.shape, t.stride(), t.dtype, t.device) if isinstance(t, Tensor) else t for t in leaves]
    return f"{structure} {looks!r}"


def recover_in_passes(
    dense: nn.Module,
    cuts: Sequence[CutNetwork],
    order: Sequence[str],
    calibration: Iterable[Any],
    recover: Callable[[Passes], None],
    following: bool = True,
) -> None:
    """Recover cuts, in place, layer by layer, by passes that are resumed; by whole ones where these do not agree."""
    if not order:
        return
    with fresh_casts():
        _recover(dense, cuts, order, calibration, recover, following)


def _recover(
    dense: nn.Module,
    cuts: Sequence[CutNetwork],
    order: Sequence[str],
    calibration: Iterable[Any],
    recover: Callable[[Passes], None],
    following: bool,
) -> None:
    before = [(p, p.detach().clone()) for cut in cuts for p in cut.model.parameters()]
    resumed = ResumedPasses(dense, cuts, order, calibration, following)
    failure: NotFiniteError | None = None
    try:
        recover(resumed)
    except NotFiniteError as error:
        failure = error
    finally:
        resumed.put_back_statistics()
    if resumed.agree():
        if failure is not None:
            raise failure
        return
    with torch.no_grad():
        for parameter, value in before:
            parameter.copy_(value)
    recover(WholePasses(dense, cuts, calibration, following))


@contextlib.contextmanager
def fresh_casts() -> Iterator[None]:
    """Within the block, autocast casts weights in every pass: the casts that it keeps are of weights before their recovery."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


class _ReachedError(Exception):
    """The forward pass has reached the layer of interest."""


def until(model: nn.Module, layer: nn.Module, inputs: Any, output: bool) -> Tensor:
    """Return the input or output of one layer in a forward pass that stops there."""
    caught: list[Tensor] = []

    def catch(_: str, tensor: Tensor) -> None:
        caught.append(tensor)
        raise _ReachedError

    try:
        with stopping_at({"": layer}, output, catch):
            run(model, inputs)
    except _ReachedError:
        pass
    if not caught:
        raise ValueError(
            "a calibration batch does not reach every layer, and such a layer cannot be refitted: use refit=False"
        )
    return caught[0].detach()
