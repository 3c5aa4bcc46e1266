"""Exactly k largest, by topk and by partition."""

from __future__ import annotations

import pytest
import torch

from sparsefw.geometry.select import _PARTITION_FROM, keep_top_k, stable_top_k_mask, top_k_mask


@pytest.mark.parametrize("count", [17, _PARTITION_FROM + 5])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999, 1.0])
def test_keeps_exactly_k_of_random_and_of_tied_entries(count, share):
    k = max(1, int(share * count))
    generator = torch.Generator().manual_seed(0)
    for m in (torch.rand(3, count, generator=generator), torch.randint(1, 4, (3, count), generator=generator).float()):
        kept = keep_top_k(m, k)
        assert (kept > 0).sum(-1).tolist() == [k] * 3
        expected = m.sort(dim=-1, descending=True).values[:, :k].sum(-1)
        torch.testing.assert_close(kept.sum(-1), expected)
        assert torch.equal(kept[kept > 0], m[kept > 0])


def test_zeros_are_never_raised():
    m = torch.zeros(2, _PARTITION_FROM + 1)
    m[0, 3] = 2.0
    kept = keep_top_k(m, 10)
    assert kept.sum().item() == 2.0


def test_survives_compilation():
    m = torch.rand(2, _PARTITION_FROM + 1)
    compiled = torch.compile(keep_top_k, backend="eager", fullgraph=True)
    assert torch.equal(compiled(m, 100), keep_top_k(m, 100))


@pytest.mark.parametrize("k", [1, 4, 17])
def test_masks_have_exactly_k_and_agree_where_nothing_is_tied(k):
    m = torch.rand(3, 17, generator=torch.Generator().manual_seed(0))
    assert top_k_mask(m, k).sum(-1).tolist() == [k] * 3
    assert torch.equal(top_k_mask(m, k), torch.stack([stable_top_k_mask(row, k) for row in m]))
    assert torch.equal(top_k_mask(m, k), keep_top_k(m, k) > 0)
    assert top_k_mask(torch.ones(2, 17), k).sum(-1).tolist() == [k] * 2
    assert stable_top_k_mask(torch.ones(17), k).nonzero().flatten().tolist() == list(range(k))
    assert not stable_top_k_mask(torch.ones(17), 0).any()
