"""Stand-ins: a plain layer for any module that computes with one weight, accepted by numbers only."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compression.structure.stand_ins import (
    Found,
    filled,
    may_have_stand_in,
    stand_in_of,
    uses_its_weight,
)
from sparsefw.models import import_torchvision


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight / weight.std(dim=(1, 2, 3), keepdim=True), self.bias)


class SameStandardised(Standardised):
    """With as many zeros as a convolution of stride 2 and size 3 needs for ceil(size / 2) outputs."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = (1 + n % 2 for n in x.shape[-2:])
        return super().forward(functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2)))


class Equalised(nn.Module):
    """A linear layer whose scale is applied in the pass, as in StyleGAN; no class of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.kernel * 0.3, self.offset * 2)


class Transposed(nn.Module):
    """Like GPT-2's Conv1D: a linear layer with a weight of inputs x outputs."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))
        self.bias = nn.Parameter(torch.randn(5)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Product(nn.Linear):
    """A weight that is itself a product: of two matrix products, only the last is that of the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight @ self.weight.T @ self.weight, self.bias)


class GainedTranspose(nn.ConvTranspose2d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv_transpose2d(
            x, self.weight * 2, self.bias, self.stride, self.padding, self.output_padding, self.groups
        )


IMAGE = (2, 4, 9, 10)
ACCEPTED = {
    "standardised": (lambda: Standardised(4, 6, 3, stride=2, padding=1), IMAGE, "Conv2d"),
    "groups and dilation": (lambda: Standardised(4, 6, 3, dilation=2, groups=2, bias=False), IMAGE, "Conv2d"),
    "reflected": (lambda: Standardised(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE, "Conv2d"),
    "same": (lambda: Standardised(4, 6, 3, padding="same"), IMAGE, "Conv2d"),
    "SAME": (lambda: SameStandardised(4, 6, 3, stride=2), IMAGE, "SamePaddedConv2d"),
    "equalised": (Equalised, (2, 3, 6), "Linear"),
    "transposed": (Transposed, (2, 3, 6), "Linear"),
    "without bias": (lambda: Transposed(bias=False), (7, 6), "Linear"),
    "product": (lambda: Product(6, 5), (7, 6), "Linear"),
    "upwards": (
        lambda: GainedTranspose(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        IMAGE,
        "ConvTranspose2d",
    ),
}


@pytest.mark.parametrize("make, shape, kind", ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_it_computes_the_same(make, shape, kind, dtype):
    torch.manual_seed(0)
    module = make().to(dtype).eval()
    x = torch.randn(shape).to(dtype)
    assert may_have_stand_in(module)
    assert not uses_its_weight(module, x)
    found = stand_in_of(module, x)
    assert isinstance(found, Found)
    assert found.form.type == kind
    layer = filled(module, found.form, found.product, found.sample)
    assert type(layer).__name__ == kind
    assert layer.weight.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps
    for inputs in (x, torch.randn(shape).to(dtype)):
        expected = module(inputs)
        assert bool((layer(inputs) - expected).abs().max() <= tolerance * expected.abs().max())


class ByInput(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * x.mean(), self.bias)


class Activated(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self._conv_forward(x, self.weight * 2, self.bias))


class Squared(nn.Linear):
    """Of its inputs: equal to a linear layer on inputs of 0 and 1 only."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x**2, self.weight * 2, self.bias)


class Causal(nn.Conv2d):
    """With zeros above and on the left only, which no class of torch has."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(functional.pad(x, (2, 0, 2, 0)), self.weight * 2, self.bias)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.normalize(x, dim=-1), functional.normalize(self.weight, dim=-1), self.bias)


REFUSED = {
    "weight by input": (lambda: ByInput(4, 6, 3), torch.randn(IMAGE)),
    "activated": (lambda: Activated(4, 6, 3), torch.randn(IMAGE)),
    "squared": (lambda: Squared(6, 5), torch.ones(2, 6)),
    "causal": (lambda: Causal(4, 6, 3), torch.randn(IMAGE)),
    "cosine": (lambda: Cosine(6, 5), torch.randn(2, 6)),
}


@pytest.mark.parametrize("make, x", REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_layer_has_none(make, x):
    assert stand_in_of(make().eval(), x) is None


def test_the_rule_for_images_is_tried_on_sizes_that_the_example_lacks():
    """On images of even size alone, zeros on one side would do."""

    class OneSided(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(functional.pad(x, (0, 1, 0, 1)), self.weight * 2, self.bias, 2)

    assert stand_in_of(OneSided(4, 6, 3, stride=2), torch.randn(2, 4, 8, 8)) is None


def test_layers_of_torch_and_those_with_their_own_weight_need_none():
    assert not may_have_stand_in(nn.Conv2d(3, 4, 3))
    assert not may_have_stand_in(nn.LSTM(3, 4))
    assert not may_have_stand_in(nn.Embedding(3, 4))
    assert not may_have_stand_in(nn.Sequential(Standardised(3, 4, 3)))

    class Padded(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(functional.pad(x, (1, 0)))

    assert uses_its_weight(Padded(4, 6, 3), torch.randn(IMAGE))


def test_hooks_of_the_user_are_not_lost():
    layer = Standardised(4, 6, 3)
    layer.register_forward_hook(lambda *_: None)
    assert not may_have_stand_in(layer)


def test_code_of_a_fixed_precision_is_compared_in_its_own():
    class Single(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.weight.float() * 2, self.bias)

    assert isinstance(stand_in_of(Single(6, 5), torch.randn(2, 6)), Found)


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("name", ["StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_weight_standardisation_of_timm(name, stride):
    import_torchvision()  # which timm would import in a way that not every build survives
    module = getattr(importlib.import_module("timm.layers"), name)(4, 6, 3, stride=stride, bias=True).eval()
    x = torch.randn(IMAGE)
    found = stand_in_of(module, x)
    assert isinstance(found, Found)
    pads = name.endswith("Same") and stride == 2
    assert found.form.type == ("SamePaddedConv2d" if pads else "Conv2d")
    layer = filled(module, found.form, found.product, found.sample)
    for size in (9, 10, 11, 12):
        images = torch.randn(2, 4, size, size + 1)
        assert torch.equal(layer(images), module(images))
