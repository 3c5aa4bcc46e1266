"""Methods on filters, against numbers computed by hand, and edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.by_hand import after_epoch, filters, layer, optimizer_of, step
from sparsefw.config_base import ConfigError
from sparsefw.methods import ABFP, GLT, SFP, SSL
from sparsefw.train import load_recipe

TALL_AND_SHORT = [[3.0, 0.0, 4.0, 0.0], [0.0, 0.3, 0.0, 0.4]]  # of norms 5 and 0.5


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-6)


class TestSSL:
    def test_each_filter_gets_shorter_by_the_same_length(self):
        """Directions (.6, .8): lr * strength = 0.05 less of each."""
        close(step(SSL(strength=0.1), TALL_AND_SHORT), [[2.97, 0, 3.96, 0], [0, 0.27, 0, 0.36]])

    def test_beside_the_gradient_of_the_loss(self):
        gradient = [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        close(step(SSL(strength=0.1), TALL_AND_SHORT, gradient), [[1.97, 0, 3.96, 0], [0, 0.27, 0, 0.36]])

    def test_a_filter_that_is_zero_stays_zero(self):
        close(step(SSL(strength=0.1), [[3.0, 4.0], [0.0, 0.0]]), [[2.97, 3.96], [0, 0]])


class TestGLT:
    def test_norms_are_cut_by_the_threshold_of_their_size(self):
        """lr strength sqrt(4) = 1: 5 becomes 4, and 0.5 nothing at all."""
        close(step(GLT(strength=1.0), TALL_AND_SHORT), [[2.4, 0, 3.2, 0], [0, 0, 0, 0]])

    def test_it_cuts_by_the_rate_of_the_step_and_not_of_the_start(self):
        net, method = layer(TALL_AND_SHORT), GLT(strength=1.0)
        optimizer = optimizer_of(method, net, 0.5)
        optimizer.param_groups[0]["lr"] = 0.05  # as a schedule does
        method.after_step(net, optimizer)
        close(filters(net), [[2.94, 0, 3.92, 0], [0, 0.24, 0, 0.32]])

    def test_sparse_group_lasso_cuts_entries_first(self):
        """Entries by lr lasso strength = 0.25: (2.75, 3.75) of norm 4.650269; that by lr (1 - lasso) strength 2 = 0.5."""
        close(step(GLT(strength=1.0, lasso=0.5), TALL_AND_SHORT), [[2.454318, 0, 3.346797, 0], [0, 0, 0, 0]])

    def test_lasso_alone(self):
        close(step(GLT(strength=1.0, lasso=1.0), TALL_AND_SHORT), [[2.5, 0, 3.5, 0], [0, 0, 0, 0]])

    def test_once_an_epoch(self):
        method = GLT(strength=1.0, every="epoch")
        close(step(method, TALL_AND_SHORT), TALL_AND_SHORT)
        close(after_epoch(method, TALL_AND_SHORT, 1, 5), [[2.4, 0, 3.2, 0], [0, 0, 0, 0]])


class TestABFP:
    def test_by_hand(self):
        """M = (4, 1): the second is weak, lam = 1 + log 4 = 2.386294 times 1; the strong has -16: t is 0.1491434 of strength."""
        filters = step(ABFP(k=0.5, strength=0.1), [[4.0, 0.0], [0.0, 1.0]], lr=1.0)
        close(filters, [[4 + 2 * 0.01491434 * 4, 0], [0, 1 - 2 * 0.2386294]])

    def test_filters_are_ranked_by_their_sums_and_not_by_their_lengths(self):
        """(2, 2) has the larger sum, (0, 3) the larger length."""
        factors = ABFP(k=0.5, strength=1.0).factors(torch.tensor([[[2.0, 2.0], [0.0, 3.0]]]))
        assert factors[0, 0] < 0 < factors[0, 1]

    def test_factors_of_three_by_hand(self):
        """M = (4, 2, 1), two strong, c = 2: lam = 1 + log 2, 1 and 1 + log 2, and S_P / S_R = lam / (16 lam + 4)."""
        lam = 1 + math.log(2)
        t = lam / (16 * lam + 4)
        factors = ABFP(k=0.6, strength=1.0).factors(torch.tensor([[[4.0], [2.0], [1.0]]]))
        close(factors, [[-t * lam, -t, lam]])

    def test_the_two_terms_cancel(self):
        torch.manual_seed(0)
        weights = torch.randn(3, 7, 5, dtype=torch.float64)
        factors = ABFP(k=0.4, strength=0.3).factors(weights)
        energies = factors * weights.square().sum(-1)
        torch.testing.assert_close(energies.sum(-1), torch.zeros(3, dtype=torch.float64))
        assert ((factors < 0).sum(-1) == 3).all()  # ceil(0.4 * 7) are strong

    def test_fractions_are_exact_despite_rounding(self):
        """0.55 * 20 is 11.000000000000002 in floats: eleven are strong, not twelve."""
        assert int((ABFP(k=0.55, strength=1.0).factors(torch.rand(1, 20, 3)) < 0).sum()) == 11

    def test_a_filter_of_almost_nothing_has_a_bounded_factor(self):
        factors = ABFP(k=0.5, strength=1.0).factors(torch.tensor([[[1.0], [1e-30]]]))
        assert float(factors.max()) == 10.0

    def test_exactly_k_are_strong_where_all_are_equal(self):
        factors = ABFP(k=0.5, strength=1.0).factors(torch.ones(1, 4, 3))
        assert (factors < 0).sum() == 2
        torch.testing.assert_close(factors.abs(), torch.ones(1, 4))

    @pytest.mark.parametrize("rows", [[[0.0, 0.0], [0.0, 0.0]], [[3.0, 4.0], [0.0, 0.0]]], ids=["all zero", "one zero"])
    def test_filters_that_are_zero_stay_and_nothing_is_nan(self, rows):
        close(step(ABFP(k=0.5, strength=0.1), rows), rows)

    def test_where_all_are_strong_nothing_happens(self):
        close(step(ABFP(k=1.0, strength=0.1), TALL_AND_SHORT), TALL_AND_SHORT)


def test_sfp_that_would_never_cut_is_refused():
    with pytest.raises(ConfigError, match=r"train\.epochs=3: SFP .* needs at least 4"):
        load_recipe("digits-resnet-sgd", ["method.name=sfp", "method.start_epoch=3", "train.epochs=3"])


class TestSFP:
    ROWS = [[3.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 4.0], [0.5, 0.0]]  # noqa: RUF012

    def test_after_an_epoch_the_smallest_are_zero(self):
        """k = 0.6 of five stay: floor(5 * 0.4) = 2 go, those of norms 1 and 0.5."""
        expected = [[3, 0], [0, 0], [2, 0], [0, 4], [0, 0]]
        close(after_epoch(SFP(k=0.6), self.ROWS, 1, 3), [[float(v) for v in row] for row in expected])

    def test_neither_steps_nor_epochs_before_the_first_cut(self):
        close(step(SFP(k=0.6), self.ROWS), self.ROWS)
        assert (after_epoch(SFP(k=0.6, start_epoch=2), self.ROWS, 2, 3) != 0).any(-1).all()
        assert (after_epoch(SFP(k=0.6, start_epoch=2), self.ROWS, 3, 3) != 0).any(-1).sum() == 3

    def test_exactly_k_of_equal_filters_stay(self):
        assert (after_epoch(SFP(k=0.5), [[1.0, 1.0]] * 4, 1, 1) != 0).any(-1).sum() == 2

    def test_fractions_are_exact_despite_rounding(self):
        """10 * (1 - 0.9) is 0.9999999999999998 in floats: one filter goes."""
        kept = after_epoch(SFP(k=0.9), [[float(i + 1)] for i in range(10)], 1, 1)
        assert int((kept != 0).sum()) == 9

    def test_by_the_length_and_not_by_the_sum(self):
        """(2, 2) is longer in L1, (0, 3) in L2."""
        close(after_epoch(SFP(k=0.5), [[2.0, 2.0], [0.0, 3.0]], 1, 1), [[0.0, 0.0], [0.0, 3.0]])


@pytest.mark.parametrize("method", [SSL(strength=0), GLT(strength=0, lasso=0.5), ABFP(strength=0), SFP(k=1.0)], ids=str)
def test_without_strength_nothing_is_touched(method):
    close(step(method, TALL_AND_SHORT), TALL_AND_SHORT)
    close(after_epoch(method, TALL_AND_SHORT, 1, 1), TALL_AND_SHORT)


def test_transposed_convolutions_have_their_filters_on_the_second_axis():
    net = nn.Sequential(nn.ConvTranspose2d(2, 3, 1, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[3.0, 0.0, 1.0], [4.0, 2.0, 0.0]])[:, :, None, None])
    optimizer = optimizer_of(SSL(strength=1.0), net, 0.1)
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    SSL(strength=1.0).adjust(net)
    optimizer.step()
    close(net[0].weight.detach()[:, :, 0, 0], [[2.94, 0.0, 0.9], [3.92, 1.9, 0.0]])


def test_thresholds_follow_the_learning_rate():
    net_at = {lr: step(GLT(strength=1.0), TALL_AND_SHORT, lr=lr)[0].norm() for lr in (0.1, 0.2)}
    for lr, norm in net_at.items():
        assert float(norm) == pytest.approx(5 - 2 * lr, rel=1e-5)
