"""A loaded network computes what was saved, or load refuses it in one line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from compression.networks import IMAGES, ROWS, cnn, mlp
from sparsefw import compress, load, save, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact.files import digest_of
from sparsefw.compression.structure.layers import call_on_copy

REFUSED = r"^[^\n]*: the loaded network does not compute what was saved \(outputs differ by [^\n]*\)[^\n]*$"
TEXT = torch.randint(0, 50, (6, 12), generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    """Reads words; a table of positions and a mask are buffers that its state dict does not hold."""

    def __init__(self, scale: float = 1.0, length: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = scale
        self.words = nn.Embedding(50, 16)
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 3)
        self.register_buffer("positions", torch.arange(length).float().unsqueeze(1) / length, persistent=False)
        self.register_buffer("mask", torch.ones(length, 1), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        x = self.words(words) * self.mask[:length] + self.positions[:length]
        return self.head((x + self.second(torch.relu(self.first(x * self.scale)))).mean(1))


class Stack(nn.Module):
    """Two layers; things may be changed after its construction."""

    def __init__(self, slope: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.slope = slope
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.leaky_relu(self.first(x), self.slope)
        return self.second(y) * getattr(self, "factor", 1.0)


def saved(net: nn.Module, inputs: Tensor, folder, elastic: bool) -> Callable[[nn.Module], Tensor]:
    """Save a network without half of its neurons; return the outputs of what was saved, a function of nothing else."""
    how = {"calibration": [inputs], "refit": False}
    small = compress(net, neurons=0.5, **how)
    if elastic:
        save_elastic(net, folder, "neurons", [0.25, 0.5], **how)
    else:
        save(small, folder)
    with torch.no_grad():
        return small.model.eval()(inputs)


def outputs(folder, constructor, inputs: Tensor, elastic: bool) -> Tensor:
    size = {"neurons": 0.5} if elastic else {}
    with torch.no_grad():
        return load(folder, constructor, **size).model.eval()(inputs)


BOTH = pytest.mark.parametrize("elastic", [False, True], ids=["one size", "elastic"])


@BOTH
def test_buffers_that_a_state_dict_does_not_hold_come_back(elastic, tmp_path):
    net = Reader(length=16)
    net.positions = net.positions[:12].flip(0).contiguous()  # cut and changed by its owner
    net.mask[3] = 0
    expected = saved(net, TEXT, tmp_path / "a", elastic)
    torch.testing.assert_close(outputs(tmp_path / "a", Reader, TEXT, elastic), expected, rtol=0, atol=0)


@BOTH
def test_a_buffer_that_was_registered_after_construction_comes_back(elastic, tmp_path):
    net = Stack()
    net.register_buffer("factor", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)
    expected = saved(net, ROWS[0], tmp_path / "a", elastic)
    torch.testing.assert_close(outputs(tmp_path / "a", Stack, ROWS[0], elastic), expected, rtol=0, atol=0)


def changed(net: nn.Module, **attributes: object) -> nn.Module:
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def hooked() -> nn.Module:
    net = Stack()
    net.register_forward_hook(lambda module, args, output: 1.01 * output)
    return net


@BOTH
@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Stack(0.5), lambda: Stack(0.45)),  # another argument
        (lambda: changed(Stack(), factor=2.0), Stack),  # set after construction
        (hooked, Stack),
        (Stack, hooked),
    ],
    ids=["argument", "attribute", "hook left out", "hook added"],
)
def test_a_constructor_of_another_function_is_refused(make, other, elastic, tmp_path):
    expected = saved(make(), ROWS[0], tmp_path / "a", elastic)
    with pytest.raises(ArtifactError, match=REFUSED) as error:
        outputs(tmp_path / "a", other, ROWS[0], elastic)
    assert str(tmp_path / "a") in str(error.value)
    torch.testing.assert_close(outputs(tmp_path / "a", make, ROWS[0], elastic), expected)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.4, 0.5, 0.75])
@pytest.mark.filterwarnings("ignore:.*is not stored:UserWarning")
def test_every_size_is_checked_by_what_it_was_or_by_the_dense_network(ratio, tmp_path):
    saved(Stack(0.5), ROWS[0], tmp_path / "a", elastic=True)
    load(tmp_path / "a", Stack, neurons=ratio)
    with pytest.raises(ArtifactError, match=REFUSED):
        load(tmp_path / "a", lambda: Stack(0.45), neurons=ratio)


def test_refit_sizes_are_checked(tmp_path):
    save_elastic(Stack(0.5), tmp_path / "a", "neurons", [0.5], calibration=ROWS, refit=True)
    load(tmp_path / "a", Stack, neurons=0.5, refit=True)
    with pytest.raises(ArtifactError, match=REFUSED):
        load(tmp_path / "a", lambda: Stack(0.45), neurons=0.5, refit=True)


class Drawing(Stack):
    """Its outputs are random where the first input is negative, which is never the case in the example."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + torch.rand_like(y) if bool((x < 0).any()) else y


class Positive(Stack):
    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative")
        return super().forward(x)


class Own(dict):
    """A type of inputs of the user's own."""


class Unpacking(Stack):
    def forward(self, x: Tensor, own: Own) -> Tensor:
        return super().forward(x * own["scale"])


@BOTH
@pytest.mark.parametrize(
    ("make", "example", "says"),
    [
        (Drawing, ROWS[0].abs(), "its outputs are random"),
        (Positive, ROWS[0].abs(), "it does not run on random inputs (ValueError)"),
        (Unpacking, (ROWS[0], Own(scale=2.0)), "an input of type tuple cannot be made from its shape"),
    ],
)
def test_networks_that_cannot_be_checked_say_so(make, example, says, elastic, tmp_path):
    if elastic:
        batches = [(example, None)]
        save_elastic(make(), tmp_path / "a", "neurons", [0.5], calibration=batches, example=example, refit=False)
    else:
        save(compress(make(), neurons=0.5, example=example), tmp_path / "a")
    again = load(tmp_path / "a", make, **({"neurons": 0.5} if elastic else {}))
    assert f"note: load: what it computes is not checked: {says}" in str(again)


@pytest.mark.parametrize(
    "example",
    [
        ROWS[0],
        (ROWS[0],),
        {"x": ROWS[0]},
    ],
    ids=["tensor", "tuple", "dict"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_inputs_of_every_form_and_precision(example, dtype, tmp_path):
    inputs = torch.utils._pytree.tree_map(lambda t: t.to(dtype), example)
    small = compress(Stack().to(dtype), neurons=0.5, example=inputs)
    save(small, tmp_path / "a")
    again = load(tmp_path / "a", Stack)
    assert "not checked" not in str(again)
    with torch.no_grad():
        assert torch.equal(call_on_copy(again.model, inputs), call_on_copy(small.model, inputs))


def test_neither_inputs_nor_what_they_were_are_stored(tmp_path):
    save(compress(Reader(), neurons=0.5, example=TEXT), tmp_path / "a")
    header = json.loads((tmp_path / "a" / "plan.json").read_text())
    shape = {"shape": [1, 12], "dtype": "torch.int64", "range": [int(TEXT[0].min()), int(TEXT[0].max())]}
    assert header["probe"] == {"input": shape, "torch": torch.__version__}


def test_large_outputs_add_little_to_a_file(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    save(compress(net, filters=0.5, example=torch.randn(1, 3, 256, 256)), tmp_path / "a")
    assert (tmp_path / "a" / "model.safetensors").stat().st_size < 20_000  # of two million bytes of outputs


def test_a_check_leaves_the_network_and_random_numbers_as_they_were(tmp_path):
    class Counting(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    small = compress(Counting(), neurons=0.5, example=ROWS[0])
    before = torch.get_rng_state()
    save(small, tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    again = load(tmp_path / "a", Counting)
    after = torch.get_rng_state()
    assert torch.equal(again.model.calls, small.model.calls)
    Counting()  # which seeds and draws
    assert torch.equal(torch.get_rng_state(), after)


def junk_in_probe(folder, probe: object) -> None:
    path = folder / "plan.json"
    header = {**json.loads(path.read_text()), "probe": probe}
    path.write_text(json.dumps({**header, "digest": digest_of(header)}))


@pytest.mark.parametrize(
    "shapes",
    [
        {"shape": [10**12], "dtype": "torch.float32"},
        {"tuple": [{"shape": [10**7], "dtype": "torch.float32"}] * 9},
        {"shape": [-1], "dtype": "torch.float32"},
        {"shape": [2, 8], "dtype": "torch.qint8"},
        {"shape": [2, 8], "dtype": "torch.int64", "range": [5, 1]},
        {"shape": [2, 8], "dtype": "torch.int64", "range": "x"},
        {"shape": [2, 9], "dtype": "torch.float32"},
        None,
    ],
    ids=range(8),
)
def test_a_probe_that_is_none_gives_one_line(shapes, tmp_path):
    save(compress(Stack(), neurons=0.5, example=ROWS[0]), tmp_path / "a")
    junk_in_probe(tmp_path / "a", {"input": shapes, "torch": 3})
    with pytest.raises(ArtifactError, match=r"^[^\n]*does not compute what was saved[^\n]*$"):
        load(tmp_path / "a", Stack)


class Versioned(nn.Module):
    """Since version 3, its weight is stored as it is; before, half of it was."""

    _version = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version", 1) < 3:
            state_dict[f"{prefix}weight"] = 2 * state_dict[f"{prefix}weight"]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@BOTH
def test_modules_are_told_the_version_that_saved_them(elastic, tmp_path):
    def make() -> nn.Module:
        return nn.Sequential(*mlp(), Versioned())

    expected = saved(make(), ROWS[0], tmp_path / "a", elastic)
    torch.testing.assert_close(outputs(tmp_path / "a", make, ROWS[0], elastic), expected, rtol=0, atol=0)


def test_tensors_that_share_memory_are_saved(tmp_path):
    class Views(Stack):
        def __init__(self) -> None:
            super().__init__()
            table = torch.arange(1.0, 9.0)
            self.register_buffer("start", table[:4])
            self.register_buffer("end", table[4:], persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.start + self.end

    expected = saved(Views(), ROWS[0], tmp_path / "a", elastic=False)
    torch.testing.assert_close(outputs(tmp_path / "a", Views, ROWS[0], elastic=False), expected, rtol=0, atol=0)


def test_a_mask_that_was_one_tensor_in_the_constructor_and_is_two_in_the_saved_network(tmp_path):
    class Shared(Stack):
        def __init__(self) -> None:
            super().__init__()
            mask = torch.ones(4)
            self.register_buffer("a", mask, persistent=False)
            self.register_buffer("b", mask, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.a + self.b

    net = Shared().double().float()  # separates buffers
    net.b += 1
    expected = saved(net, ROWS[0], tmp_path / "a", elastic=False)
    torch.testing.assert_close(outputs(tmp_path / "a", Shared, ROWS[0], elastic=False), expected, rtol=0, atol=0)


def test_images_and_convolutions(tmp_path):
    save(compress(cnn(), filters=0.5, calibration=IMAGES), tmp_path / "a")
    load(tmp_path / "a", cnn)
    with pytest.raises(ArtifactError, match=REFUSED):
        load(tmp_path / "a", lambda: nn.Sequential(*cnn(), nn.Tanh()))
