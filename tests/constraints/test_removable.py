"""What constrain gives regions to, with an example: exactly what compress removes, and what goes together as one block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw import SFW, Rule, compress, constrain
from sparsefw.compression.artifact.plan import Keep, Split, Thin
from sparsefw.geometry import Groups
from sparsefw.models import build

WIDTH = 16
TOKENS = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, WIDTH // 4
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1))


class Transformer(nn.Module):
    """A block of a transformer, and a layer for its output."""

    def __init__(self, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = Attention() if attention is None else attention
        self.is_torchs = attention is not None
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + (self.attention(x, x, x)[0] if self.is_torchs else self.attention(x))
        return self.head(x + self.fc2(F.gelu(self.fc1(self.norm(x)))))


class Kept(nn.Module):
    """The second convolution cannot lose filters: the network multiplies its channels by a tensor of fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3), nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x)))) * torch.linspace(1, 2, 8)[:, None, None]
        return self.head(torch.relu(self.third(x)).mean((2, 3)))


def blocks(groups) -> list[set[str]]:
    return [{name for name, _ in group["params"]} for group in groups if group["region"] is not None]


def constrained(groups) -> set[str]:
    return set().union(*blocks(groups))


def matrices(model: nn.Module, names: set[str]) -> set[str]:
    return {name for name in names if model.get_parameter(name).ndim > 1}


@pytest.mark.parametrize(
    ("model", "kind", "example"),
    [
        (build("resnet_digits", width=4), "filters", IMAGES),
        (Kept(), "filters", IMAGES),
        (Transformer(), "neurons", TOKENS),
        (Transformer(), "filters", TOKENS),
    ],
    ids=["resnet filters", "kept filters", "transformer neurons", "transformer filters"],
)
def test_what_is_constrained_is_what_compress_removes(model, kind, example):
    groups = constrain(model, kind, example=example, steps=1_000, report=None)
    edits = compress(model, example=example, **{kind: 0.5}).plan.edits
    written = {f"{edit.layer}.weight" for edit in edits if isinstance(edit, Keep) and edit.side == "out"}
    read = {f"{edit.layer}.weight" for edit in edits if isinstance(edit, Keep) and edit.side == "in"}
    heads = {"attention.proj.weight"} if "attention.qkv.weight" in written else set()
    written -= {"attention.qkv.weight"}  # heads are constrained where they are read
    found = matrices(model, constrained(groups))
    assert written | heads <= found
    assert found <= written | heads | read


def test_layers_of_rank_and_weights_are_those_that_compress_cuts_but_for_the_output():
    model = Transformer()
    for kind, edit in (("rank", Split), ("weights", Thin)):
        cut = {
            f"{e.layer}.weight"
            for e in compress(model, example=TOKENS, **{kind: 0.9}).plan.edits
            if isinstance(e, edit)
        }
        found = constrained(constrain(model, kind, example=TOKENS, steps=1_000, report=None))
        assert found == cut - {"head.weight"}
        assert found == {f"{name}.weight" for name in ("attention.qkv", "attention.proj", "fc1", "fc2")}


def test_a_neuron_is_one_row_with_its_bias_and_its_readers():
    model = Transformer()
    groups = constrain(model, "neurons", example=TOKENS, steps=1_000, report=None)
    assert blocks(groups) == [{"fc1.weight", "fc1.bias", "fc2.weight"}]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = SFW(groups, lr=0.1)
    torch.manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    decay = 1 - float(optimizer.diagnostics()[0].step_size)
    moved = {
        "fc1.weight": (model.fc1.weight - decay * before["fc1.weight"]).norm(dim=1),
        "fc1.bias": (model.fc1.bias - decay * before["fc1.bias"]).abs(),
        "fc2.weight": (model.fc2.weight - decay * before["fc2.weight"]).norm(dim=0),
    }
    grown = torch.stack([norms > 1e-6 for norms in moved.values()])
    assert torch.equal(grown.all(0), grown.any(0))
    assert int(grown[0].sum()) == optimizer.param_groups[0]["region"].gauge.k


@pytest.mark.parametrize("attention", [None, nn.MultiheadAttention(WIDTH, 4, batch_first=True)], ids=["qkv", "torch's"])
def test_heads_are_columns_of_the_projection(attention):
    model = Transformer(attention)
    projection = "proj" if attention is None else "out_proj"
    for options in ({"example": TOKENS}, {}):
        groups = constrain(model, "heads", k=1, steps=1_000, report=None, **options)
        assert blocks(groups) == [{f"attention.{projection}.weight"}]
        assert groups[0]["region"].count((WIDTH, WIDTH)) == 4


def test_the_stream_of_a_transformer_is_one_block():
    model = Transformer()
    found = blocks(constrain(model, "filters", example=TOKENS, steps=1_000, report=None))
    assert {"fc1.weight", "fc1.bias"} <= set().union(*found)
    assert "head.weight" not in set().union(*found)


def test_what_cannot_be_removed_is_free_and_listed_with_its_reason():
    said = []
    groups = constrain(Kept(), "filters", example=IMAGES, steps=1_000, report=said.append)
    assert blocks(groups) == [{"first.weight"}, {"third.weight"}]
    lines = said[0].splitlines()
    assert any(
        line.startswith("not to be removed: second: ") and "a tensor of shape (8, 1, 1)" in line for line in lines
    )
    assert "not to be removed: head: the model's output" in lines
    assert "example=" not in said[0]


def test_without_an_example_one_line_asks_for_it():
    said = []
    constrain(Kept(), "filters", steps=1_000, report=said.append)
    assert "give example=, a batch of inputs, to constrain exactly what compress can remove" in said[0].splitlines()


def test_a_rule_chooses_among_what_can_be_removed():
    rules = [Rule("first.*", None), Rule("*", "filters", k=1)]
    groups = constrain(Kept(), rules, example=IMAGES, steps=1_000, report=None)
    assert blocks(groups) == [{"third.weight"}]
    assert groups[0]["region"].gauge.k == 1
    with pytest.raises(ValueError, match=r"rule 'second\.\*': compress\(filters=\.\.\.\) can remove nothing"):
        constrain(Kept(), Rule("second.*", "filters"), example=IMAGES, steps=1_000)


def test_functions_that_make_regions_need_no_example():
    from sparsefw.geometry import LpBall

    groups = constrain(Kept(), lambda: LpBall(2), example=IMAGES, steps=1_000, w=1.0, report=None)
    assert {"first.bias", "head.weight"} <= constrained(groups)


def test_parameters_have_the_names_of_the_wrapped_model():
    groups = constrain(torch.compile(Kept(), backend="eager"), "filters", example=IMAGES, steps=1_000, report=None)
    assert blocks(groups) == [{"_orig_mod.first.weight"}, {"_orig_mod.third.weight"}]


def test_frozen_writers_leave_their_scales_alone():
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
    net.append(nn.Linear(128, 10))
    net[0].weight.requires_grad_(False)
    assert blocks(constrain(net, "filters", example=IMAGES, steps=1_000, report=None)) == [{"2.weight", "3.weight"}]


def test_layers_that_are_frozen_are_named_where_nothing_else_is_left():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    net[0].requires_grad_(False)
    message = r"^rule '\*': what compress\(neurons=\.\.\.\) can remove of it is frozen: 0\.weight[^\n]*requires_grad=True[^\n]*$"
    with pytest.raises(ValueError, match=message):
        constrain(net, "neurons", example=torch.randn(2, 6), steps=1_000, report=None)
    net[2].requires_grad_(False)
    with pytest.raises(ValueError, match=r"can remove of it is frozen: "):
        constrain(net, "rank", example=torch.randn(2, 6), steps=1_000, report=None)


def test_the_model_is_left_as_it_is():
    model = Transformer(nn.MultiheadAttention(WIDTH, 4, batch_first=True)).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    constrain(model, "neurons", example=TOKENS, steps=1_000, report=None)
    assert model.training
    assert isinstance(model.attention, nn.MultiheadAttention)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("kind", "example", "message"),
    [
        ("filters", torch.zeros(2, 3, 8, 8), "example does not fit the model"),
        ("neurons", IMAGES, "nothing to compress by neurons"),
        ("filtres", IMAGES, "did you mean 'filters'"),
    ],
)
def test_bad_requests_are_one_line(kind, example, message):
    with pytest.raises(ValueError, match=message) as caught:
        constrain(Kept(), kind, example=example, steps=1_000)
    assert "\n" not in str(caught.value)


class Conv1D(nn.Module):
    """A linear layer whose weight is (inputs, outputs), as that of transformers, by which GPT-2 is made."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 4), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def test_weights_stored_by_inputs_are_constrained_along_the_axes_that_compress_cuts():
    torch.manual_seed(0)
    model = Transformer()
    model.fc1, model.fc2 = Conv1D(24, WIDTH), Conv1D(WIDTH, 24)
    model.attention.proj = Conv1D(WIDTH, WIDTH)
    neurons = constrain(model, "neurons", example=TOKENS, steps=1_000, k=5, report=None)
    assert blocks(neurons) == [{"fc1.weight", "fc1.bias", "fc2.weight"}]
    (block,) = (group for group in neurons if group["region"] is not None)
    assert dict(zip([name for name, _ in block["params"]], block["axes"], strict=True)) == {
        "fc1.weight": 1, "fc1.bias": 0, "fc2.weight": 0,
    }  # fmt: skip
    heads = constrain(model, "heads", example=TOKENS, steps=1_000, k=1, report=None)
    assert blocks(heads) == [{"attention.proj.weight"}]
    assert heads[0]["region"].view == Groups(axis=0, width=WIDTH // 4)
