"""Trials: what fails is found by halving, and two networks are compared in float64 where that is possible."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.structure.trials import Comparison, Verdicts, offenders, with_varied_values

REASON = because(Cause.DIFFERS_AS_TWO)


def test_offenders_are_found_in_few_trials():
    tried = []

    def problem(some, briefly=False):
        tried.append(list(some))
        return REASON if 5 in some else None

    assert offenders(list(range(16)), problem) == {5: REASON}
    assert len(tried) == 9  # all, then two halves in each of four rounds, beside those that are fine
    assert offenders([], problem) == {}


def test_of_what_fails_only_together_the_first_is_fine():
    def problem(some, briefly=False):
        return REASON if {1, 2} <= set(some) else None

    assert offenders([0, 1, 2, 3], problem) == {2: REASON}


def test_trials_of_single_candidates_save_trials_and_decide_nothing_that_they_do_not_know():
    tried = []

    def problem(some, briefly=False):
        tried.append(list(some))
        return REASON if {3, 9, 12} & set(some) else None

    def alone(some):
        assert list(some) == list(range(16))
        return Verdicts(failed={3: REASON}, doubted={4, 9}, unknown={0, 12})

    assert offenders(list(range(16)), problem, alone) == dict.fromkeys((3, 9, 12), REASON)
    assert (
        len(tried) == 8
    )  # all, the likely ones, the unknown three times, one of them beside those before it, the doubted
    assert not any(3 in some for some in tried[1:])


def test_a_candidate_that_looks_fine_alone_is_found_among_the_others_and_only_it_is_left():
    def problem(some, briefly=False):
        return REASON if 5 in some else None

    def alone(some):
        return Verdicts(failed={}, doubted=set(), unknown=set())

    assert offenders(list(range(16)), problem, alone) == {5: REASON}


def test_trials_of_single_candidates_do_not_change_which_of_two_that_fail_together_is_fine():
    def problem(some, briefly=False):
        return REASON if {1, 2} <= set(some) or 3 in some else None

    def alone(some):
        return Verdicts(failed={3: REASON}, doubted=set(), unknown={1})

    assert offenders([0, 1, 2, 3], problem, alone) == {2: REASON, 3: REASON}


def test_equal_networks_are_equal_beyond_float32():
    torch.manual_seed(0)
    first, second = nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False)
    product = nn.Linear(300, 300, bias=False).double()
    with torch.no_grad():
        product.weight.copy_(second.weight.double() @ first.weight.double())
    gap, is_exact = Comparison(lambda _: product, lambda _: nn.Sequential(first, second), torch.randn(3, 300)).gap()
    assert is_exact
    assert gap < 1e-12


def test_a_network_of_fixed_precision_is_compared_in_it():
    class Fixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32, please")
            return super().forward(x)

    torch.manual_seed(0)
    net = Fixed(4, 4)
    gap, is_exact = Comparison(lambda _: net.float(), lambda _: net.float(), torch.randn(2, 4)).gap()
    assert (gap, is_exact) == (0.0, False)


def test_only_constant_inputs_are_varied():
    x = {"ones": torch.ones(2, 3), "image": torch.arange(6.0).view(2, 3), "mask": torch.ones(2, 3, dtype=torch.long)}
    varied = with_varied_values(x)
    assert len(varied["ones"].unique()) == 6
    assert varied["image"] is x["image"]
    assert varied["mask"] is x["mask"]
