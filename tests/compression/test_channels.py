"""Small networks, and by hand: which sides of which layers belong together, how many channels they have, and what is fixed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import SILENCE, check, image
from compression.zoo import OUTPUT, Net, awake, table
from sparsefw.compression.structure.removal import removable_channels


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
        (nn.LayerNorm([8, 6, 6]), "norm (LayerNorm) averages over them"),
        (nn.LocalResponseNorm(2), "norm (LocalResponseNorm) averages over them"),
        (nn.RMSNorm([8, 6, 6]), "norm (RMSNorm) averages over them"),
    ],
    ids=["layer", "local response", "root mean square"],
)
def test_norms_over_channels_fix_them_and_are_named(norm, reason):
    model = Net(lambda m, x: m.b(m.norm(m.a(x))), a=nn.Conv2d(3, 8, 1), norm=copy.deepcopy(norm), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, reason), "b.out": (4, OUTPUT)})


def test_group_norms_lose_equally_many_of_each_group():
    model = Net(lambda m, x: m.b(m.norm(m.a(x))), a=nn.Conv2d(3, 8, 1), norm=nn.GroupNorm(4, 8), b=nn.Conv2d(8, 4, 1))
    found = check(model, image(), {"a.out b.in norm.each": (8, ""), "b.out": (4, OUTPUT)})
    assert found[0].groups == (0, 0, 1, 1, 2, 2, 3, 3)


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
    check(
        model,
        image(),
        {
            "a.out b.in": (
                3,
                "they meet a tensor of shape (2, 3, 6, 6) that code makes, whose size does not change with them",
            ),
            "b.out": (4, OUTPUT),
        },
    )


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
    assert found[0].groups == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found[1].groups == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)


def test_groups_that_share_channels_unequally_fix_them():
    model = Net(
        lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)),
        a=nn.Conv2d(3, 4, 1),
        b=nn.Conv2d(3, 4, 1),
        c=nn.Conv2d(8, 4, 1, groups=2),
    )
    reason = "they are spread unequally over the groups of c"
    check(model, image(), {"a.out c.in": (4, reason), "b.out c.in": (4, reason), "c.out": (4, OUTPUT)})


def test_groups_of_two_layers_are_groups_of_both():
    model = Net(
        lambda m, x: m.b(m.a(x)) + m.c(m.a(x)),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1, groups=2),
        c=nn.Conv2d(8, 4, 1, groups=4),
    )
    found = check(model, image(), {"a.out b.in c.in": (8, ""), "b.out c.out": (4, OUTPUT)})
    assert found[0].groups == (0, 0, 1, 1, 2, 2, 3, 3)


def test_a_part_beside_grouped_ones_is_divided_like_them():
    """Of three parts two are convolved in groups, as in Res2NeXt."""

    def run(m: Net, x: Tensor) -> Tensor:
        first, second, third = m.a(x).chunk(3, 1)
        return m.d(torch.cat([m.b(first), m.c(second), third], 1))

    parts = dict(b=nn.Conv2d(4, 4, 1, groups=2), c=nn.Conv2d(4, 4, 1, groups=2))
    found = removable_channels(Net(run, a=nn.Conv2d(3, 12, 1), **parts, d=nn.Conv2d(12, 2, 1)), image())
    assert found[0].groups == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert found[0].obstacle is None


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
        {
            "a.out b.in": (8, ""),
            "b.out c.in": (4, "the only channel of its group, which would be left empty"),
            "c.out": (2, OUTPUT),
        },
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
    assert found[1].groups == ((0,) * 12 if groups == 1 else (0,) * 6 + (1,) * 6)


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
            "depthwise.each down.out head.in norm.each scale.each stem.out up.in": (6, ""),
            "down.in up.out": (24, ""),
            "head.out": (4, OUTPUT),
        },
    )


def _share_of_channels(x: Tensor) -> float:
    """A number that depends on how many channels there are, which no tensor tells."""
    return 8 / x.shape[1]


@pytest.mark.parametrize("hide", ["last layer", "scale", "norm"])
def test_zeros_do_not_hide_what_is_wrong(hide):
    """An activation by rank mixes channels, also where a last layer, a scale or a norm of zeros from the start covers that up."""
    model = Net(
        lambda m, x: m.head(x + m.norm(m.scale * m.b(m.a(x) * _share_of_channels(m.a(x))))),
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
