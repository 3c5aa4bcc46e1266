"""Magnitude pruning with retraining: schedules computed by hand, masks, phases, and kills between and within them."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from methods.by_hand import layer, optimizer_of
from runfolder.records import change_record
from sparsefw.config_base import ConfigError
from sparsefw.methods import Masked
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.config import TrainConfig
from sparsefw.train.retrain import retrain, retraining_config
from sparsefw.train.schedule import Schedule


def rates(train: TrainConfig) -> list[float]:
    """The learning rate at the start of every epoch, of which ten steps each."""
    return [train.lr * train.schedule.at(10 * e, 10 * train.epochs, 10) for e in range(train.epochs)]


class TestSchedules:
    LINEAR = TrainConfig(epochs=100, lr=0.1)

    def test_the_original(self):
        assert rates(self.LINEAR)[:2] == pytest.approx([0.1, 0.099])

    def test_ft_is_the_rate_of_the_last_epoch(self):
        assert rates(retraining_config(self.LINEAR, 4, "ft")) == pytest.approx([0.001] * 4)

    def test_lrw_repeats_the_last_epochs(self):
        assert rates(retraining_config(self.LINEAR, 10, "lrw")) == pytest.approx(rates(self.LINEAR)[-10:])

    def test_lrw_of_steps(self):
        steps = TrainConfig(epochs=100, lr=1.0, schedule=Schedule(kind="step"))
        assert rates(retraining_config(steps, 30, "lrw")) == pytest.approx(rates(steps)[-30:])

    def test_slr_is_the_whole_schedule_after_a_warm_up(self):
        """One epoch of ten to warm up; then 0.1 to 0 in nine."""
        assert rates(retraining_config(self.LINEAR, 10, "slr"))[1:] == pytest.approx(
            [0.1 * (9 - i) / 9 for i in range(9)]
        )
        steps = TrainConfig(epochs=100, lr=1.0, schedule=Schedule(kind="step"))
        by_epoch = rates(retraining_config(steps, 20, "slr"))
        assert (by_epoch[2], by_epoch[10], by_epoch[12], by_epoch[17]) == pytest.approx((1.0, 1.0, 0.1, 0.01))

    def test_llr_falls_along_a_line_whatever_the_original(self):
        steps = TrainConfig(epochs=100, lr=0.1, schedule=Schedule(kind="step"))
        assert rates(retraining_config(steps, 10, "llr"))[1:] == pytest.approx([0.1 * (9 - i) / 9 for i in range(9)])

    def test_clr_ends_at_the_smallest_rate(self):
        config = retraining_config(self.LINEAR, 10, "clr")
        assert rates(config)[1] == pytest.approx(0.1)
        assert config.lr * config.schedule.at(10**6, 10**6, 10**5) == pytest.approx(0.001)

    def test_clr_is_a_cosine(self):
        """A third of the way down it is at cos(60 degrees) = 1/2: three quarters of what lies above the floor of 0.001."""
        assert rates(retraining_config(self.LINEAR, 10, "clr"))[4] == pytest.approx(0.001 + 0.75 * 0.099)

    def test_ft_after_a_warm_up_that_ends_within_an_epoch(self):
        """10 epochs, 1.5 of them to warm up: 8.5 to fall in, of which one is left."""
        warm = TrainConfig(epochs=10, lr=1.0, schedule=Schedule(warmup=1.5))
        assert retraining_config(warm, 2, "ft").lr == pytest.approx(1 / 8.5, rel=1e-3)

    def test_the_rate_of_the_rest_goes_with_the_other(self):
        two = TrainConfig(epochs=100, lr=0.1, rest_lr=0.5)
        assert retraining_config(two, 4, "ft").rest_lr == pytest.approx(0.005)

    def test_slr_of_a_retraining_begins_where_that_began(self):
        again = retraining_config(self.LINEAR, 10, "lrw")
        assert rates(retraining_config(again, 10, "slr"))[1] == pytest.approx(0.01)

    def test_warm_up_starts_low(self):
        assert rates(retraining_config(self.LINEAR, 10, "llr"))[0] < 0.02

    def test_lrw_of_a_training_with_a_warm_up_and_of_a_retraining(self):
        warm = TrainConfig(epochs=100, lr=0.1, schedule=Schedule(warmup=20))
        assert rates(retraining_config(warm, 5, "lrw")) == pytest.approx(rates(warm)[-5:])
        again = retraining_config(self.LINEAR, 10, "lrw")
        assert rates(retraining_config(again, 5, "lrw")) == pytest.approx(rates(again)[-5:])
        assert rates(retraining_config(again, 10, "llr"))[1] == pytest.approx(0.01)  # the largest rate that it had

    @pytest.mark.parametrize("schedule", ["ft", "lrw", "slr", "clr", "llr"])
    def test_of_a_constant_rate(self, schedule):
        constant = TrainConfig(epochs=10, lr=0.1, schedule=Schedule(kind="constant"))
        assert rates(retraining_config(constant, 10, schedule))[1] == pytest.approx(0.1)
        assert rates(retraining_config(TrainConfig(epochs=1, lr=0.1), 1, schedule))

    @pytest.mark.parametrize(("epochs", "schedule"), [(0, "llr"), (101, "lrw"), (5, "cosine")])
    def test_what_makes_no_sense(self, epochs, schedule):
        with pytest.raises(ConfigError):
            retraining_config(self.LINEAR, epochs, schedule)


def test_weights_that_are_zero_stay_zero_and_others_move_as_by_sgd():
    rows = [[3.0, 0.0, 1.0], [0.0, -2.0, 0.0]]
    net, method = layer(rows), Masked()
    optimizer = optimizer_of(method, net, 0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        net[0].weight.grad = torch.ones_like(net[0].weight)
        method.adjust(net)
        optimizer.step()
    # 3: m = 1 + 1.5 = 2.5, to 2.75; m = 2.25 + 1 + 1.375 = 4.625, to 2.2875
    expected = torch.tensor([[2.2875, 0.0, 0.5375], [0.0, -1.85 - 0.1 * (0.0 + 1 - 0.925), 0.0]])
    expected[0, 2] = 1 - 0.1 * 1.5 - 0.1 * (0.9 * 1.5 + 1 + 0.5 * 0.85)
    expected[1, 1] = -2 - 0.1 * 0 - 0.1 * (0.9 * 0.0 + 1 - 0.5 * 2.0)
    torch.testing.assert_close(net[0].weight.detach().flatten(1), expected)


def test_weights_that_were_not_removed_are_noticed():
    with pytest.raises(ConfigError, match=r"method\.removed=0\.9: 0\.5 of the weights are 0; see model\.weights"):
        optimizer_of(Masked(removed=0.9), layer([[3.0, 0.0], [0.0, 1.0]]), 0.1)
    with pytest.raises(ConfigError, match=r"0\.5 of the weights are 0"):
        optimizer_of(Masked(removed=0.45), layer([[3.0, 0.0] * 20] * 5), 0.1)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense") / "run"
    changes = ["train.epochs=6", "engine.device=cpu", "model.arguments.width=8"]
    fit(load_recipe("digits-resnet-sgd", changes), folder, quiet=True)
    return folder


def zeros(folder) -> float:
    model, _ = RunFolder(folder).load_model()
    weights = [m.weight for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def test_phases_remove_the_same_fraction_of_what_is_left_and_end_at_the_ratio(dense, tmp_path):
    phases = retrain(dense, tmp_path / "out", weights=0.936, epochs=2, phases=3, quiet=True)
    assert [phase.ratio for phase in phases] == pytest.approx([0.6, 0.84, 0.936])
    for phase in phases:
        assert phase.zeros == pytest.approx(phase.ratio, abs=1e-3)
        assert zeros(phase.folder) == pytest.approx(phase.ratio, abs=1e-3)
        assert phase.result["steps"] == 2 * 19
    assert RunFolder(phases[-1].folder).config.method == Masked(removed=0.936)


def test_the_same_call_goes_on_and_another_is_refused(dense, tmp_path):
    first = retrain(dense, tmp_path / "out", weights=0.9, epochs=1, phases=2, quiet=True)
    before = (first[-1].folder / "model.safetensors").read_bytes()
    again = retrain(dense, tmp_path / "out", weights=0.9, epochs=1, phases=2, quiet=True)
    assert [phase.result for phase in again] == [phase.result for phase in first]
    assert (again[-1].folder / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match=r"^epochs=2: .* holds a retraining with epochs=1; choose another --out"):
        retrain(dense, tmp_path / "out", weights=0.9, epochs=2, phases=2, quiet=True)
    with pytest.raises(ConfigError, match=r"^weights=0.5: .* holds a retraining with weights=0.9"):
        retrain(dense, tmp_path / "out", weights=0.5, epochs=1, phases=2, quiet=True)
    request = tmp_path / "out" / "retrain.json"
    kept = request.read_text()
    change_record(request, run="0" * 16)
    with pytest.raises(ConfigError, match=r"^run=.* holds a retraining of another network"):
        retrain(dense, tmp_path / "out", weights=0.9, epochs=1, phases=2, quiet=True)
    request.write_text(kept)
    with pytest.raises(ConfigError, match=r"weight_decay"):
        retrain(dense, tmp_path / "out", weights=0.9, epochs=1, phases=2, weight_decay=1e-3, quiet=True)


def test_a_phase_starts_from_the_right_weights_even_if_their_file_was_damaged(dense, tmp_path):
    first = retrain(dense, tmp_path / "out", weights=0.9, epochs=1, quiet=True)
    weights = tmp_path / "out" / "phase-1.safetensors"
    kept = weights.read_bytes()
    model = (first[0].folder / "model.safetensors").read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 64]))
    shutil.rmtree(first[0].folder)
    again = retrain(dense, tmp_path / "out", weights=0.9, epochs=1, quiet=True)
    assert weights.read_bytes() == kept
    assert (again[0].folder / "model.safetensors").read_bytes() == model


def test_folders_of_others_are_left_alone(dense, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        retrain(dense, tmp_path / "file", weights=0.9, epochs=1, quiet=True)
    for folder in (dense, tmp_path):
        before = sorted(p.name for p in folder.iterdir())
        with pytest.raises(ConfigError, match="holds files, but no retraining"):
            retrain(dense, folder, weights=0.9, epochs=1, quiet=True)
        assert sorted(p.name for p in folder.iterdir()) == before


def test_less_than_is_removed_already_is_refused(dense, tmp_path):
    retrain(dense, tmp_path / "out", weights=0.9, epochs=1, quiet=True)
    with pytest.raises(ConfigError, match=r"holds the phases of a retraining; the last one is .*phase-1"):
        _ = RunFolder(tmp_path / "out").config
    with pytest.raises(ConfigError, match=r"90\.0\d% of the weights of .*phase-1 are 0 already"):
        retrain(tmp_path / "out" / "phase-1", tmp_path / "again", weights=0.5, epochs=1, quiet=True)


@pytest.mark.parametrize(
    "wrong", [{"weights": 0.0}, {"weights": 1.0}, {"phases": 0}, {"epochs": 0}, {"weight_decay": -1.0}], ids=str
)
def test_wrong_settings_are_named_before_anything_is_written(dense, tmp_path, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        retrain(dense, tmp_path / "out", **{"weights": 0.5, "epochs": 1, **wrong}, quiet=True)
    assert not (tmp_path / "out").exists()
