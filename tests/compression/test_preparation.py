"""Preparation: networks with computed weights are compressed like their plain twins, and saved, loaded and exported like them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from compression.networks import BATCHES, X
from compression.zoo import Net, outputs
from sparsefw import Sizes, compress, curve, load, save, save_elastic
from sparsefw.compression import ArtifactError, export_onnx
from sparsefw.compression.artifact.files import digest_of
from sparsefw.compression.artifact.plan import Bake, Plan, Replace
from sparsefw.compression.preparation import prepared
from sparsefw.compression.structure.gaps import relative_gap


class Standardised(nn.Conv2d):
    """A convolution whose filters have the mean 0 and the deviation 1, times a gain for each."""

    def __init__(self, *sizes: int, **options: int) -> None:
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return self._conv_forward(x, self.gain * weight / weight.std(dim=(1, 2, 3), keepdim=True), self.bias)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def chain(middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        middle,
        nn.ReLU(),
        nn.Conv2d(16, 12, 3),
        nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    )


def weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: deprecated
        return nn.utils.weight_norm(layer)


def spectral_norm(layer: nn.Module) -> nn.Module:
    return nn.utils.spectral_norm(layer)


def twice(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


CONV = partial(nn.Conv2d, 16, 16, 3, padding=1)
MIDDLES = {
    "standardised": lambda: Standardised(16, 16, 3, padding=1),
    "weight_norm": lambda: parametrizations.weight_norm(CONV()),
    "old weight_norm": lambda: weight_norm(CONV()),
    "spectral_norm": lambda: parametrizations.spectral_norm(CONV()),
    "old spectral_norm": lambda: spectral_norm(CONV()),
    "parametrized twice": lambda: twice(CONV()),
    "pruned": lambda: prune.ln_structured(prune.l1_unstructured(CONV(), "weight", 0.5), "weight", 0.25, 2, 0),
    "transposed": lambda: parametrizations.weight_norm(nn.ConvTranspose2d(16, 16, 3), dim=1),
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = chain(MIDDLES[name]()).train()
    model(X)  # under autograd: torch's old hooks leave tensors that cannot be copied
    return model.eval()


def twin(model: nn.Module) -> nn.Module:
    """The same network with an ordinary layer."""
    plain = prepared(model, X).model
    assert type(plain[3]) in (nn.Conv2d, nn.ConvTranspose2d)
    return plain


def notes_on(small, layer: str) -> list[str]:
    return [u.reason for u in small.plan.untouched if u.layer == layer and u.note]


@pytest.mark.parametrize("name", MIDDLES)
def test_the_copy_is_plain_and_computes_the_same(name):
    model = network(name)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    plain = twin(model)
    assert relative_gap(outputs(model, X), outputs(plain, X)) < 1e-6
    assert all(type(module).__module__.startswith("torch.nn.modules") for module in plain.modules())
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)
@pytest.mark.parametrize("name", MIDDLES)
def test_it_is_compressed_like_its_plain_twin(name, how):
    model = network(name)
    small = compress(model, example=X, **how)
    like = compress(twin(model), example=X, **how)
    assert small.costs == like.costs
    assert small.dense == like.dense
    assert relative_gap(outputs(like.model, X), outputs(small.model, X)) == 0
    assert small.parity < 1e-4
    assert [u for u in small.plan.untouched if not u.note] == [u for u in like.plan.untouched if not u.note]
    assert len(notes_on(small, "3")) == 1
    assert "in evaluation" in notes_on(small, "3")[0]


@pytest.mark.parametrize("name", MIDDLES)
def test_files(name, tmp_path):
    model = network(name)
    small = compress(model, filters=0.5, rank=0.5, calibration=BATCHES)
    save(small, tmp_path / "small")
    again = load(tmp_path / "small", partial(network, name))
    assert relative_gap(outputs(small.model, X), outputs(again.model, X)) == 0
    assert again.plan.edits == small.plan.edits
    save_elastic(model, tmp_path / "any", "filters", [0.5], calibration=BATCHES, refit=False)
    for ratio in (0.25, 0.5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # statistics between two sizes
            size = load(tmp_path / "any", partial(network, name), filters=ratio)
        like = compress(model, filters=ratio, calibration=BATCHES, refit=False)
        assert torch.equal(size.model[5].weight, like.model[5].weight)
        assert torch.equal(size.model[3].weight, like.model[3].weight)
        assert len(notes_on(size, "3")) == 1


def test_a_fresh_process_loads_it(tmp_path):
    small = compress(network("standardised"), filters=0.5, calibration=BATCHES)
    save(small, tmp_path / "small")
    torch.save(outputs(small.model, X)[0], tmp_path / "expected.pt")
    code = (
        "import torch; from compression.test_preparation import X, network, outputs; from sparsefw import load\n"
        f"small = load({str(tmp_path / 'small')!r}, lambda: network('standardised'))\n"
        f"expected = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "assert torch.allclose(outputs(small.model, X)[0], expected, atol=1e-6)\n"
        "print(type(small.model[3]).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False
    )
    assert (done.returncode, done.stdout) == (0, "Conv2d\n"), done.stderr


def test_a_pruned_network_is_loaded_into_one_that_was_never_pruned(tmp_path):
    small = compress(network("pruned"), filters=0.5, example=X)
    save(small, tmp_path / "small")
    again = load(tmp_path / "small", lambda: chain(CONV()))
    assert relative_gap(outputs(small.model, X), outputs(again.model, X)) == 0


@pytest.mark.parametrize("name", ["standardised", "pruned"])
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxruntime")
    small = compress(network(name), filters=0.5, example=X)
    assert export_onnx(small.model, X, tmp_path / "small.onnx") <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["standardised", "weight_norm", "old spectral_norm", "pruned"])
def test_half_precision(name, dtype):
    model = network(name).to(dtype)
    small = compress(model, filters=0.5, example=X.to(dtype))
    assert small.model[3].weight.dtype == dtype
    assert small.model[3].weight.shape == (8, 8, 3, 3)


def test_the_plan_replays_with_weights():
    """Edits hold the architecture; applied to the dense network itself, they also give the weights."""
    for name in MIDDLES:
        model = network(name)
        small = compress(model, filters=0.5, example=X)
        plan = Plan.from_json(small.plan.to_json())
        assert plan.edits == small.plan.edits
        replayed = prepared(model, X).model
        again = network(name)
        again.load_state_dict(model.state_dict())
        again = plan.prepare(again)
        assert torch.equal(again[3].weight, replayed[3].weight)
        plan.apply(copy_with(model))


def copy_with(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(vars(module).get("weight"), Tensor):
            module.weight = module.weight.detach()
    return copy.deepcopy(model)


def test_a_layer_that_is_used_twice_has_one_edit():
    shared = Standardised(8, 8, 3, padding=1)
    model = Net(
        lambda m, x: m.last(torch.relu(m.again(torch.relu(m.one(torch.relu(m.first(x))))))),
        first=nn.Conv2d(3, 8, 1),
        one=shared,
        again=shared,
        last=nn.Conv2d(8, 2, 1),
    )
    small = compress(model, filters=0.5, example=X)
    assert [edit.layer for edit in small.plan.edits if isinstance(edit, Replace)] == ["one"]
    assert small.model.one is small.model.again
    assert small.model.one.weight.shape == (4, 4, 3, 3)


def test_layers_that_share_what_they_compute_from_share_the_result(tmp_path):
    def make() -> nn.Module:
        torch.manual_seed(0)
        layers = [parametrizations.spectral_norm(nn.Linear(6, 6)) for _ in range(2)]
        layers[1].parametrizations.weight.original = layers[0].parametrizations.weight.original
        for name in ("_u", "_v"):
            setattr(layers[1].parametrizations.weight[0], name, getattr(layers[0].parametrizations.weight[0], name))
        return nn.Sequential(nn.Linear(4, 6), layers[0], nn.ReLU(), layers[1], nn.Linear(6, 3)).eval()

    x = torch.randn(5, 4)
    small = compress(make(), weights=0.5, example=x)
    assert small.model[1].weight is small.model[3].weight
    assert [edit.same_as for edit in small.plan.edits if isinstance(edit, Bake)] == ["", "1.weight"]
    save(small, tmp_path / "small")
    again = load(tmp_path / "small", make)
    assert again.model[1].weight is again.model[3].weight
    assert relative_gap(outputs(small.model, x), outputs(again.model, x)) == 0


def test_what_is_computed_from_another_layers_weight_stays_computed():
    first, second = nn.Linear(6, 6), parametrizations.weight_norm(nn.Linear(6, 6))
    second.parametrizations.weight.original1 = first.weight
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(6, 8), nn.Linear(8, 3)).eval()
    small = compress(model, filters=0.5, example=torch.randn(5, 6))
    assert notes_on(small, "2") == ["its weight stays computed: it is computed from a parameter of 0"]
    assert small.model[4].out_features == 4


def test_layers_that_compute_different_weights_from_one_parameter_go_on_doing_so():
    first, second = nn.Linear(6, 6), twice(nn.Linear(6, 6))
    parametrize.register_parametrization(first, "weight", Doubled())
    second.parametrizations.weight.original = first.parametrizations.weight.original
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(6, 8), nn.Linear(8, 3)).eval()
    small = compress(model, filters=0.5, example=torch.randn(5, 6))
    assert notes_on(small, "0") == ["its weight stays computed: it is computed from a parameter of 2"]
    assert notes_on(small, "2") == ["its weight stays computed: it is computed from a parameter of 0"]


class ByInput(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * x.mean().sigmoid(), self.bias)


class Gained(nn.Conv2d):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.gain, self.bias)


def test_what_cannot_be_stored_says_why():
    small = compress(chain(ByInput(16, 16, 3)), filters=0.5, example=X)
    assert notes_on(small, "3") == ["its weight stays computed: no plain layer computes the same as ByInput"]
    assert type(small.model[3]) is ByInput
    reader = Net(
        lambda m, x: m.last(m.gained(torch.relu(m.first(x))) / m.gained.gain.mean()),
        first=nn.Conv2d(3, 8, 3),
        gained=Gained(8, 8, 3),
        last=nn.Conv2d(8, 2, 1),
    )
    small = compress(reader, weights=0.5, example=X)
    (note,) = notes_on(small, "gained")
    assert note.startswith("its weight stays computed: the model needs more than a plain layer in its place (Attribute")
    asks = Net(
        lambda m, x: m.last(m.normed(torch.relu(m.first(x))) * float(parametrize.is_parametrized(m.normed))),
        first=nn.Conv2d(3, 8, 3),
        normed=parametrizations.weight_norm(nn.Conv2d(8, 8, 3)),
        last=nn.Conv2d(8, 2, 1),
    )
    small = compress(asks, rank=0.25, example=X)
    (note,) = notes_on(small, "normed")
    assert "needs more than a plain layer in its place (outputs differ by" in note
    assert parametrize.is_parametrized(small.model.normed)


@pytest.mark.parametrize("name", ["standardised", "weight_norm", "old weight_norm", "pruned"])
def test_in_place_the_layer_is_left_with_its_reason(name):
    """`Sizes` acts on the very model, whose weights go on being computed."""
    model = network(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    sizes = Sizes(model, "filters", example=X)
    with sizes.smaller(0.5):
        model(X)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match="0 computes its weight from other parameters"):
        Sizes(nn.Sequential(*list(model)[3:4], nn.Conv2d(16, 2, 1)), "filters", example=torch.randn(2, 16, 8, 8))


def test_curves_say_it():
    result = curve(network("weight_norm"), "filters", [0.5], calibration=BATCHES, evaluate=lambda net: 1.0, refit=False)
    assert any("its weight, which WeightNorm computed, is stored" in note for note in result.notes)


def test_masked_filters_of_a_computed_weight():
    small = compress(network("standardised"), filters=0.5, form="masked", example=X)
    assert int((small.model[3].weight.flatten(1) == 0).all(1).sum()) == 8


def test_without_computed_weights_nothing_is_prepared():
    model = chain(CONV())
    assert prepared(model, X).plan == Plan()


class Conv1D(nn.Module):
    """That of Hugging Face's GPT-2, which need not be installed."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / nx**0.5), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


def test_a_linear_layer_with_a_weight_of_inputs_times_outputs(tmp_path):
    def make() -> nn.Module:
        return nn.Sequential(Conv1D(12, 6), nn.GELU(), Conv1D(6, 12), nn.Linear(6, 3))

    x = torch.randn(2, 5, 6)
    model = make()
    small = compress(model, filters=0.5, example=x)
    assert [tuple(p.shape) for p in small.model.parameters()] == [(6, 6), (6,), (3, 6), (3,), (3, 3), (3,)]
    assert notes_on(small, "0") == ["Conv1D became a plain Linear that computes the same in evaluation"]
    save(small, tmp_path / "small")
    assert relative_gap(outputs(small.model, x), outputs(load(tmp_path / "small", make).model, x)) == 0
    tied = make()
    tied[2].weight = nn.Parameter(torch.randn(12, 6))
    tied.append(nn.Linear(6, 12, bias=False))
    tied[4].weight = tied[2].weight
    tied[3] = nn.Identity()
    small = compress(tied, weights=0.5, example=x)
    assert notes_on(small, "2") == ["its weight stays computed: it is computed from a parameter of 4"]


def test_a_plan_of_hostile_numbers_takes_no_memory(tmp_path):
    edit = Replace("0", "Linear", (2**20, 2**20), 1, 1, (), (), (), (), "zeros", 0, (1, 6))
    model = nn.Sequential(Conv1D(12, 6))
    edit.reshape(model)
    assert model[0].weight.is_meta
    Bake("1", "weight", (2**20, 2**20)).reshape(nn.Sequential(nn.ReLU(), parametrizations.weight_norm(nn.Linear(2, 2))))


def test_functional_use_of_a_stored_weight():
    """Code that reads the weight by name finds it: a tied decoder."""
    model = Net(
        lambda m, x: functional.linear(torch.relu(m.hidden(m.code(x))), m.code.weight.t()),
        code=parametrizations.weight_norm(nn.Linear(6, 4)),
        hidden=nn.Linear(4, 4),
    )
    small = compress(model, weights=0.5, example=torch.randn(3, 6))
    assert isinstance(small.model.code.weight, nn.Parameter)


def refuse_edited(name: str, word: str, change: dict[str, object], folder: Path) -> None:
    """Expect one line where somebody who also knows how hashes work rewrote an edit."""
    save(compress(network(name), rank=0.5, include="5", example=X), folder)
    path = folder / "plan.json"
    data = json.loads(path.read_text())
    (edit,) = [edit for edit in data["plan"]["edits"] if edit["edit"] == word]
    edit.update(change)
    path.write_text(json.dumps({**data, "digest": digest_of(data)}))
    with pytest.raises(ArtifactError, match=r"^[^\n]*$"):
        load(folder, partial(network, name))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "LSTM"},
        {"type": "Module"},
        {"shape": [16]},
        {"shape": [16, 16, 3, 4]},
        {"shape": []},
        {"groups": 0},
        {"groups": 3},
        {"stride": [0, 0]},
        {"padding_mode": "none"},
        {"biased": 0},
        {"layer": "9"},
        {"layer": "4"},
        {"padding": [0, 0]},
    ],
    ids=str,
)
def test_an_edited_replacement_is_refused_in_one_line(change, tmp_path):
    refuse_edited("standardised", "replace", change, tmp_path / "small")


@pytest.mark.parametrize("change", [{"tensor": "w"}, {"shape": [1]}, {"same_as": "0.weight"}, {"layer": "4"}], ids=str)
def test_an_edited_bake_is_refused_in_one_line(change, tmp_path):
    refuse_edited("weight_norm", "bake", change, tmp_path / "small")
