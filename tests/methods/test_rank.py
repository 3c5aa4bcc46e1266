"""Methods on singular values and on directions, against numbers computed by hand, and edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.by_hand import after_epoch, layer, optimizer_of, step
from sparsefw.geometry import Spectrum
from sparsefw.geometry.cuts import soft_cut
from sparsefw.methods import FR, NUC, TRP, Scion, SVDEnergy, method_from
from sparsefw.methods.base import OptimizerSettings
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.models import build
from sparsefw.train import load_recipe

# Orthogonal rows: singular values are their lengths, 3 and 6; a matrix of 3 x 4 of rank two.
ROWS = [[1.0, 2.0, 2.0, 0.0], [4.0, 2.0, -4.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
UNIT = [[1 / 3, 2 / 3, 2 / 3, 0.0], [2 / 3, 1 / 3, -2 / 3, 0.0], [0.0, 0.0, 0.0, 0.0]]
both_solvers = pytest.mark.parametrize("svd", [True, False], ids=["svd", "iterations"])


def close(actual, expected, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=tolerance, atol=tolerance)


def rows(*lengths: float) -> torch.Tensor:
    """The unit rows with other lengths."""
    return torch.tensor(UNIT) * torch.tensor([*lengths, 0.0])[:, None]


class TestNUC:
    @both_solvers
    def test_all_singular_values_fall_by_the_same_amount(self, svd):
        """lr * strength = 0.5 of each that is not 0."""
        close(step(NUC(strength=1.0, svd=svd), ROWS), rows(2.5, 5.5))

    @both_solvers
    def test_equal_singular_values(self, svd):
        close(step(NUC(strength=1.0, svd=svd), [[3.0, 4.0], [-4.0, 3.0]]), [[2.7, 3.6], [-3.6, 2.7]])

    @both_solvers
    def test_zero_stays_zero_and_rank_one_keeps_its_direction(self, svd):
        close(step(NUC(strength=1.0, svd=svd), [[0.0, 0.0], [0.0, 0.0]]), [[0.0, 0.0], [0.0, 0.0]])
        moved = step(NUC(strength=1.0, svd=svd), [[3.0, 4.0], [6.0, 8.0]])
        along = (moved * torch.tensor([[3.0, 4.0], [6.0, 8.0]])).sum() / (5 * math.sqrt(5))
        assert float(along) == pytest.approx(5 * math.sqrt(5) - 0.5, rel=1e-5)

    @both_solvers
    def test_only_trained_convolutions_are_changed(self, svd):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 2, 3), nn.Conv2d(2, 2, 1), nn.Linear(2, 2))
        net[2].requires_grad_(False)
        for p in net.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        NUC(strength=2.0, svd=svd).adjust(net)
        norms = torch.linalg.matrix_norm(net[0].weight.flatten(1), "nuc")
        norms = norms + torch.linalg.matrix_norm(net[1].weight.transpose(0, 1).flatten(1), "nuc")
        expected = torch.autograd.grad(2 * norms, [net[0].weight, net[1].weight])
        torch.testing.assert_close([net[0].weight.grad, net[1].weight.grad], list(expected), rtol=1e-3, atol=1e-4)
        assert net[2].weight.grad is None
        assert not net[3].weight.grad.any()


class TestSVDEnergy:
    @both_solvers
    def test_singular_values_are_cut_by_lr_times_strength(self, svd):
        close(step(SVDEnergy(strength=2.0, svd=svd), ROWS), rows(2.0, 5.0))

    @both_solvers
    def test_those_below_are_gone(self, svd):
        close(step(SVDEnergy(strength=8.0, svd=svd), ROWS), rows(0.0, 2.0), 1e-4)

    @both_solvers
    def test_rank_one_and_zero(self, svd):
        close(step(SVDEnergy(strength=2.0, svd=svd), [[3.0, 4.0], [6.0, 8.0]]), step_of_rank_one(1.0))
        close(step(SVDEnergy(strength=2.0, svd=svd), [[0.0, 0.0], [0.0, 0.0]]), [[0.0, 0.0], [0.0, 0.0]])

    def test_once_an_epoch(self):
        method = SVDEnergy(strength=2.0, every="epoch")
        close(step(method, ROWS), ROWS)
        close(after_epoch(method, ROWS, 3, 3), rows(2.0, 5.0))


def step_of_rank_one(less: float) -> torch.Tensor:
    """[[3, 4], [6, 8]] has the one singular value 5 sqrt(5), and gets shorter by `less`."""
    matrix = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    return matrix * (1 - less / (5 * math.sqrt(5)))


class TestFR:
    def test_every_filter_is_pulled_towards_the_sum_of_directions(self):
        """Unit filters (1, 0) and (0, 1), of norms 2 and 3: forces (0, 2) and (3, 0)."""
        close(step(FR(strength=0.1), [[2.0, 0.0], [0.0, 3.0]], lr=1.0), [[2.0, 0.2], [0.3, 3.0]])

    def test_the_constant_force(self):
        """Their directions differ by sqrt(2): forces (0, sqrt 2) and (3 / sqrt 2, 0)."""
        filters = step(FR(strength=0.1, force="l1"), [[2.0, 0.0], [0.0, 3.0]], lr=1.0)
        close(filters, [[2.0, 0.1 * math.sqrt(2)], [0.3 / math.sqrt(2), 3.0]])

    @pytest.mark.parametrize("force", ["l1", "l2"])
    @pytest.mark.parametrize(
        "filters", [[[3.0, 4.0], [0.0, 0.0]], [[1.0, 2.0]] * 3, [[0.0, 0.0]] * 2], ids=["one zero", "equal", "zero"]
    )
    def test_zero_filters_feel_nothing_and_equal_ones_stay(self, filters, force):
        close(step(FR(strength=0.1, force=force), filters), filters)

    @pytest.mark.parametrize("force", ["l1", "l2"])
    def test_forces_are_tangent(self, force):
        torch.manual_seed(0)
        weights = torch.randn(2, 5, 7, dtype=torch.float64)
        inner = (FR(force=force).forces(weights) * weights).sum(-1)
        torch.testing.assert_close(inner, torch.zeros_like(inner))

    @pytest.mark.parametrize("spread", [0.0, 1e-4])
    def test_the_constant_force_between_filters_that_are_nearly_equal(self, spread):
        """The state that the force leads to: float32 agrees with float64, and equal filters exert no force."""
        torch.manual_seed(0)
        weights = (torch.randn(1, 64) + spread * torch.randn(32, 64)).float()
        exact = FR(force="l1").forces(weights.double()[None])
        forces = FR(force="l1").forces(weights[None])
        assert float((forces - exact).norm()) <= 1e-2 * float(exact.norm()) + 1e-5 * float(weights.norm())
        assert spread or float(forces.norm()) <= 1e-5 * float(weights.norm())

    def test_the_constant_force_by_a_loop_over_pairs(self):
        torch.manual_seed(0)
        weights = torch.randn(5, 7, dtype=torch.float64)
        unit = weights / weights.norm(dim=-1, keepdim=True)
        for i in range(5):
            pull = sum((unit[j] - unit[i]) / (unit[j] - unit[i]).norm() for j in range(5) if j != i)
            pull = weights[i].norm() * (pull - unit[i] * (unit[i] @ pull))
            torch.testing.assert_close(FR(force="l1").forces(weights[None])[0, i], pull)


class TestTRP:
    @pytest.mark.parametrize(("threshold", "kept"), [(0.19, (3.0, 6.0)), (0.201, (0.0, 6.0))])
    def test_after_an_epoch_small_singular_values_are_gone(self, threshold, kept):
        """The smaller singular value has a fifth of the energy, 9 of 9 + 36."""
        close(after_epoch(TRP(threshold=threshold), ROWS, 1, 2), rows(*kept))

    def test_a_fraction_that_is_just_allowed_goes(self):
        """9 of 9 + 1 stay at a threshold of exactly 1 / 10."""
        close(after_epoch(TRP(threshold=0.1), [[3.0, 0.0], [0.0, 1.0]], 1, 2), [[3.0, 0.0], [0.0, 0.0]])

    def test_after_the_last_epoch_nothing_is_cut(self):
        close(after_epoch(TRP(threshold=0.5), ROWS, 2, 2), ROWS)

    def test_without_a_threshold_all_stays(self):
        close(after_epoch(TRP(threshold=0.0, strength=0.0), ROWS, 1, 2), ROWS, 1e-6)

    def test_its_gradient_is_that_of_the_leading_part(self):
        """With a threshold of a quarter only the longer row gets shorter: by lr * strength = 0.5."""
        close(step(TRP(strength=1.0, threshold=0.25, svd=True), ROWS), rows(3.0, 5.5))

    def test_its_fast_form_lowers_all_singular_values(self):
        close(step(TRP(strength=1.0, threshold=0.25), ROWS), rows(2.5, 5.5))

    @both_solvers
    def test_zero_stays_zero(self, svd):
        close(step(TRP(strength=1.0, svd=svd), [[0.0, 0.0], [0.0, 0.0]]), [[0.0, 0.0], [0.0, 0.0]])


class TestScion:
    def test_the_vertex_has_all_singular_values_equal(self):
        """Orthonormal rows as gradient directions: v = -radius * them, and the way there is lr / diameter of the whole."""
        net = layer([[0.1, 0.0, 0.0], [0.0, 0.2, 0.0]])
        optimizer = optimizer_of(Scion(w=1.0), net, 0.5)
        (region,) = [group["region"] for group in optimizer.param_groups]
        eta = 0.5 / region.diameter((2, 3, 1, 1))
        net[0].weight.grad = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 0.01]])[:, :, None, None]
        optimizer.step()
        r = region.radius
        expected = [[(1 - eta) * 0.1 - eta * r, 0.0, 0.0], [0.0, (1 - eta) * 0.2, -eta * r]]
        close(net[0].weight.detach().flatten(1), expected, 1e-4)

    def test_its_regions_are_spectral_balls_of_the_given_diameter(self):
        """Two filters of one input: an initial norm of sqrt(2 / 3); the diameter is 2 w times that."""
        net = layer([[0.1, 0.0, 0.0], [0.0, 0.2, 0.0]])
        (group,) = optimizer_of(Scion(w=3.0), net, 0.5).param_groups
        assert group["region"].name == "SpectralBall"
        assert group["region"].diameter((2, 3, 1, 1)) == pytest.approx(6 * math.sqrt(2 / 3))


@pytest.mark.parametrize(
    "method", [NUC(strength=0), SVDEnergy(strength=0), FR(strength=0), TRP(strength=0, threshold=0)], ids=str
)
def test_without_strength_nothing_is_touched(method):
    close(step(method, ROWS), ROWS, 1e-6)
    close(after_epoch(method, ROWS, 1, 2), ROWS, 1e-6)


def test_soft_cuts_by_iterations_resolve_values_near_the_threshold():
    """0.5005 and 0.4995 with a threshold of 0.5: 0.0005 of the one stays, nothing of the other."""
    torch.manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(n, 4, dtype=torch.float64))[0] for n in (6, 9))
    matrix = (U * torch.tensor([1.0, 0.5005, 0.4995, 0.1])) @ V.mT
    cut = soft_cut(Spectrum(), matrix[None], 0.5)[0]
    expected = (U * torch.tensor([0.5, 0.0005, 0.0, 0.0])) @ V.mT
    torch.testing.assert_close(cut, expected, rtol=0, atol=2e-5)


def test_weights_in_half_precision_are_cut_by_an_svd_in_full():
    net = layer([[3.0, 0.0], [0.0, 1.0]]).to(torch.bfloat16)
    TRP(svd=True, threshold=0.2).after_epoch(net, None, 1, 3)
    assert torch.equal(net[0].weight.detach().flatten(1).float(), torch.tensor([[3.0, 0.0], [0.0, 0.0]]))


PAPER = ("cifar10-resnet18", "cifar100-wide-resnet", "imagenet-resnet50", "cityscapes-pspnet")


@pytest.mark.parametrize("name", PAPER)
def test_on_the_papers_networks_rank_means_all_convolutions(name):
    """And nothing else: its methods were compared on these weights."""
    recipe = load_recipe(f"{name}-rank-paper")
    narrow = {"width": 8} if "pspnet" in name else {}
    model = build(recipe.model.name, **recipe.model.arguments, **narrow)
    settings = OptimizerSettings(0.1, 0.9, 5e-4, False, "sgd", 0.1, steps=100)
    convolutions = {f"{n}.weight" for n, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    names = {id(p): n for n, p in model.named_parameters()}
    assert {names[id(p)] for stack in weight_stacks(model, "rank") for p in stack.parameters} == convolutions
    for method in (recipe.method, Scion()):
        groups = method.optimizer(model, settings, None).param_groups
        assert {n for g in groups if g["region"] is not None for n in g["param_names"]} == convolutions


def test_with_everything_constrained_linear_layers_get_l2_balls():
    """As in the code of the paper's authors, where rank means convolutions, and the head is one of the other tensors."""
    model = build("resnet_digits")
    settings = OptimizerSettings(0.1, 0.9, 5e-4, False, "sgd", 0.1, steps=100)
    method = method_from(
        {"name": "sparsefw", "kind": "rank", "k": 0.2, "w": 20, "rescale": "gradient", "everything": True}
    )
    groups = method.optimizer(model, settings, None).param_groups
    views = {n: type(g["region"].view) for g in groups for n in g["param_names"]}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            assert views[f"{name}.weight"] is Spectrum
        elif isinstance(module, nn.Linear):
            assert views[f"{name}.weight"] is not Spectrum


def test_methods_on_singular_values_act_on_linear_layers_too():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    acted_on = {id(p) for stack in weight_stacks(net, "rank") for p in stack.parameters}
    assert acted_on == {id(net[0].weight), id(net[2].weight)}
