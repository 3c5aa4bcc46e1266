"""Small networks, and by hand: which sides of which layers belong together, how many channels they have, and what is fixed."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compress.zoo import OUTPUT, Net, awake, table
from sparsefw.compress import compress
from sparsefw.compress.attention import PlainAttention, plain_attention
from sparsefw.compress.channels import Channels, find_channels
from sparsefw.compress.filters import parity, removable_channels, removal
from sparsefw.compress.layers import call, evaluating
from sparsefw.models import build, import_torchvision

SILENCE = "removing them is not the same as silencing them"


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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


def check(model: nn.Module, inputs: Any, expected: dict[str, tuple[int, str]]) -> list[Channels]:
    """The sets are as expected, the model is untouched, and removing any removable ones equals silencing them."""
    before = fingerprint(model)
    found = removable_channels(model, inputs)
    assert fingerprint(model) == before
    assert table(found) == expected
    removable = [channels for channels in found if not channels.fixed]
    for seed in range(4 if removable else 0):
        generator = torch.Generator().manual_seed(seed)
        choice = {channels: some(channels, generator) for channels in removable}
        assert parity(model, inputs, choice) <= 1e-5
    for channels in removable:
        assert parity(model, inputs, {channels: some(channels, generator)}) <= 1e-5
    return found


def some(channels: Channels, generator: torch.Generator) -> list[int]:
    """As many channels from each block, at random, but not all."""
    blocks = torch.as_tensor(channels.blocks)
    per_block = channels.count // len(blocks.unique())
    count = int(torch.randint(1, per_block, (), generator=generator))
    order = [(blocks == b).nonzero().flatten() for b in blocks.unique()]
    return sorted(
        int(i) for members in order for i in members[torch.randperm(len(members), generator=generator)][:count]
    )


def test_convolution_norm_and_activation():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1)
    )
    check(
        awake(model).eval(),
        image(),
        {"0.out 1.each 3.in": (8, ""), "3.out 5.in": (6, ""), "5.out": (4, OUTPUT)},
    )


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(8),
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.BatchNorm2d(8, affine=False, track_running_stats=False),
        nn.SyncBatchNorm(8),
        nn.InstanceNorm2d(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [True, False])
def test_norms_of_each_channel_for_itself(norm, bias):
    model = nn.Sequential(nn.Conv2d(3, 8, 1, bias=bias), copy.deepcopy(norm), nn.ReLU(), nn.Conv2d(8, 4, 1))
    check(awake(model).eval(), image(), {"0.out 1.each 3.in": (8, ""), "3.out": (4, OUTPUT)})


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.GroupNorm(4, 8), "norm (GroupNorm) averages over them"),
        (nn.LayerNorm([8, 6, 6]), "norm (LayerNorm) averages over them"),
        (nn.LocalResponseNorm(2), "norm (LocalResponseNorm) averages over them"),
        (nn.RMSNorm([8, 6, 6]), "norm (RMSNorm) averages over them"),
    ],
    ids=["group", "layer", "local response", "root mean square"],
)
def test_norms_over_channels_fix_them_and_are_named(norm, reason):
    model = Net(lambda m, x: m.b(m.norm(m.a(x))), a=nn.Conv2d(3, 8, 1), norm=copy.deepcopy(norm), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, reason), "b.out": (4, OUTPUT)})


def test_a_norm_before_the_first_layer_is_not_in_the_way():
    model = awake(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))).eval()
    check(model, image(), {"1.out 2.in": (8, ""), "2.out": (4, OUTPUT)})


def test_a_sum_couples_all_that_is_added():
    model = Net(
        lambda m, x: m.head((m.b(m.a(x).relu()) + m.a(x) + m.side(x)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 8, 3, padding=1),
        side=nn.Conv2d(3, 8, 1),
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"a.out b.in b.out head.in side.out": (8, ""), "head.out": (4, OUTPUT)})


def test_a_sum_with_the_input_fixes():
    model = Net(lambda m, x: m.b(m.a(x) + x), a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 4, 1))
    check(model, image(), {"a.out b.in": (3, "meets a tensor of fixed size"), "b.out": (4, OUTPUT)})


def test_branches_side_by_side_stay_apart():
    model = Net(
        lambda m, x: m.head(m.norm(torch.cat([m.a(x), m.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 5, 1),
        b=nn.Conv2d(3, 4, 1),
        norm=nn.BatchNorm2d(9),
        head=nn.Conv2d(9, 2, 1),
    )
    found = check(
        model,
        image(),
        {"a.out head.in norm.each": (5, ""), "b.out head.in norm.each": (4, ""), "head.out": (2, OUTPUT)},
    )
    assert found[1].readers[0].slots == ((5,), (6,), (7,), (8,))


def test_flattened_maps_have_a_slot_for_every_place():
    model = awake(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 6), nn.ReLU(), nn.Linear(6, 2))
    ).eval()
    found = check(model, image(), {"0.out 2.inx16": (4, ""), "2.out 4.in": (6, ""), "4.out": (2, OUTPUT)})
    assert found[0].readers[0].slots[1] == tuple(range(16, 32))


def test_groups_keep_equally_many_on_both_sides():
    model = Net(
        lambda m, x: m.c(m.b(m.a(x).relu()).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 12, 3, groups=4),
        c=nn.Conv2d(12, 4, 1),
    )
    found = check(model, image(), {"a.out b.in": (8, ""), "b.out c.in": (12, ""), "c.out": (4, OUTPUT)})
    assert found[0].blocks == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found[1].blocks == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)


def test_groups_that_share_channels_unequally_fix_them():
    model = Net(
        lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)),
        a=nn.Conv2d(3, 4, 1),
        b=nn.Conv2d(3, 4, 1),
        c=nn.Conv2d(8, 4, 1, groups=2),
    )
    reason = "they fill the groups of c unequally"
    check(model, image(), {"a.out c.in": (4, reason), "b.out c.in": (4, reason), "c.out": (4, OUTPUT)})


def test_groups_of_two_layers_that_differ_fix_the_channels():
    model = Net(
        lambda m, x: m.b(m.a(x)) + m.c(m.a(x)),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1, groups=2),
        c=nn.Conv2d(8, 4, 1, groups=4),
    )
    found = removable_channels(model, image())
    assert found[0].fixed == "c groups them otherwise than another layer"


def test_groups_of_a_single_channel_have_none_to_spare():
    model = Net(
        lambda m, x: m.c(m.b(m.a(x)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1, groups=4),
        c=nn.Conv2d(4, 2, 1),
    )
    check(
        model,
        image(),
        {"a.out b.in": (8, ""), "b.out c.in": (4, "the only one of its group"), "c.out": (2, OUTPUT)},
    )


def test_depthwise():
    model = awake(
        nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        )
    ).eval()
    check(model, image(), {"0.out 2.each 3.each 4.in": (8, ""), "4.out": (4, OUTPUT)})


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_depthwise_with_two_outputs_per_channel(kind):
    model = awake(
        nn.Sequential(nn.Conv2d(3, 6, 1), kind(6, 12, 3, groups=6), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1))
    ).eval()
    found = check(model, image(), {"0.out 1.each 2.eachx2 4.inx2": (6, ""), "4.out": (4, OUTPUT)})
    assert found[0].readers[0].slots[2] == (4, 5)


def test_depthwise_on_the_input_has_nothing_to_remove():
    model = awake(nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1))).eval()
    check(model, image(), {"1.out 2.in": (8, ""), "2.out": (4, OUTPUT)})


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(groups):
    model = awake(
        nn.Sequential(
            nn.Conv2d(3, 8, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 12, 3, stride=2, groups=groups),
            nn.BatchNorm2d(12),
            nn.ConvTranspose2d(12, 4, 2, groups=groups),
        )
    ).eval()
    found = check(model, image(), {"0.out 2.in": (8, ""), "2.out 3.each 4.in": (12, ""), "4.out": (4, OUTPUT)})
    assert found[1].blocks == ((0,) * 12 if groups == 1 else (0,) * 6 + (1,) * 6)


@pytest.mark.parametrize(
    ("kinds", "shape"),
    [
        ((nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d, nn.ConvTranspose1d), (2, 3, 9)),
        ((nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, nn.ConvTranspose3d), (2, 3, 5, 5, 5)),
    ],
    ids=["1d", "3d"],
)
def test_other_dimensions(kinds, shape):
    conv, norm, pool, transposed = kinds
    model = awake(
        nn.Sequential(
            conv(3, 6, 3, padding=1),
            norm(6),
            pool(2),
            conv(6, 6, 1, groups=2),
            transposed(6, 4, 2),
            nn.Tanh(),
            conv(4, 2, 1),
        )
    ).eval()
    check(
        model,
        torch.randn(shape),
        {"0.out 1.each 3.in": (6, ""), "3.out 4.in": (6, ""), "4.out 6.in": (4, ""), "6.out": (2, OUTPUT)},
    )


def test_a_single_image_without_a_batch():
    model = awake(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))).eval()
    check(model, torch.randn(3, 6, 6), {"0.out 3.in": (8, ""), "3.out": (4, OUTPUT)})


def test_squeeze_and_excite():
    """The gate has a channel for every channel; its middle layer has channels of its own."""

    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.b(x * m.up(m.down(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid())

    model = Net(run, a=nn.Conv2d(3, 8, 1), down=nn.Conv2d(8, 5, 1), up=nn.Conv2d(5, 8, 1), b=nn.Conv2d(8, 4, 1))
    check(
        model,
        image(),
        {"a.out b.in down.in up.out": (8, ""), "down.out up.in": (5, ""), "b.out": (4, OUTPUT)},
    )


@pytest.mark.parametrize(("slopes", "sites"), [(8, "0.out 1.each 2.in"), (1, "0.out 2.in")])
def test_slopes_of_prelu(slopes, sites):
    model = awake(nn.Sequential(nn.Conv2d(3, 8, 1), nn.PReLU(slopes), nn.Conv2d(8, 4, 1))).eval()
    check(model, image(), {sites: (8, ""), "2.out": (4, OUTPUT)})


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1)])
@pytest.mark.parametrize(
    "apply",
    [lambda x, p: x * p, lambda x, p: x + p, lambda x, p: x * p.exp(), lambda x, p: torch.lerp(x, p * x, 0.3)],
    ids=["scale", "offset", "exponent", "mixture"],
)
def test_bare_parameters_per_channel(shape, apply):
    model = Net(
        lambda m, x: m.b(apply(m.a(x), m.p)),
        a=nn.Conv2d(3, 8, 1),
        p=nn.Parameter(torch.randn(shape)),
        b=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"a.out b.in p.each": (8, ""), "b.out": (4, OUTPUT)})


def test_a_scale_on_a_residual_branch():
    """ConvNeXt's: channels last, a scale that begins near 0, added to what came in; a norm over the channels in between."""

    def run(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        y = m.norm(m.depthwise(x).permute(0, 2, 3, 1))
        y = (m.scale * m.down(F.gelu(m.up(y)))).permute(0, 3, 1, 2)
        return m.head((x + y).mean((2, 3)))

    model = Net(
        run,
        stem=nn.Conv2d(3, 6, 1),
        depthwise=nn.Conv2d(6, 6, 3, padding=1, groups=6),
        norm=nn.LayerNorm(6),
        up=nn.Linear(6, 24),
        down=nn.Linear(24, 6),
        scale=nn.Parameter(1e-6 * torch.ones(6)),
        head=nn.Linear(6, 4),
    )
    check(
        model,
        image(),
        {
            "depthwise.each down.out head.in scale.each stem.out up.in": (6, "norm (LayerNorm) averages over them"),
            "down.in up.out": (24, ""),
            "head.out": (4, OUTPUT),
        },
    )


@pytest.mark.parametrize("hide", ["last layer", "scale", "norm"])
def test_zeros_do_not_hide_what_is_wrong(hide):
    """sigmoid(0) is not 0, also where a last layer, a scale or a norm of zeros, fresh from initialisation, covers that up."""
    model = Net(
        lambda m, x: m.head(x + m.norm(m.scale * m.b(m.a(x).sigmoid()))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 3, 1),
        scale=nn.Parameter(torch.ones(3, 1, 1)),
        norm=nn.BatchNorm2d(3),
        head=nn.Conv2d(3, 4, 1),
    )
    with torch.no_grad():
        for parameter in {"last layer": model.head, "norm": model.norm}.get(hide, model).parameters(recurse=False):
            parameter.fill_(1e-9 if hide == "scale" else 0)
    found = removable_channels(model, image())
    assert table(found)["a.out b.in"] == (8, SILENCE)


def test_a_module_called_twice_has_one_set_of_channels():
    model = Net(
        lambda m, x: m.head(m.block(m.block(m.stem(x)).relu()).relu()),
        stem=nn.Conv2d(3, 8, 1),
        block=nn.Conv2d(8, 8, 3, padding=1),
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"block.in block.out head.in stem.out": (8, ""), "head.out": (4, OUTPUT)})


def test_a_head_over_several_maps_couples_them():
    model = Net(
        lambda m, x: (m.head(m.a(x)), m.head(m.b(x))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 8, 1),
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"a.out b.out head.in": (8, ""), "head.out": (4, OUTPUT)})


def test_a_module_under_two_names_is_one_module():
    conv = nn.Conv2d(8, 8, 1)
    model = Net(
        lambda m, x: m.head(m.two(m.one(m.stem(x)))),
        stem=nn.Conv2d(3, 8, 1),
        one=conv,
        two=conv,
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"head.in one.in one.out stem.out": (8, ""), "head.out": (4, OUTPUT)})


def test_tied_weights_stay():
    model = Net(
        lambda m, x: m.head(m.two(m.one(m.stem(x)).relu())),
        stem=nn.Conv2d(3, 8, 1),
        one=nn.Conv2d(8, 8, 1),
        two=nn.Conv2d(8, 8, 1),
        head=nn.Conv2d(8, 4, 1),
    )
    model.two.weight = model.one.weight
    check(
        model,
        image(),
        {
            "one.in stem.out": (8, "one shares its weight with two"),
            "one.out two.in": (8, "one shares its weight with two"),
            "head.in two.out": (8, "two shares its weight with one"),
            "head.out": (4, OUTPUT),
        },
    )


class Gained(nn.Conv2d):
    """A convolution with a factor per filter, as networks without norms have."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.gain, self.bias)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 1)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 1)),
        lambda: Gained(3, 8, 1),
    ],
    ids=["weight norm", "spectral norm", "gain"],
)
def test_computed_weights_stay(make):
    model = awake(nn.Sequential(make(), nn.ReLU(), nn.Conv2d(8, 4, 1))).eval()
    reason = "0 computes its weight from other parameters"
    check(model, image(), {"0.out 2.in": (8, reason), "2.out": (4, OUTPUT)})


def test_weights_used_directly_stay():
    model = Net(
        lambda m, x: m.b(F.conv2d(m.a(x), m.direct.weight)),
        a=nn.Conv2d(3, 8, 1),
        direct=nn.Conv2d(8, 6, 1, bias=False),
        b=nn.Conv2d(6, 4, 1),
    )
    check(
        model,
        image(),
        {
            "a.out": (8, "the operation convolution is not followed"),
            "b.out": (4, OUTPUT),
            "direct.out": (6, "never called as a layer: unused, or its weight is used directly"),
        },
    )


def test_embeddings_and_recurrent_layers_keep_their_width():
    model = Net(
        lambda m, x: m.head(m.hidden(m.rnn(m.words(x))[0]).relu()),
        words=nn.Embedding(10, 6),
        rnn=nn.GRU(6, 5, batch_first=True),
        hidden=nn.Linear(5, 8),
        head=nn.Linear(8, 2),
    )
    check(
        model,
        torch.randint(10, (2, 4)),
        {"hidden.inx5": (1, "rnn (GRU) writes them"), "head.in hidden.out": (8, ""), "head.out": (2, OUTPUT)},
    )


def test_several_inputs_by_position_and_by_name():
    parts = dict(a=nn.Linear(3, 6), b=nn.Linear(4, 6), head=nn.Linear(6, 2))
    model = Net(lambda m, x, *, y: {"logits": m.head(m.a(input=x) + m.b(y))}, **parts)
    expected = {"a.out b.out head.in": (6, ""), "head.out": (2, OUTPUT)}
    check(model, {"x": torch.randn(2, 3), "y": torch.randn(2, 4)}, expected)
    by_position = Net(lambda m, x, y: (m.head(m.a(x) + m.b(y)), None), **parts)
    check(by_position, (torch.randn(2, 3), torch.randn(2, 4)), expected)


def test_layers_that_only_training_reaches_belong_too():
    """An auxiliary head reads what the next stage reads: forgotten, the small network could not be trained."""

    def run(m: Net, x: Tensor) -> Any:
        x = m.a(x)
        return (m.b(x), m.aux(m.norm(x).relu())) if m.training else m.b(x)

    model = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1), norm=nn.BatchNorm2d(8), aux=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out aux.in b.in norm.each": (8, ""), "b.out": (4, OUTPUT), "aux.out": (4, OUTPUT)})
    small = compress(model, filters=0.5, example=image()).model.train()
    assert [t.shape for t in small(image())] == [(2, 4, 6, 6)] * 2


def test_layers_that_nothing_reaches_say_so():
    """Also where training wants more than the example has."""

    def run(m: Net, x: Tensor, target: Tensor | None = None) -> Tensor:
        if m.training:
            return m.aux(m.a(x)) - target
        return m.b(m.a(x))

    model = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1), aux=nn.Conv2d(8, 4, 1))
    reason = "never called as a layer: unused, or its weight is used directly"
    check(model, image(), {"a.out b.in": (8, ""), "b.out": (4, OUTPUT), "aux.out": (4, reason)})


def test_sizes_in_code_that_only_training_reaches_are_found():
    model = Net(
        lambda m, x: m.aux(m.a(x).reshape(2, 8, 36).mean(2)) if m.training else m.b(m.a(x)),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1),
        aux=nn.Linear(8, 4),
    )
    rows = table(removable_channels(model, image()))
    assert rows["a.out aux.in b.in"] == (8, "the model does not run with fewer of them (RuntimeError)")


def test_a_model_that_insists_on_its_precision():
    """float64, in which comparisons are made, would stop at the second layer."""
    model = Net(lambda m, x: m.b(m.a(x).float().relu()), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, ""), "b.out": (4, OUTPUT)})


def test_small_leaks_are_found():
    """A silent channel that becomes 1e-4 is not silent."""
    model = Net(lambda m, x: m.b(m.a(x) + 1e-4), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, SILENCE), "b.out": (4, OUTPUT)})


def test_sets_that_can_go_only_one_at_a_time_stay():
    def run(m: Net, x: Tensor) -> Tensor:
        a, b = m.a(x), m.b(x)
        if a.shape[1] < 8 and b.shape[1] < 8:
            raise RuntimeError("one of them has to be whole")
        return m.c(a) + m.d(b)

    parts = {name: nn.Conv2d(*sizes, 1) for name, sizes in dict(a=(3, 8), b=(3, 8), c=(8, 4), d=(8, 4)).items()}
    reason = "the model does not run with fewer of them (RuntimeError)"
    check(
        Net(run, **parts),
        image(),
        {"a.out c.in": (8, reason), "b.out d.in": (8, reason), "c.out d.out": (4, OUTPUT)},
    )


def test_following_leaves_the_random_numbers_alone():
    model = Net(
        lambda m, x: m.b(F.dropout(m.a(x), 0.5, m.training)) if not m.training else m.c(F.dropout(m.a(x))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1),
        c=nn.Conv2d(8, 4, 1),
    )
    x = image()
    before = torch.random.get_rng_state()
    removable_channels(model, x)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_modes_of_every_module_are_kept():
    """A model in training with some norms frozen in evaluation."""
    model = build("resnet_digits", width=8).train()
    model.bn1.eval()
    model.layer2.eval()
    before = {name: m.training for name, m in model.named_modules()}
    found = find_channels(model, torch.randn(2, 1, 8, 8))
    assert {name: m.training for name, m in model.named_modules()} == before
    for edit in removal(model, {channels: [0] for channels in found if not channels.fixed}):
        edit.apply(model)
    assert {name: m.training for name, m in model.named_modules()} == before


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
def test_heads_of_attention_can_go_and_the_stream_stays(form, arguments):
    model = plain_attention(awake(OwnBlock(form, **arguments)).eval())
    assert isinstance(model.attention, PlainAttention)
    reason = "taken apart by position" if form == "other widths" else "attention (attention) reads them"
    rows = table(removable_channels(model, torch.randn(2, 6, 5)))
    assert rows.pop("attention.heads") == (4, "")
    assert rows.pop("head.out") == (3, OUTPUT)
    assert {fixed for _, fixed in rows.values()} == {reason}
    found = removable_channels(model, torch.randn(2, 6, 5))
    heads = next(channels for channels in found if channels.name == "attention")
    for gone in ([0], [3], [0, 2], [1, 2, 3]):
        assert parity(model, torch.randn(2, 6, 5), {heads: gone}) <= 1e-5


def test_weights_of_attention_that_are_returned_keep_the_heads():
    model = plain_attention(awake(OwnBlock("weights returned")).eval())
    rows = table(removable_channels(model, torch.randn(2, 6, 5)))
    assert rows["attention.heads"] == (4, SILENCE)


def test_attention_that_is_not_understood_is_left():
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
        expected = call(model, inputs)
    plain = plain_attention(copy.deepcopy(model))
    with evaluating(plain):
        got = call(plain, inputs)
    if mask == "padding":  # what torch returns at hidden places is its own business
        cut = lambda y: torch.cat([y[0], y[1, :4]] if batch_first else [y[:, 0], y[:4, 1]])  # noqa: E731
        expected, got = cut(expected), cut(got)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    found = removable_channels(plain, inputs)
    assert [(c.name, c.count) for c in found if not c.fixed] == [
        (f"layers.{i}.{part}", count) for i in range(2) for part, count in (("self_attn", 4), ("linear1", 12))
    ]
    small = compress(model, filters=0.5, rank=0.5, example=inputs)
    assert small.costs.parameters < 0.6 * small.dense.parameters
    with evaluating(small.model):
        assert call(small.model, inputs).shape == x.shape


def test_decoder_layers_of_torch():
    model = awake(nn.TransformerDecoderLayer(8, 4, 12, batch_first=True)).eval()
    inputs = {"tgt": torch.randn(2, 5, 8), "memory": torch.randn(2, 7, 8)}
    found = removable_channels(plain_attention(copy.deepcopy(model)), inputs)
    assert [(c.name, c.count) for c in found if not c.fixed] == [
        ("self_attn", 4), ("multihead_attn", 4), ("linear1", 12),
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
            "0.out": (8, "1 (attention) reads them"),
            "1.heads": (4, ""),
            "2.inx8": (1, "1 (attention) writes them"),
            "2.out": (3, OUTPUT),
        },
    )


def test_heads_whose_number_is_elsewhere_too_are_left():
    """A norm over what all heads give, whose width removing heads would not change."""
    attention = vision("timm.models.vision_transformer").Attention
    model = nn.Sequential(nn.Linear(5, 8), attention(8, num_heads=4, scale_norm=True, norm_layer=nn.LayerNorm))
    rows = table(removable_channels(awake(model).eval(), torch.randn(2, 6, 5)))
    assert rows["1.heads"] == (4, "the model does not run with fewer of them (RuntimeError)")


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
    ours = {frozenset((site.layer, site.side) for site in channels.sites) for channels in found}
    theirs = torch_pruning_groups(model, x)
    assert len(theirs) > 8
    assert ours == theirs
    last = {frozenset((site.layer, site.side) for site in c.sites) for c in found if c.fixed}
    assert last == {frozenset({([n for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1], "out")})}
