"""Stand-ins: plain layers for modules whose weight is computed by code of their own, as by weight standardisation.

Nothing is known by name. A pass through the module shows every convolution and matrix product in it, with the weight that
reaches it. A plain layer with that weight stands in for the module if it computes the same: on the input that the module sees,
and on random numbers, of images of several sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefw.compression.structure.copies import private_copy
from sparsefw.compression.structure.factorisation import is_standard
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import AnyConv, evaluating, is_customised, is_layer
from sparsefw.compression.structure.same_padding import SamePaddedConv2d
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED

PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, SamePaddedConv2d)}
EXACT = 1e-9  # of the outputs, in float64
Pairs = list[tuple[Tensor, Tensor]]  # inputs, and what a module computes of them


@dataclass(frozen=True)
class Form:
    """A plain layer without its weight; a linear layer has no geometry."""

    type: str
    shape: tuple[int, ...]
    biased: int
    groups: int = 1
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    padding_mode: str = "zeros"

    def build(self, dtype: torch.dtype, device: torch.device | str) -> Any:
        """Return the layer, with a weight and a bias that are still to be written."""
        kind = PLAIN[self.type]
        placed = {"dtype": dtype, "device": device, "bias": bool(self.biased)}
        if kind is nn.Linear:
            outputs, inputs = self.shape
            return nn.utils.skip_init(nn.Linear, inputs, outputs, **placed)
        geometry: dict[str, Any] = {name: getattr(self, name) for name in ("groups", "stride", "padding", "dilation")}
        geometry["padding_mode"] = self.padding_mode
        first, second, *kernel = self.shape
        inputs, outputs = second * self.groups, first
        if kind in TRANSPOSED:
            inputs, outputs = first, second * self.groups
            geometry["output_padding"] = self.output_padding
        return nn.utils.skip_init(kind, inputs, outputs, tuple(kernel), **geometry, **placed)


@dataclass(frozen=True)
class Found:
    """A stand-in: its form, which of the products in the module has its weight, and the shape of an input that shows it."""

    form: Form
    product: int
    sample: tuple[int, ...]


def may_have_stand_in(module: nn.Module) -> bool:
    """Return whether it is a module without parts, with code of its own and a weight: a layer of torch's needs no stand-in."""
    if next(module.children(), None) is not None or is_customised(module):
        return False
    if not any(p.ndim > 1 for p in module.parameters(recurse=False)):
        return False
    return not is_standard(module) if is_layer(module) else not type(module).__module__.startswith("torch.")


def stand_in_of(module: nn.Module, x: Tensor) -> Found | None:
    """Return the stand-in of a module that is called with x; None if no plain layer computes the same."""
    try:
        return _equal(private_copy(module).double(), x.double(), EXACT)
    except Exception:  # code of a fixed precision, or a device without float64
        dtype = next(module.parameters()).dtype
        return _equal(module, x, math.sqrt(torch.finfo(dtype).eps))


def uses_its_weight(module: nn.Module, x: Tensor) -> bool:
    """Return whether a convolution or linear layer with code of its own computes with its weight as it is."""
    if not is_layer(module):
        return False
    last = [weight.data_ptr() for _, weight in _products(module, x)[0]][-1:]
    return isinstance(module.weight, nn.Parameter) and last == [module.weight.data_ptr()]


def filled(module: nn.Module, form: Form, product: int, sample: Sequence[int]) -> nn.Module:
    """Return the stand-in of a module, with its weight and bias.

    Args:
        module: The module.
        form: That of its stand-in.
        product: Which product in the module has the weight.
        sample: The shape of an input.
    """
    source = next(module.parameters())
    products, at_zero = _products(module, torch.zeros(tuple(sample), dtype=source.dtype, device=source.device))
    layer = _with_values(form, products[product][1], at_zero)
    layer.requires_grad_(any(p.requires_grad for p in module.parameters()))
    return layer.train(module.training)


def _equal(module: nn.Module, x: Tensor, tolerance: float) -> Found | None:
    products, output = _products(module, x)
    small = _small_trials(module, x, products)
    if not small:
        return None
    zeros, at_zero = small[0]
    biased = bool(at_zero.any()) or isinstance(getattr(module, "bias", None), Tensor)
    for number, (form, weight) in enumerate(products):
        for variant in _variants(module, replace(form, biased=int(biased))):
            if _are_equal(variant, weight, at_zero, [*small, (x, output)], tolerance):
                return Found(variant, number, tuple(zeros.shape))
    return None


def _variants(module: nn.Module, form: Form) -> Iterator[Form]:
    """Yield the form, and those with padding that is no zeros, or depends on the size of the image."""
    yield form
    padding = getattr(module, "padding", None)
    if isinstance(module, AnyConv) and module.padding_mode != "zeros" and isinstance(padding, tuple):
        yield replace(form, padding=padding, padding_mode=module.padding_mode)
    if form.type == nn.Conv2d.__name__ and not any(form.padding):
        yield replace(form, type=SamePaddedConv2d.__name__)


def _small_trials(module: nn.Module, x: Tensor, products: Sequence[tuple[Form, Tensor]]) -> Pairs:
    """Return zeros and random inputs, of images small ones of several sizes, with what the module computes; none if it fails."""
    form = products[-1][0] if products else None
    if form is None:
        return []
    spatial = len(form.stride)
    if spatial:
        spans = [(k - 1) * d + 2 for k, d in zip(form.shape[-spatial:], form.dilation, strict=True)]
        least = [min(length, span) for length, span in zip(x.shape[-spatial:], spans, strict=True)]
        # What depends on the size of an image depends on its rest by the stride.
        sizes = [[length + more for length in least] for more in range(max(form.stride) + 1)]
        shapes = [(*x.shape[:-spatial], *size) for size in sizes]
    else:
        shapes = [(1, *x.shape[1:]) if x.ndim > 1 else tuple(x.shape)]
    return _outputs_of(module, x, shapes) or _outputs_of(module, x, [tuple(x.shape)])


def _outputs_of(module: nn.Module, like: Tensor, shapes: Sequence[Sequence[int]]) -> Pairs:
    """Return zeros of the first shape and random inputs of all shapes with what the module computes; none if it refuses one."""
    generator = torch.Generator().manual_seed(0)
    inputs = [like.new_zeros(tuple(shapes[0]))]
    inputs += [torch.randn(tuple(shape), generator=generator).to(like) for shape in shapes]
    try:
        return [(x, _output(module, x)) for x in inputs]
    except Exception:  # of the module's own code, such as one that takes images of one size
        return []


def _are_equal(form: Form, weight: Tensor, at_zero: Tensor, trials: Pairs, tolerance: float) -> bool:
    """Return whether a plain layer takes the inputs and computes the same."""
    try:
        layer = _with_values(form, weight, at_zero)
        return all(relative_gap(expected, _output(layer, x)) <= tolerance for x, expected in trials)
    except (RuntimeError, IndexError, ValueError):
        return False


def _with_values(form: Form, weight: Tensor, at_zero: Tensor) -> Any:
    """Return the layer with this weight; what it gives for zeros is its bias."""
    layer = form.build(weight.dtype, weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight.t() if form.type == nn.Linear.__name__ else weight)
        if form.biased:
            layer.bias.copy_(_per_channel(at_zero, len(form.stride)))
    return layer


def _per_channel(output: Tensor, spatial: int) -> Tensor:
    """Return one value for each channel of an output."""
    at_one_place = output.flatten(-spatial)[..., 0] if spatial else output
    return at_one_place.reshape(-1, at_one_place.shape[-1])[0]


def _output(module: nn.Module, x: Tensor) -> Tensor:
    with evaluating(module):
        output = module(x.clone())
    if not isinstance(output, Tensor):
        raise TypeError("no layer gives anything but one tensor")
    return output


def _products(module: nn.Module, x: Tensor) -> tuple[list[tuple[Form, Tensor]], Tensor]:
    """Return the convolutions and matrix products in a module, and its output."""
    recorder = _Recorder()
    with recorder:
        output = _output(module, x)
    return recorder.products, output


class _Recorder(TorchDispatchMode):
    """A block whose convolutions and matrix products are recorded, each as a plain layer and the weight that reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[Form, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            _, weight, _, stride, padding, dilation, is_transposed, output_padding, groups = args
            kind = (TRANSPOSED if is_transposed else CONVOLUTIONS)[weight.ndim - 3]
            form = Form(
                kind.__name__,
                tuple(weight.shape),
                biased=0,
                groups=int(groups),
                stride=tuple(map(int, stride)),
                padding=tuple(map(int, padding)),
                dilation=tuple(map(int, dilation)),
                output_padding=tuple(map(int, output_padding)),
            )
            self.products.append((form, weight.detach()))
        elif func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            weight = args[-1]  # inputs x outputs
            self.products.append((Form(nn.Linear.__name__, tuple(weight.t().shape), 0), weight.detach()))
        return func(*args, **(kwargs or {}))
