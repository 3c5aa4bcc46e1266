"""The vision transformer: equal to torchvision's from the same weights, learns, and loses heads, neurons and rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compression.zoo import FILTERS, RANK, attempt, awake
from sparsefw import SFW, compress, constrain
from sparsefw.compression.structure.removal import removable_channels
from sparsefw.data import load_digits
from sparsefw.models import ViT, build, import_torchvision

try:
    torchvision = import_torchvision()
except ModuleNotFoundError:
    torchvision = None
needs_torchvision = pytest.mark.skipif(torchvision is None, reason="torchvision is not installed")
DIGITS = dict(in_channels=1, image=8, patch=2, width=48, depth=3, heads=3)


def small(**arguments) -> ViT:
    torch.manual_seed(0)
    return build("vit_tiny", **{"image": 16, "width": 32, "depth": 2, "heads": 4, **arguments})


@needs_torchvision
def test_blocks_compute_what_those_of_torchvision_do():
    """torchvision's encoder puts positions, blocks and the last norm together around nn.MultiheadAttention."""
    ours = awake(small(depth=3)).double().eval()
    theirs = torchvision.models.vision_transformer.Encoder(
        seq_length=16, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=128, dropout=0, attention_dropout=0,
        norm_layer=nn.LayerNorm,
    ).double().eval()  # fmt: skip
    names = {
        "norm1": "ln_1", "norm2": "ln_2", "attention.qkv.weight": "self_attention.in_proj_weight",
        "attention.qkv.bias": "self_attention.in_proj_bias", "attention.proj": "self_attention.out_proj",
        "mlp.2": "mlp.3", "norm.": "ln.", "positions": "pos_embedding",
    }  # fmt: skip
    state = {}
    for name, value in ours.state_dict().items():
        if name.startswith(("head", "patches")):
            continue
        renamed = name
        if name.startswith("blocks."):
            _, i, rest = name.split(".", 2)
            renamed = f"layers.encoder_layer_{i}.{rest}"
        for mine, other in names.items():
            renamed = renamed.replace(mine, other)
        state[renamed] = value
    theirs.load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        tokens = F.unfold(x, 4, stride=4).transpose(1, 2) @ ours.patches.weight.flatten(1).T + ours.patches.bias
        torch.testing.assert_close(ours(x), ours.head(theirs(tokens).mean(dim=1)))


def test_learns_the_digits():
    torch.manual_seed(0)
    model, (images, labels), test = build("vit_tiny", **DIGITS), load_digits("train"), load_digits("test")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        chosen = torch.randint(len(labels), (128,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        assert (model.eval()(test.images).argmax(1) == test.labels).float().mean() > 0.85


def test_every_linear_layer_outside_of_attention_but_the_output_is_of_neurons():
    model = small()
    groups = constrain(model, "neurons", k=0.2, steps=1000, report=None)
    found = {name for block in groups.blocks for name in block.names}
    assert found == {f"blocks.{i}.mlp.{part}.weight" for i in range(2) for part in (0, 2)}
    optimizer = SFW(groups, lr=0.1)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    optimizer.step()


def test_neurons_heads_and_the_width_of_the_stream_are_removable():
    model = awake(small()).eval()
    (stream, *others) = [c for c in removable_channels(model, torch.randn(2, 3, 16, 16)) if not c.obstacle]
    assert stream.count == 32
    assert [site.layer for site in stream.writers] == [
        "patches", *(f"blocks.{i}.{part}" for i in range(2) for part in ("attention.proj", "mlp.2"))
    ]  # fmt: skip
    assert [(c.name, c.count) for c in others] == [
        (f"blocks.{i}.{part}", count) for i in range(2) for part, count in (("attention.qkv", 4), ("mlp.0", 128))
    ]


@pytest.mark.parametrize("kind", [FILTERS, RANK])
def test_compressed_it_is_the_dense_one_with_the_same_parts_silent(kind):
    dense, x = awake(small()).eval(), torch.randn(2, 3, 16, 16)
    trial = attempt(dense, x, **{kind: 0.5})
    assert trial.small is not None, trial.refused
    assert trial.gap <= 1e-5
    model = trial.small.model
    assert trial.small.costs.parameters < 0.75 * trial.small.dense.parameters
    if kind == FILTERS:
        for block in model.blocks:
            assert (block.attention.num_heads, block.attention.head_dim) == (2, 8)
            assert (block.attention.qkv.weight.shape, block.attention.proj.weight.shape) == ((48, 16), (16, 16))
            assert (block.mlp[0].out_features, block.mlp[2].in_features) == (64, 64)


def test_heads_and_rank_together_with_calibration():
    images = torch.randn(64, 3, 16, 16)
    dense = awake(small()).eval()
    with torch.no_grad():
        exact = dense(images)
        gaps = [
            (compress(dense, filters=0.5, rank=0.25, **given).model.eval()(images) - exact).norm()
            for given in (dict(example=images[:2]), dict(calibration=[images]))
        ]
    assert gaps[1] < gaps[0]


def test_other_image_sizes_are_refused():
    model = small()
    for shape in ((3, 15, 15), (3, 32, 32), (1, 16, 16)):
        with pytest.raises(ValueError, match=r"images must have the shape \(3, 16, 16\), got "):
            model(torch.randn(2, *shape))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (dict(image=30), "image must be a multiple of patch, got 30 and 4"),
        (dict(heads=5), "width must be a multiple of heads, got 192 and 5"),
        (dict(mlp_ratio=0), "mlp_ratio must be a whole number of at least 1, got 0"),
        (dict(depth="9"), "depth must be a whole number from 1 to 1,000, got '9'"),
    ],
)
def test_wrong_arguments(arguments, line):
    with pytest.raises(ValueError) as caught:
        build("vit_tiny", **arguments)
    assert str(caught.value) == line


def test_initialisation():
    torch.manual_seed(0)
    model = build("vit_tiny", depth=1)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))
    for weight, deviation in (
        (model.blocks[0].mlp[0].weight, 192**-0.5),
        (model.patches.weight, 48**-0.5),
        (model.positions, 0.5),
        (model.head.weight, 0.02),
    ):
        assert weight.abs().max() <= 2 * deviation
        assert 0.8 < weight.std().item() / deviation < 0.95  # 0.88 without the tails
