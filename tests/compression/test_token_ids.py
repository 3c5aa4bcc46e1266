"""Token ids: an example in which all are equal hides nothing that real ids would show, or a note says that it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsefw.compression import Compressed, compress
from sparsefw.compression.reasons import Cause
from sparsefw.compression.structure.copies import copied
from sparsefw.compression.structure.removal import silence
from sparsefw.compression.structure.token_ids import with_varied_ids

TOKENS = 50


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return 2 * super().forward(ids)


class Attention(nn.Module):
    """Four heads, which leave out token 0."""

    def __init__(self, embedding: type[nn.Embedding] = nn.Embedding) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = embedding(TOKENS, 32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 7)
        for module in self.children():
            if isinstance(module, nn.Linear):
                module.weight.data.mul_(3)

    def forward(self, ids: Tensor) -> Tensor:
        keep = ids != 0
        x = self.embedding(ids)
        q, k, v = (layer(x).unflatten(2, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT / 8**0.5).masked_fill(~keep[:, None, None], -1e9).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return (self.head(x) * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


class OneToken(Attention):
    """Takes items of one token each only."""

    def forward(self, ids: Tensor) -> Tensor:
        if bool((ids != ids[:, :1]).any()):
            raise ValueError("an item has several tokens")
        return super().forward(ids)


class Masked(nn.Module):
    """Reads ids by an embedding, and a mask, lengths and kinds of tokens, which are whole numbers as well, by none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        return self.head((self.embedding(ids[:, 1:]) * mask[:, 1:, None]).sum(1) / lengths[:, None])


def gap_on_real_ids(small: Compressed, net: nn.Module) -> float:
    real = torch.randint(1, TOKENS, (3, 9), generator=torch.Generator().manual_seed(0))
    silent = small.plan.prepare(copied(net))
    silence(silent, small.plan.edits)
    with torch.no_grad():
        expected = silent(real)
        return float((expected - small.model(real)).abs().max() / expected.abs().max())


def causes(small: Compressed) -> set[Cause | None]:
    return {entry.cause for entry in small.plan.untouched}


@pytest.mark.parametrize("embedding", [nn.Embedding, Scaled])
@pytest.mark.parametrize(
    "ids", [torch.zeros(2, 8).long(), torch.tensor([[3] * 8, [7] * 8], dtype=torch.int32)], ids=str
)
def test_what_is_removed_on_equal_ids_is_silent_on_real_ones(ids, embedding):
    net = Attention(embedding).eval()
    small = compress(net, filters=0.5, example=ids)
    assert gap_on_real_ids(small, net) < 1e-5
    assert Cause.EXAMPLE_HIDES not in causes(small)
    assert len(small.example.unique()) > 8  # what the certificate is computed on


@pytest.mark.parametrize(
    ("net", "ids", "says"),
    [
        (OneToken(), torch.zeros(2, 8).long(), "token ids example are all equal"),
        (Attention(), torch.tensor([[3], [7]]), "token ids example are one per item"),
    ],
    ids=["refuses", "one"],
)
def test_what_stays_hidden_is_noted(net, ids, says):
    small = compress(net.eval(), filters=0.5, example=ids)
    assert small.example is ids
    (note,) = [entry for entry in small.plan.untouched if entry.cause is Cause.EXAMPLE_HIDES]
    assert note.note
    assert note.reason.startswith(says)


def test_masks_lengths_and_ids_that_differ_stay():
    mask, lengths = torch.ones(2, 5).long(), torch.tensor([5, 5])
    ids = torch.full((2, 5), 4)
    varied, note = with_varied_ids(Masked(), {"ids": ids, "mask": mask, "lengths": lengths})
    assert note is None
    assert len(varied["ids"].unique()) > 5
    assert int(varied["ids"].max()) < TOKENS
    assert varied["mask"] is mask
    assert varied["lengths"] is lengths
    assert with_varied_ids(Masked(), (varied["ids"], mask, lengths)).example[0] is varied["ids"]


def test_a_mask_that_is_false_everywhere_is_noted_by_its_name():
    example = {"ids": torch.arange(10).view(2, 5), "mask": torch.zeros(2, 5).bool(), "lengths": torch.tensor([5, 5])}
    note = with_varied_ids(Masked(), example).note
    assert str(note).startswith("mask example['mask'] is False everywhere: ")
