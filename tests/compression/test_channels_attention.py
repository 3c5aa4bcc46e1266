"""Heads of attention, and the same channels as another implementation finds."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compression.following import check, image, parity
from compression.zoo import OUTPUT, awake, table
from sparsefw.compression import compress
from sparsefw.compression.structure.attention import PlainAttention, plain_attention
from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.compression.structure.removal import removable_channels
from sparsefw.compression.structure.trace import find_channels
from sparsefw.models import import_torchvision


class OwnBlock(nn.Module):
    """Attention called in a way of its own, its output added to what came in."""

    def __init__(self, form: str, **arguments: Any) -> None:
        super().__init__()
        self.form = form
        self.inputs = nn.Linear(5, 8)
        self.attention = nn.MultiheadAttention(8, 4, **{"batch_first": True, **arguments})
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.inputs(x)
        if self.form == "by name":
            y, _ = self.attention(query=x, key=x, value=x, need_weights=False)
        elif self.form == "other widths":
            y, _ = self.attention(x, x[..., :6], x[..., :4])
        elif self.form == "masked":
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y, _ = self.attention(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)
        else:
            y, weights = self.attention(x, x, x)
            if self.form == "weights returned":
                return self.head(x + y), weights
        return self.head(x + y)


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("plain", {}),
        ("plain", {"batch_first": False}),
        ("plain", {"bias": False}),
        ("by name", {}),
        ("masked", {}),
        ("other widths", {"kdim": 6, "vdim": 4}),
    ],
    ids=["plain", "sequence first", "no bias", "by name", "masked", "other widths"],
)
def test_heads_of_attention_can_go_and_so_can_the_stream(form, arguments):
    model = plain_attention(awake(OwnBlock(form, **arguments)).eval())
    assert isinstance(model.attention, PlainAttention)
    reason = "code takes them apart by position, and relies on how many there are" if form == "other widths" else ""
    parts = "attention.key.outx2 attention.proj.inx2 attention.query.outx2 attention.value.outx2"
    rows = table(removable_channels(model, torch.randn(2, 6, 5)))
    assert rows.pop(parts) == (4, "")
    assert rows.pop("head.out") == (3, OUTPUT)
    assert {fixed for _, fixed in rows.values()} == {reason}
    found = removable_channels(model, torch.randn(2, 6, 5))
    heads = next(channels for channels in found if channels.is_heads)
    for gone in ([0], [3], [0, 2], [1, 2, 3]):
        assert parity(model, torch.randn(2, 6, 5), {heads: gone}) <= 1e-5


def test_weights_of_attention_that_are_returned_keep_the_heads():
    model = plain_attention(awake(OwnBlock("weights returned")).eval())
    rows = table(removable_channels(model, torch.randn(2, 6, 5)))
    parts = "attention.key.outx2 attention.proj.inx2 attention.query.outx2 attention.value.outx2"
    assert rows[parts] == (4, "mean mixes the channels")


def test_unknown_attention_is_left():
    model = awake(OwnBlock("plain", add_zero_attn=True)).eval()
    assert plain_attention(copy.deepcopy(model)).attention.add_zero_attn
    rows = table(removable_channels(model, torch.randn(2, 6, 5)))
    assert rows["head.inx8 inputs.outx8"] == (1, "attention (MultiheadAttention) reads them")
    assert rows["head.out"] == (3, OUTPUT)


MASKS = {
    "no mask": {},
    "causal": {"mask": nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True},
    "padding": {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # which the dense model makes
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_transformers(mask, batch_first, norm_first):
    """Heads and the hidden layer go; what the layers are put together from sees the masks as before."""
    layer = nn.TransformerEncoderLayer(8, 4, 12, batch_first=batch_first, norm_first=norm_first)
    model = awake(nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first)).eval()
    x = torch.randn(2, 6, 8) if batch_first else torch.randn(6, 2, 8)
    inputs = {"src": x, **MASKS[mask]}
    with evaluating(model):
        expected = call_on_copy(model, inputs)
    plain = plain_attention(copy.deepcopy(model))
    with evaluating(plain):
        got = call_on_copy(plain, inputs)
    if mask == "padding":  # what torch returns at hidden places is its own business
        cut = lambda y: torch.cat([y[0], y[1, :4]] if batch_first else [y[:, 0], y[:4, 1]])  # noqa: E731
        expected, got = cut(expected), cut(got)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    found = removable_channels(plain, inputs)
    assert [(c.is_heads, c.writers[-1].layer, c.count) for c in found if not c.obstacle] == [
        (is_heads, f"layers.{i}.{part}", count)
        for i in range(2)
        for is_heads, part, count in ((True, "self_attn.value", 4), (False, "linear1", 12))
    ]
    small = compress(model, filters=0.5, rank=0.5, example=inputs)
    assert small.costs.parameters < 0.6 * small.dense.parameters
    with evaluating(small.model):
        assert call_on_copy(small.model, inputs).shape == x.shape


def test_decoder_layers_of_torch():
    model = awake(nn.TransformerDecoderLayer(8, 4, 12, batch_first=True)).eval()
    inputs = {"tgt": torch.randn(2, 5, 8), "memory": torch.randn(2, 7, 8)}
    found = removable_channels(plain_attention(copy.deepcopy(model)), inputs)
    assert [(c.writers[-1].layer, c.count) for c in found if not c.obstacle] == [
        ("self_attn.value", 4), ("multihead_attn.value", 4), ("linear1", 12),
    ]  # fmt: skip
    small = compress(model, filters=0.5, example=inputs)
    assert small.costs.parameters < 0.6 * small.dense.parameters


def vision(name: str) -> Any:
    """torchvision, or a package that needs it, imported so that both work beside a torch without its operators."""
    try:
        import_torchvision()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


def test_attention_of_timm():
    attention = vision("timm.models.vision_transformer").Attention
    model = nn.Sequential(
        nn.Linear(5, 8),
        attention(8, num_heads=4, qkv_bias=True, qk_norm=True, norm_layer=nn.LayerNorm),
        nn.Linear(8, 3),
    )
    check(
        awake(model).eval(),
        torch.randn(2, 6, 5),
        {
            "0.out 1.qkv.in": (8, ""),
            "1.proj.inx2 1.qkv.outx6": (4, ""),
            "1.proj.out 2.in": (8, ""),
            "2.out": (3, OUTPUT),
        },
    )


def test_a_norm_over_all_heads_loses_its_channels_with_them():
    """It divides by the number that there were."""
    attention = vision("timm.models.vision_transformer").Attention
    model = nn.Sequential(nn.Linear(5, 8), attention(8, num_heads=4, scale_norm=True, norm_layer=nn.LayerNorm))
    rows = table(removable_channels(awake(model).eval(), torch.randn(2, 6, 5)))
    assert rows["1.norm.eachx2 1.proj.inx2 1.qkv.outx6"] == (4, "")


def torch_pruning_groups(model: nn.Module, inputs: Tensor) -> set[frozenset[tuple[str, str]]]:
    """What torch-pruning's dependency graph would prune together, with our names of the sides."""
    pruning = pytest.importorskip("torch_pruning")
    graph = pruning.DependencyGraph().build_dependency(model, example_inputs=inputs)
    names = {module: name for name, module in model.named_modules()}
    groups = set()
    for group in graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear]):
        sides = set()
        for dependency, _ in group:
            module = dependency.target.module
            if module not in names or not isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
                continue  # additions, views and the like
            each = isinstance(module, nn.BatchNorm2d) or getattr(module, "groups", 1) > 1
            out = graph.is_out_channel_pruning_fn(dependency.handler)
            sides.add((names[module], "each" if each else "out" if out else "in"))
        groups.add(frozenset(sides))
    return groups


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "mobilenet_v2", "densenet121"])
@pytest.mark.filterwarnings("ignore")  # of torch-pruning's own
def test_the_same_channels_belong_together_as_in_torch_pruning(name):
    pytest.importorskip("torch_pruning")
    model, x = vision("torchvision").models.get_model(name, weights=None, num_classes=10).eval(), image(3, 64)
    found = find_channels(model, x)
    ours = {frozenset((s.layer, s.side) for s in channels.sites if s.side != Side.COUNT) for channels in found}
    theirs = torch_pruning_groups(model, x)
    assert len(theirs) > 8
    assert ours == theirs
    last = {frozenset((site.layer, site.side) for site in c.sites) for c in found if c.obstacle}
    assert last == {frozenset({([n for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1], "out")})}
