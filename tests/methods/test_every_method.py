"""Every method on real digits: it learns, resumes to the bit, agrees between processes, and has its effect on the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from methods.forms import FORMS, changes
from sparsefw.config_base import ConfigError
from sparsefw.methods import METHODS, SGD, Batch, method_from
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.checkpoint import load_checkpoint, save_checkpoint
from sparsefw.train.display import Display
from sparsefw.train.loop import Watcher, train
from sparsefw.train.run import prepare
from train.harness import TESTS, assert_same_run, command, ended, reached, send_when, start, step_of, torchrun, trained

every = pytest.mark.parametrize("form", FORMS)
SHORT = ["data.validation=0", "engine.device=cpu"]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )


def batch(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(8, 1, 8, 8, generator=draw), torch.randint(4, (8,), generator=draw))


@pytest.mark.parametrize(
    "method",
    [
        *({"name": name, "strength": 0} for name in ("ssl", "glt", "abfp", "nuc", "fr", "svdenergy")),
        {"name": "nuc", "strength": 0, "svd": True},
        {"name": "trp", "strength": 0, "threshold": 0},
        {"name": "sfp", "k": 1.0},
        {"name": "sam", "rho": 0},
        {"name": "masked"},
    ],
    ids=str,
)
def test_without_strength_it_is_sgd_bit_for_bit(method):
    nets = []
    for compared in (SGD(), method_from(method)):
        net = small()
        step = step_of(net, compared, 4, settings={"weight_decay": 5e-4})
        for i in range(5):
            step(batch(i))
        nets.append(net)
    for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b), name


def test_after_step_sees_the_moved_weights():
    """GLT's step is SGD's, and then the cut."""
    net, twin, method = small(), small(), method_from({"name": "glt", "strength": 0.1})
    step_of(net, method, 4)(batch(0))
    plain = step_of(twin, SGD(), 4)
    plain(batch(0))
    method.after_step(twin, plain.optimizer)
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), name


@every
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision(form, precision):
    """Forward and backward pass in half precision, weights in float32; float16 without loss scaling, which needs a GPU."""
    net, method = small(), method_from(FORMS[form])
    step = step_of(net, method, 4, precision=precision, settings={"lr": 0.03, "example": batch(0).inputs})
    losses = [float(step(batch(0))[0]) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in net.parameters())


@every
def test_a_scaled_loss_makes_the_same_step(form):
    """Scaled by a power of two, which rounds nothing: penalties and cuts must see the unscaled gradient."""
    nets = []
    for scale in (None, 2.0**10):
        net = small()
        how = {"loss_scale": scale, "settings": {"lr": 0.03, "example": batch(0).inputs}}
        step = step_of(net, method_from(FORMS[form]), 4, **how)
        for i in range(3):
            torch.manual_seed(i)  # what CrAM draws
            step(batch(i))
        nets.append(net)
    for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@every
def test_where_a_scaled_loss_overflows_no_weight_moves(form):
    """Neither by the optimizer nor by a cut after the step."""
    net, method = small(), method_from(FORMS[form])
    step = step_of(net, method, 4, loss_scale=1024.0, settings={"lr": 0.03, "example": batch(0).inputs})
    before = [p.detach().clone() for p in net.parameters()]
    step(Batch(batch(0).inputs / 0, batch(0).targets))
    assert step.scaler.get_scale() == 512
    for (name, p), unmoved in zip(net.named_parameters(), before, strict=True):
        assert torch.equal(p, unmoved), name


@every
def test_averages_are_taken_after_the_last_hook(form):
    """The average over one step is the weights."""
    net, method = small(), method_from(FORMS[form])
    step = step_of(net, method, 4, ema=0.5, settings={"example": batch(0).inputs})
    step(batch(0))
    twin = small()
    step.average.write_to(twin, 1)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.allows_averaging])
def test_averages_are_refused_where_they_lose_the_effect_of_a_method(name):
    with pytest.raises(ConfigError, match=rf"train\.ema does not go with method\.name={name}"):
        load_recipe("digits-resnet-sgd", [f"method.name={name}", "train.ema=0.9"])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("sgd", "sam")])
def test_a_network_without_weights_for_the_method_is_refused_in_one_line(name):
    net = nn.Sequential(nn.Flatten(), nn.PReLU())
    with pytest.raises(ValueError, match="Conv"):
        step_of(net, method_from({"name": name}), 2)


@pytest.mark.slow
@every
def test_learns_digits(form, tmp_path):
    """The recipe with fewer epochs and the settings of the form."""
    words = [*SHORT, *changes(form), "train.epochs=10", "train.evaluate_every=30"]
    assert fit(load_recipe("digits-resnet-sgd", words), tmp_path / "run", quiet=True)["test"]["accuracy"] > 85


class StoppedError(Exception):
    """Raised in the middle of a training."""


class StopsAt(Watcher):
    """Writes a checkpoint after a step, and stops."""

    def __init__(self, step: int, folder: Path) -> None:
        self._step, self._folder = step, folder

    def stepped(self, training, lr):
        if training.step == self._step:
            raise StoppedError(save_checkpoint(self._folder, training.step, training.state()))

    def epoch_ended(self, training, lr, figures):
        self.stepped(training, lr)


def config(form: str):
    average = ["train.ema=0.9"] if METHODS[FORMS[form]["name"]].allows_averaging else []
    small = ["model.arguments.width=4", "train.epochs=3", "data.batch_size=200", *average, "train.evaluate_every=9"]
    return load_recipe("digits-resnet-sgd", [*SHORT, *changes(form), *small])


@pytest.mark.parametrize("at", [pytest.param(7, marks=pytest.mark.slow), 10], ids=["end of an epoch", "middle"])
@every
def test_from_a_checkpoint_it_goes_on_to_the_same_bytes(form, at, tmp_path):
    """Seven steps an epoch, of three."""
    display = Display("", quiet=True)
    whole, first, second = (prepare(config(form), None, display) for _ in range(3))
    train(whole, StopsAt(-1, tmp_path))
    with pytest.raises(StoppedError) as stopped:
        train(first, StopsAt(at, tmp_path))
    second.load(load_checkpoint(stopped.value.args[0]))
    assert second.step == at
    train(second, StopsAt(-1, tmp_path))
    for (name, a), b in zip(whole.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    if whole.average is not None:
        assert all(torch.equal(a, b) for a, b in zip(whole.average.tensors, second.average.tensors, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rank-anneal", "coupled", "sticky", "cram-weights", "trp", "svdenergy"])
def test_killed_it_ends_in_the_same_bytes(form, tmp_path):
    """In the second epoch of three: those that remember something, or draw numbers."""
    words = [command("digits-resnet-sgd", tmp_path / name, *changes(form)) for name in ("run", "whole")]
    process = start(words[0])
    assert send_when(process, reached(tmp_path / "run", 30))
    ended(process, code=None)
    assert "resuming from step" in trained(words[0])
    trained(words[1])
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_arrive_at_the_weights_of_one(tmp_path):
    """Every form, four steps and the end of an epoch; and both processes have the same weights to the bit."""
    script = str(Path(TESTS) / "methods" / "train_all_forms.py")
    for name, begin in (("one", start), ("two", torchrun)):
        (tmp_path / name).mkdir()
        ended(begin([script, str(tmp_path / name)]))
    for form in FORMS:
        one = load_file(tmp_path / "one" / f"{form}-0.safetensors")
        two, twin = (load_file(tmp_path / "two" / f"{form}-{rank}.safetensors") for rank in (0, 1))
        for name, value in one.items():
            assert torch.equal(two[name], twin[name]), (form, name)
            torch.testing.assert_close(
                two[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, at=(form, name): f"{at}: {m}"
            )


# --- the effect of each method


def relative_norms(folder: Path) -> torch.Tensor:
    """Return the norms of all filters, relative to the largest of their layer."""
    model, _ = RunFolder(folder).load_model()
    norms = [m.weight.detach().flatten(1).norm(dim=-1) for m in model.modules() if isinstance(m, nn.Conv2d)]
    return torch.cat([of_layer / of_layer.max() for of_layer in norms])


def spectra(folder: Path) -> list[torch.Tensor]:
    model, _ = RunFolder(folder).load_model()
    matrices = [m.weight.detach().flatten(1) for m in model.modules() if isinstance(m, nn.Conv2d)]
    return [torch.linalg.svdvals(matrix) for matrix in matrices]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that returns the folder of a training by a method, which is trained once."""
    made: dict[str, Path] = {}

    def folder(**settings) -> Path:
        key = str(sorted(settings.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("runs") / "run"
            words = [f"method.{name}={value}" for name, value in settings.items()]
            fit(
                load_recipe("digits-resnet-sgd", [*SHORT, *words, "model.arguments.width=16", "train.epochs=10"]),
                made[key],
                quiet=True,
            )
        return made[key]

    return folder


@pytest.mark.slow
class TestEffects:
    @pytest.mark.parametrize(("name", "strength"), [("ssl", 0.05), ("glt", 0.03), ("abfp", 0.05)])
    def test_small_filters_are_smaller_than_under_sgd(self, run, name, strength):
        ours, sgd = relative_norms(run(name=name, strength=strength)), relative_norms(run(name="sgd"))
        assert ours.quantile(0.3) < 0.5 * sgd.quantile(0.3)

    def test_glt_sets_filters_to_exactly_zero(self, run):
        assert (relative_norms(run(name="glt", strength=0.03)) == 0).any()

    def test_sfp_sets_the_fraction_of_filters_to_zero_in_every_layer(self, run):
        model, _ = RunFolder(run(name="sfp", k=0.3)).load_model()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                count = module.out_channels
                zero = int((module.weight.detach().flatten(1) == 0).all(-1).sum())
                assert zero == int(count * 0.7 + 1e-9)

    @pytest.mark.parametrize(("name", "strength"), [("nuc", 0.05), ("svdenergy", 0.2), ("trp", 0.05)])
    def test_spectra_fall_faster_than_under_sgd(self, run, name, strength):
        def tail(folder: Path) -> float:
            """Return the share of the energy outside of the leading tenth."""
            shares = [s[max(1, len(s) // 10) :].square().sum() / s.square().sum() for s in spectra(folder)]
            return float(torch.stack(shares).mean())

        assert tail(run(name=name, strength=strength)) < 0.7 * tail(run(name="sgd"))

    def test_svdenergy_lowers_the_rank(self, run):
        ranks = [
            float((s > 1e-3 * s[0]).float().mean()) for s in spectra(run(name="svdenergy", strength=0.2, svd="true"))
        ]
        assert min(ranks) < 0.7

    def test_fr_turns_filters_towards_each_other(self, run):
        def alike(folder: Path) -> float:
            model, _ = RunFolder(folder).load_model()
            matrices = [m.weight.detach().flatten(1) for m in model.modules() if isinstance(m, nn.Conv2d)]
            units = [m / m.norm(dim=-1, keepdim=True) for m in matrices]
            return float(torch.stack([(u @ u.mT).mean() for u in units]).mean())

        assert alike(run(name="fr", strength=1e-3)) > alike(run(name="sgd")) + 0.05
