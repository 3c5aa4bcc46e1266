"""Tied weights: they lose channels together, stay tied, also in files, and are left where that is not possible."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from compression.zoo import OUTPUT, awake, obstacle_of
from sparsefw.compression import compress, load, save
from sparsefw.compression.artifact.elastic import save_elastic
from sparsefw.compression.structure.removal import removable_channels
from sparsefw.compression.structure.ties import kept_tied, tied_names

WORDS = torch.randint(0, 12, (2, 5), generator=torch.Generator().manual_seed(0))


class Language(nn.Module):
    """The layer that writes the output has the weight of the embedding, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        return self.out(self.norm(x + self.down(self.up(x).relu())))


def language() -> nn.Module:
    torch.manual_seed(0)
    return awake(Language()).eval()


def test_embedding_and_output_lose_the_same_channels():
    model = language()
    found = removable_channels(model, WORDS)
    assert [(channels.count, obstacle_of(channels)) for channels in found if channels.writers] == [
        (8, ""), (16, ""), (12, OUTPUT),
    ]  # fmt: skip
    small = compress(model, filters=0.5, example=WORDS).model
    assert small.words.weight is small.out.weight
    assert small.words.weight.shape == (12, 4)
    assert (small.words.embedding_dim, small.out.in_features) == (4, 4)


def test_they_are_tied_in_files(tmp_path):
    small = compress(language(), filters=0.5, example=WORDS)
    save(small, tmp_path / "small")
    again = load(tmp_path / "small", Language).model
    assert again.words.weight is again.out.weight
    assert torch.equal(again.eval()(WORDS), small.model.eval()(WORDS))
    save_elastic(language(), tmp_path / "elastic", at=[0.5], calibration=[WORDS])
    any_size = load(tmp_path / "elastic", Language, filters=0.5).model
    assert any_size.words.weight is any_size.out.weight
    assert any_size.words.weight.shape == (12, 4)


def test_a_layer_that_is_never_called_is_cut_along():
    model = language()
    model.spare = nn.Embedding(12, 8)
    model.spare.weight = model.words.weight
    small = compress(model, filters=0.5, example=WORDS).model
    assert small.spare.weight is small.words.weight
    assert small.spare.embedding_dim == 4


def test_weights_that_layers_count_differently_keep_their_channels():
    """A grouped convolution counts its inputs anew in every group."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.plain = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1)
            self.grouped, self.head = nn.Conv2d(8, 8, 1, groups=2, bias=False), nn.Conv2d(8, 2, 1)
            self.plain = nn.Conv2d(4, 8, 1, bias=False)
            self.grouped.weight = self.plain.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.grouped(self.plain(self.stem(x)).relu()).relu())

    torch.manual_seed(0)
    found = removable_channels(awake(Net()).eval(), torch.randn(2, 3, 4, 4))
    reasons = {channels.name: obstacle_of(channels) for channels in found}
    assert all("shares its weight" in reason for name, reason in reasons.items() if name != "head"), reasons


def test_only_what_is_alike_is_tied_again():
    net = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    net[1].weight = net[0].weight
    assert tied_names(net) == [["0.weight", "1.weight"]]
    other = copy.deepcopy(net)
    with kept_tied(net):
        net[0].weight = nn.Parameter(torch.ones(2, 4))
        net[1].weight = nn.Parameter(torch.ones(2, 4))
    assert net[1].weight is net[0].weight
    with kept_tied(other):
        other[0].weight = nn.Parameter(torch.ones(2, 4))
    assert other[1].weight is not other[0].weight


@pytest.mark.parametrize("same", [True, False])
def test_one_module_under_two_names_is_no_tie(same):
    first = nn.Linear(4, 4)
    net = nn.ModuleDict({"a": first, "b": first if same else nn.Linear(4, 4)})
    assert tied_names(net) == []
