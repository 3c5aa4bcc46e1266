"""Sizes: a network made smaller in place for the duration of a block, and the sizes that a training draws.

    minimise  E_r [ L(C_r(theta)) ]

C_r sets the share r of the units to 0, those with the smallest scores, which equals removing them. Half of every batch sees the
whole network, the other half a size that is drawn for the step:

    sizes = Sizes(model, "filters", example=x[:2])
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        with sizes.mixed(step):
            loss(model(x), y).backward()
        optimizer.step()

Single weights need a pass for each size instead: `smaller`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from sparsefw.compression.allocate import ALLOCATIONS
from sparsefw.compression.amounts import KindAmounts, amounts_of
from sparsefw.compression.check import check_model
from sparsefw.compression.in_place.attention import PlainView, plain_view
from sparsefw.compression.in_place.restriction import InPlaceCut, restricted, unchanged_buffers
from sparsefw.compression.in_place.side_by_side import SideBySide
from sparsefw.compression.in_place.slices import OnePassError
from sparsefw.compression.kinds import StageRequest, stage_for
from sparsefw.compression.recovery.batches import as_arguments, first_items
from sparsefw.compression.recovery.batchnorm import recalibrate_
from sparsefw.compression.recovery.calibration import Calibration, device_of
from sparsefw.compression.score import NEEDS_DATA, ROW_SCORES
from sparsefw.compression.settings import REMOVED, Settings
from sparsefw.compression.structure.attention import plain_attention
from sparsefw.compression.structure.copies import copied
from sparsefw.compression.structure.layers import unwrapped, with_wrappers
from sparsefw.kinds import Kind, kind_of
from sparsefw.randomness import generator
from sparsefw.scalars import is_int, is_number

# From a number in [0, 1) to the kept share in (low, high]: which function of the width is uniform.
DISTRIBUTIONS: dict[str, Callable[[float, float, float], float]] = {
    "width": lambda u, low, high: high - u * (high - low),
    "parameters": lambda u, low, high: math.sqrt(high**2 - u * (high**2 - low**2)),
    "logarithm": lambda u, low, high: high * (low / high) ** u,
}
CHECKED_EVERY = 64  # choices: to compare all parameters in each would take the host longer than to draw the sizes


class Sizes:
    """The sizes of one network: draws them, and makes the network smaller in place.

    needs_passes    why the network needs a pass for each size; None if one pass has room for several

    Args:
        model: The network, which stays the same object; its device must not change afterwards.
        kind: The units that go: "filters", "neurons", "heads", "weights", or "rank".
        example: An input of the network, to follow channels: a tensor, a tuple of positional or a dict of keyword arguments.
        between: The least and the largest share that is removed; None: 0 and 0.95, of weights 0.995.
        distribution: What is uniform: the kept "width" (the default), the kept "parameters", or the "logarithm" of the width
            (the default for weights), which draws more small networks.
        form: "removed": channels with everything that belongs to them; "masked": every layer's own filters, as in the paper.
        score: By which channels are ranked: "l1", "l2" or "bn"; None: that of the kind.
        include, exclude: Names of layers, with * and ?.
        seed: Of the draws.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: str | Kind = "filters",
        *,
        example: Any,
        between: tuple[float, float] | None = None,
        distribution: str | None = None,
        form: str = REMOVED,
        score: str | None = None,
        include: str | Sequence[str] = "*",
        exclude: str | Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        kind = kind_of(kind)
        check_range(between, distribution)
        if not is_int(seed) or seed < 0:
            raise ValueError(f"seed={seed!r}: must be a whole number of at least 0")
        self._model = unwrapped(model)
        example = as_arguments(self._model, example)
        settings = Settings(example=example, form=form, score=score, include=include, exclude=exclude)
        self._between = (0.0, kind.most_drawn) if between is None else between
        self._distribution = distribution or kind.drawn
        self._seed = seed
        view = plain_view(self._model)
        self._cut = _cut(self._model, view, kind, settings)
        self._signature = _signature(self._model)
        self._choices = 0
        self._numbers = self._cut.numbers(0.0).to(device_of(self._model)).unsqueeze(0)
        self._side_by_side: SideBySide | None = None
        self.needs_passes: str | None = None
        try:
            self._side_by_side = SideBySide(self._model, view, self._cut, example)
        except OnePassError as error:
            self.needs_passes = str(error)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return what changes from block to block, the directions of rank: a training that resumes to the bit needs it."""
        return {"followed": list(self._followed)}

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Restore what state_dict() returned."""
        shapes, saved = ([tensor.shape for tensor in tensors] for tensors in (self._followed, state["followed"]))
        if shapes != saved:
            raise ValueError("the saved state is of other sizes: was the model, the kind, or what is included changed?")
        for mine, theirs in zip(self._followed, state["followed"], strict=True):
            mine.copy_(theirs)

    @property
    def _followed(self) -> Sequence[Tensor]:
        return () if self._side_by_side is None else self._side_by_side.followed

    def draw(self, step: int) -> float:
        """Return the share to remove in a step: a function of the seed and the step, the same in all processes."""
        return self.draws(step, 1)[0]

    def draws(self, step: int, count: int) -> list[float]:
        """Return several shares to remove in a step, one from each of so many equal parts of the distribution."""
        if not is_int(step) or step < 0:
            raise ValueError(f"step={step!r}: must be a whole number of at least 0")
        least, largest = self._between
        u = float(generator("sizes", self._seed, step).random())
        of = DISTRIBUTIONS[self._distribution]
        return [1 - of((i + u) / count, 1 - largest, 1 - least) for i in range(count)]

    def choose(self, *ratios: float) -> None:
        """Set the shares that the next block removes."""
        for ratio in ratios:
            if not is_number(ratio) or not 0 <= ratio < 1:
                raise ValueError(f"the share to remove must be in [0, 1), got {ratio!r}")
        if self._choices % CHECKED_EVERY == 0 and _signature(self._model) != self._signature:
            raise ValueError(
                "the model has other parameters, or another device, than when Sizes was made: make it again"
            )
        self._choices += 1
        numbers = torch.stack([self._cut.numbers(ratio) for ratio in ratios])
        if numbers.shape != self._numbers.shape:
            self._numbers = torch.empty_like(numbers, device=self._numbers.device)
        if self._numbers.is_cuda:  # the host goes on; torch keeps pinned memory until it was read
            numbers = numbers.pin_memory()
        self._numbers.copy_(numbers, non_blocking=True)

    @contextmanager
    def smaller(self, ratio: float | None = None, *, chosen: int = 0) -> Iterator[nn.Module]:
        """Make the network smaller for the duration of a block: for the forward and the backward pass, not the optimizer's step.

        Gradients of what is gone are 0. Afterwards weights and buffers are as they were.

        Args:
            ratio: The share to remove; None: that of choose().
            chosen: Which of the shares of choose().
        """
        if ratio is not None:
            self.choose(ratio)
        _require_nothing_waits(self._model)
        with _alone(self._model, "one size"), restricted(self._model, self._cut.restriction(self._numbers[chosen])):
            yield self._model

    @contextmanager
    def mixed(self, step: int, *, share: float = 0.5, draws: int = 1) -> Iterator[nn.Module]:
        """Let the first images of every batch in the block see smaller networks, and the others the whole one, all in one pass.

        Gradients of what is gone are 0, batch norms take the statistics of the images of each network by themselves, and running
        statistics are those of the whole network. Weights stay as they are.

        Args:
            step: The sizes are drawn for it.
            share: Of the images that see smaller networks.
            draws: How many smaller networks, each for the same number of images.
        """
        if not is_number(share) or not 0 < share < 1:
            raise ValueError(f"share={share!r}: must be above 0 and below 1")
        if not is_int(draws) or draws < 1:
            raise ValueError(f"draws={draws!r}: must be a whole number of at least 1")
        self.choose(*self.draws(step, draws))
        with self.side_by_side([share * (i + 1) / draws for i in range(draws)]):
            yield self._model

    @contextmanager
    def side_by_side(self, ends: Sequence[float]) -> Iterator[nn.Module]:
        """Give the first slices of every batch of the block the chosen sizes, and the last one the whole network.

        Args:
            ends: Where the slices of the smaller networks end, as fractions of the batch, as many as were chosen.
        """
        if self._side_by_side is None:
            raise ValueError(f"this network needs a pass for each size, by sizes.smaller(...): {self.needs_passes}")
        with _alone(self._model, "several sizes"), self._side_by_side.slices(ends, self._numbers):
            yield self._model


_sizes_now: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


@contextmanager
def _alone(model: nn.Module, how_many: str) -> Iterator[None]:
    """Refuse a block within another one of the other kind, which would have no effect on it."""
    around = _sizes_now.get(model)
    if around is not None and (around != how_many or how_many == "several sizes"):
        raise ValueError(
            f"the network already has {around}: this block, which gives it {how_many}, is within another one"
        )
    _sizes_now[model] = how_many
    try:
        yield
    finally:
        if around is None:
            del _sizes_now[model]


def smaller(
    model: nn.Module,
    *,
    example: Any = None,
    calibration: Iterable[Any] | None = None,
    form: str = REMOVED,
    score: str | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    **removed: Unpack[KindAmounts],
) -> AbstractContextManager[nn.Module]:
    """Make a network smaller in place, for the duration of a block: filters=0.7 silences 70 % of them.

        with smaller(model, filters=0.7):
            loss(model(x), y).backward()          # gradients of what is gone are 0

        with smaller(model, filters=0.7, calibration=batches):
            accuracy(model)                       # of a network with batch norms that of compress(..., refit=False)

    (`compress` also matches the means and variances of layers that no batch norm follows; this block does not.)

    Afterwards, also after an exception, weights and buffers are as they were. Which channels belong together is found out in the
    first block, once per network, and takes a second or more.

    Args:
        model: The network.
        example: An input to follow channels; None: the first one of the block.
        calibration: Inputs on which BatchNorm statistics are recomputed for the block; None: they stay.
        form, score, include, exclude: As in compress.
        **removed: How much of which kind to remove.
    """
    amounts = amounts_of(removed, ("example", "calibration", "form", "score", "include", "exclude"))
    if len(amounts) != 1:
        raise ValueError("give how much to remove of one kind, such as filters=0.7")
    settings = Settings(calibration, example, form=form, score=score, include=include, exclude=exclude)
    ((kind, ratio),) = amounts.items()
    return _smaller(with_wrappers(model), kind, ratio, settings)


@contextmanager
def _smaller(wrapped: Sequence[nn.Module], kind: Kind, ratio: float, settings: Settings) -> Iterator[nn.Module]:
    model = wrapped[-1]
    _require_nothing_waits(model)
    data = None if settings.calibration is None else Calibration(settings.calibration, device_of(model))
    if data is not None:
        data.suit(model)
    example = settings.example if data is None or settings.example is not None else data.example
    example = as_arguments(model, example)
    with ExitStack() as restored:

        def cut(first_input: Any) -> None:
            in_place = _known_cut(model, kind, settings, first_input)
            numbers = in_place.numbers(ratio).to(device_of(model))
            restored.enter_context(restricted(model, in_place.restriction(numbers)))

        if example is not None or _key(kind, settings) in _known(model):
            cut(example)
            if data is not None:
                recalibrate_(model, data)
        else:
            restored.enter_context(_before_first_call(wrapped, cut))
        yield model


@contextmanager
def _before_first_call(wrapped: Sequence[nn.Module], act: Callable[[Any], None]) -> Iterator[None]:
    """Call a function with the inputs of the model's first call in the block, before that call.

    Every wrapper is watched: a graph that torch.compile has compiled before would not call hooks of the model inside.
    """
    handles: list[RemovableHandle] = []
    model = wrapped[-1]

    def first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        remove()  # the search for channels calls the model too
        if args and kwargs:
            raise ValueError("the model was called with positional and keyword arguments: give smaller() an example=")
        with torch.autocast(device_of(model).type, enabled=False):
            act(_as_weights(model, first_items(kwargs or args, 2)))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    try:
        handles += [module.register_forward_pre_hook(first, with_kwargs=True) for module in wrapped]
        yield
    finally:
        remove()


def _require_nothing_waits(model: nn.Module) -> None:
    """Refuse a block within one that waits for its first input: that would begin later, and restore the weights of this one."""
    if any(getattr(hook, "__module__", None) == __name__ for hook in model._forward_pre_hooks.values()):
        raise ValueError("the block around this one waits for its first input: give its smaller() an example=")


def _as_weights(model: nn.Module, inputs: Any) -> Any:
    """Return inputs in the precision of the weights: under autocast they may have another one, and the search runs without."""
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]

    def converted(t: Any) -> Any:
        return t.to(dtypes[0]) if isinstance(t, Tensor) and t.is_floating_point() else t

    return tree_map(converted, inputs) if dtypes else inputs


class _Cuts(dict[Hashable, InPlaceCut]):
    """The cuts of a network that were found so far, kept in the network; copies and files of it start with none."""

    signature: Hashable = None

    def __deepcopy__(self, memo: Any) -> _Cuts:
        return _Cuts()

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, ())


def _known(model: nn.Module) -> _Cuts:
    cuts = vars(model).get("_sparsefw_cuts")
    if not isinstance(cuts, _Cuts) or cuts.signature != _signature(model):
        cuts = _Cuts()
        cuts.signature = _signature(model)
        vars(model)["_sparsefw_cuts"] = cuts
    return cuts


def _known_cut(model: nn.Module, kind: Kind, settings: Settings, example: Any) -> InPlaceCut:
    cuts = _known(model)
    key = _key(kind, settings)
    if key not in cuts:
        cuts[key] = _cut(model, plain_view(model), kind, replace(settings, example=example, calibration=None))
    return cuts[key]


def _key(kind: Kind, settings: Settings) -> Hashable:
    return kind, settings.form, settings.score, settings.selection


def _cut(model: nn.Module, view: PlainView, kind: Kind, settings: Settings) -> InPlaceCut:
    if settings.score in NEEDS_DATA:
        raise ValueError(
            f"score={settings.score!r} needs data: in place, channels are ranked by {', '.join(ROW_SCORES)}"
        )
    check_model(model)
    allocation = ALLOCATIONS[kind.allocation]()
    with unchanged_buffers(model):  # some networks change theirs in evaluation mode too
        plain = plain_attention(copied(model)) if view.attentions else model
        stage = stage_for(StageRequest(kind, plain, settings.example, None, settings, allocation))
        stage.require_units(kind)
        return stage.in_place(view.plain)


def _signature(model: nn.Module) -> Hashable:
    """What a cut depends on: the parameters themselves, their shapes and devices."""
    return tuple((id(p), p.shape, p.device) for p in model.parameters())


def check_range(between: Any, distribution: str | None) -> None:
    """Refuse a range of shares that is none, and an unknown distribution; None stands for the defaults of the kind."""
    pair = tuple(between) if isinstance(between, (tuple, list)) else ()
    if between is not None and (len(pair) != 2 or not all(map(is_number, pair)) or not 0 <= pair[0] <= pair[1] < 1):
        raise ValueError(f"between={between!r}: needs the least and the largest share to remove, both in [0, 1)")
    if distribution is not None and distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution={distribution!r}: there are {', '.join(DISTRIBUTIONS)}")
