"""A small form of benchmarks/untuned_defaults.py: SFW with nothing set but the kind, beside SGD and AdamW."""

from __future__ import annotations

import statistics

import pytest
import torch

from untuned_defaults import PAIRS, Job, compare, table

QUICK = {"residual CNN, short", "MLP", "U-Net, GroupNorm"}
SMALL = [i for i, pair in enumerate(PAIRS) if pair.data in ("digits", "text") and pair.steps * pair.batch < 10**5]


def test_the_pairs_cover_all_data_sets_kinds_and_optimizers():
    pairs = PAIRS
    assert len(pairs) >= 12
    assert {pair.data for pair in pairs} == {"digits", "fashion", "cifar", "text"}
    assert {pair.kind for pair in pairs} == {"filters", "rank", "weights", "neurons", "2:4"}
    assert {pair.rest for pair in pairs} == {"sgd", "adamw"}
    assert min(pair.steps for pair in pairs) == 150
    assert max(pair.steps for pair in pairs) == 5000
    assert (min(pair.batch for pair in pairs), max(pair.batch for pair in pairs)) == (16, 256)


def differences(indices: list[int]) -> list[float]:
    torch.set_num_threads(1)
    rows = [compare(Job(i, seed=0, settings={})) for i in indices]
    return [row["sfw"] - row["alone"] for row in rows]


def test_the_quickest_pairs_are_as_good_as_without_a_constraint():
    few = [i for i in SMALL if PAIRS[i].name in QUICK]
    assert {PAIRS[i].rest for i in few} == {"sgd", "adamw"}
    changes = differences(few)
    assert min(changes) >= -3
    assert statistics.median(changes) >= -1


@pytest.mark.slow
def test_all_small_pairs_are_as_good_as_without_a_constraint():
    changes = differences(SMALL)
    assert len(changes) >= 7
    assert min(changes) >= -3
    assert statistics.median(changes) >= -1


def test_the_table_has_means_and_the_median_and_worst_difference():
    rows = [
        {"pair": 1, "seed": 0, "alone": 90.0, "sfw": 91.0, "alone_cut": 10.0, "sfw_cut": 80.0},
        {"pair": 1, "seed": 1, "alone": 92.0, "sfw": 92.0, "alone_cut": 20.0, "sfw_cut": 90.0},
        {"pair": 17, "seed": 0, "alone": 100.0, "sfw": 97.5, "alone_cut": None, "sfw_cut": None},
    ]
    text = table(rows, ["ViT on fashion: no folder given"])
    assert "| 440 x 64 | sgd | 91.0 | 91.5 | +0.5 | 2 | 50% of the filters | 15.0 | 85.0 |" in text
    assert "| 600 x 32 | adamw | 100.0 | 97.5 | -2.5 | 1 |  |  |  |" in text
    assert "2 pairs: median -1.0, worst -2.5\nleft out: ViT on fashion: no folder given" in text


def test_held_out_pairs_are_marked_and_summed_up_by_themselves():
    index = next(i for i, pair in enumerate(PAIRS) if pair.held_out)
    figures = {"seed": 0, "alone": 90.0, "alone_cut": None, "sfw_cut": None}
    text = table([{"pair": 0, "sfw": 91.0, **figures}, {"pair": index, "sfw": 88.0, **figures}], [])
    assert f"| {PAIRS[index].name} * |" in text
    assert text.endswith(
        "2 pairs: median -0.5, worst -2.0\n1 of them (*) were tried once, after the defaults were frozen: median -2.0, worst -2.0"
    )
