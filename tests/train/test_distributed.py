"""Two processes that torchrun starts train as one does on the same batches; one of them writes, both stop together."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from train.harness import (
    TESTS,
    assert_same_run,
    being_written,
    checkpoint_steps,
    children,
    command,
    ended,
    reached,
    result,
    send_when,
    torchrun,
    trained,
    untimed,
)

GROUP_NORM = "model.name=train.networks:group_norm"
FAULTY = ("model.name=train.networks:norm_and_dropout", "data.batch_size=60")  # of two processes as well as of three
ONE_NORM = "model.name=train.networks:one_batch_norm"

pytestmark = pytest.mark.slow


OUTPUTS = ("sizes.both=true", "sizes.targets=outputs", "sizes.form=masked")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_close(found: Path, expected: Path, tolerance: float) -> None:
    first, second = weights(found), weights(expected)
    assert list(first) == list(second)
    for name, value in second.items():
        torch.testing.assert_close(
            first[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    ("variant", "further"),
    [
        ("sgd", ()),
        ("filters", ()),
        ("rank", ()),
        ("sgd", ("sizes.kind=weights",)),
        ("filters", ("sizes.form=masked",)),
        ("sgd", OUTPUTS),
    ],
    ids=str,
)
def test_two_processes_arrive_at_the_weights_of_one(tmp_path, variant, further):
    """Four steps, in parts, on a network whose layers look at one image at a time; the figures are those of all images."""
    changes = (GROUP_NORM, "engine.accumulate=2", "train.ema=0.9", "train.lr=0.02", "data.batch_size=256", *further)
    trained(command(f"digits-resnet-{variant}", tmp_path / "one", *changes, epochs=1))
    _, said = ended(torchrun(command(f"digits-resnet-{variant}", tmp_path / "two", *changes, epochs=1)))
    assert "batch norms" not in said
    assert_close(tmp_path / "two", tmp_path / "one", 1e-5)
    (one,), (two,) = untimed(tmp_path / "one"), untimed(tmp_path / "two")
    for part in ("train", "validation"):
        assert two[part]["loss"] == pytest.approx(one[part]["loss"], rel=1e-3)
        assert two[part]["accuracy"] == pytest.approx(one[part]["accuracy"], abs=0.8)  # one of 140 images
    assert (two["epoch"], two["step"], two["lr"]) == (one["epoch"], one["step"], one["lr"])


def test_statistics_and_figures_from_shares_of_the_images_are_those_from_all(tmp_path):
    """At a learning rate that moves nothing, two processes must measure what one does: on 140 and 397 images, an odd number."""
    changes = (ONE_NORM, "train.lr=1e-30", "data.batch_size=630")
    trained(command("digits-resnet-sgd", tmp_path / "one", *changes, epochs=1))
    ended(torchrun(command("digits-resnet-sgd", tmp_path / "two", *changes, epochs=1)))
    assert_close(tmp_path / "two", tmp_path / "one", 1e-6)
    for part in ("validation", "test"):
        assert result(tmp_path / "two")[part] == pytest.approx(result(tmp_path / "one")[part], rel=1e-6)


def test_one_process_writes_and_speaks(tmp_path):
    _, err = ended(torchrun(command("digits-resnet-filters", tmp_path / "run", epochs=2)))
    assert err.count("epoch   1/2") == 1
    assert "2 processes" in err
    assert err.count("batch norms see the 32 images of their own process only, of a batch of 64") == 1
    assert [row["epoch"] for row in untimed(tmp_path / "run")] == [1, 2]
    assert sorted(os.listdir(tmp_path / "run")) == [
        ".lock",
        "config.yaml",
        "data.json",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "regions.txt",
        "result.json",
        "run.json",
        "spectra.json",
        "training.png",
        "training.svg",
    ]


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_killed_both_end_and_the_same_command_goes_on_to_the_same_end(tmp_path, victim):
    words = command("digits-resnet-rank", tmp_path / "run", "train.ema=0.9")
    launcher = torchrun(words)

    def moment() -> bool:
        if max(checkpoint_steps(tmp_path / "run"), default=0) < 24:
            return False
        os.kill(children(launcher.pid)[victim], signal.SIGKILL)
        return True

    assert send_when(launcher, moment, 0)
    ended(launcher, code=1)
    assert not (tmp_path / "run" / "result.json").exists()
    assert "resuming from step" in ended(torchrun(words))[1]
    ended(torchrun(command("digits-resnet-rank", tmp_path / "whole", "train.ema=0.9")))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of the same run by so many processes, never killed."""

    @functools.cache
    def folder(processes: int) -> Path:
        path = tmp_path_factory.mktemp("uninterrupted") / str(processes)
        ended(torchrun(command("digits-resnet-rank", path, *FAULTY), processes))
        return path

    return folder


@pytest.mark.parametrize(
    ("processes", "victim", "moment", "seconds"),
    [
        (2, 0, lambda folder: reached(folder, 24)(), 0),
        (2, 1, being_written, 0),
        (3, 0, being_written, 0),
        (3, 2, lambda folder: reached(folder, 24)(), 0),
        (2, 0, lambda folder: bool(untimed(folder)), 600),
        (2, 1, lambda folder: (folder / ".lock").exists(), 600),
    ],
    ids=["first", "second-writing", "first-of-three-writing", "third", "first-without-checkpoint", "second-at-start"],
)
def test_torchrun_restarts_the_killed_and_the_run_ends_as_if_nothing_had_happened(
    tmp_path, uninterrupted, processes, victim, moment, seconds
):
    """Whichever process is killed, and whenever: the others end, all resume, and one restart is enough."""
    folder = tmp_path / "run"
    words = command("digits-resnet-rank", folder, *FAULTY, f"engine.checkpoint_seconds={seconds}")
    launcher = torchrun(words, processes, restarts=1)

    def killed() -> bool:
        if not moment(folder):
            return False
        os.kill(children(launcher.pid)[victim], signal.SIGKILL)
        return True

    assert send_when(launcher, killed, 0)
    _, err = ended(launcher)
    assert err.count("exitcode: -9") == 1
    assert_same_run(folder, uninterrupted(processes))


def test_three_processes_that_are_asked_to_stop_go_on_to_the_last_bit(tmp_path, uninterrupted):
    """Their gradients are added in the same order after the resume."""
    words = command("digits-resnet-rank", tmp_path / "run", *FAULTY)
    launcher = torchrun(words, 3)
    assert send_when(launcher, reached(tmp_path / "run", 24), signal.SIGTERM)
    ended(launcher, code=None)
    assert "resuming from step" in ended(torchrun(words, 3))[1]
    assert_same_run(tmp_path / "run", uninterrupted(3))


@pytest.mark.parametrize("late", [0, 1])
def test_restarted_processes_meet_although_the_store_has_the_addresses_of_dead_ones(tmp_path, late):
    """One starts seconds after the other, which has then only the addresses of the first attempt to read."""
    script = Path(TESTS) / "train" / "restarted.py"
    ended(torchrun([str(script), str(late), str(tmp_path / "sum")], restarts=1))
    assert (tmp_path / "sum").read_text() == "2.0"


@pytest.mark.parametrize("asked", ["launcher", 0, 1])
def test_asked_to_stop_all_stop_at_the_same_step_and_lose_nothing(tmp_path, asked):
    """Whoever was asked. There is no other checkpoint than the one written then."""
    words = command("digits-resnet-sgd", tmp_path / "run", GROUP_NORM, "engine.checkpoint_seconds=600")
    launcher = torchrun(words)

    def moment() -> bool:
        if len(untimed(tmp_path / "run")) < 1:
            return False
        os.kill(launcher.pid if asked == "launcher" else children(launcher.pid)[asked], signal.SIGTERM)
        return True

    assert send_when(launcher, moment, 0)
    _, err = ended(launcher, code=None)
    (step,) = checkpoint_steps(tmp_path / "run")
    assert f"stopped at step {step} of 57" in err
    ended(torchrun(words))
    ended(torchrun(command("digits-resnet-sgd", tmp_path / "whole", GROUP_NORM)))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """In the middle of an epoch of 78 steps: its metrics are those of all processes that there were."""
    changes = (GROUP_NORM, "train.lr=0.02", "data.batch_size=16")
    words = command("digits-resnet-sgd", tmp_path / "run", *changes, epochs=2)
    launcher = torchrun(words)
    assert send_when(launcher, reached(tmp_path / "run", 16), signal.SIGTERM)
    ended(launcher, code=None)
    assert 16 <= max(checkpoint_steps(tmp_path / "run")) < 78
    trained(words)
    trained(command("digits-resnet-sgd", tmp_path / "one", *changes, epochs=2))
    for found, expected in zip(untimed(tmp_path / "run"), untimed(tmp_path / "one"), strict=True):
        assert found["train"] == pytest.approx(expected["train"], rel=2e-3)


@pytest.mark.parametrize("change", ["train.lr=0.5", "data.batch_size=63", "data.name=cifar10"])
def test_what_is_wrong_ends_all_processes(tmp_path, change):
    """The second one must not wait for a first that has gone; nothing in the folder is changed."""
    words = command("digits-resnet-sgd", tmp_path / "run", epochs=1)
    trained(words)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    folder = tmp_path / ("run" if change.startswith("train") else "other")
    again = command("digits-resnet-sgd", folder, change, epochs=1)
    _, err = ended(torchrun(again, SPARSEFW_DATA=str(tmp_path)), code=1)  # torchrun's own
    assert change.split(".")[1].split("=")[0] in err or "cifar10" in err
    assert "exitcode  : 2" in err
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert folder.name == "run" or not folder.exists()


def test_processes_that_all_see_the_same_batch_train_as_one_with_that_batch(tmp_path):
    """Batch norms of a CPU look at their own process's images: fed the same ones, two must be one."""
    script = Path(TESTS) / "train" / "same_batch.py"
    ended(torchrun([str(script), str(tmp_path / "two.pt")]))
    trained([str(script), str(tmp_path / "one.pt")])
    one, two = (torch.load(tmp_path / name) for name in ("one.pt", "two.pt"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-6, atol=1e-6, msg=name)


def test_synchronised_norms_train_over_sizes_as_one_process_with_all_images(tmp_path):
    """As the shipped recipes: smaller networks learn the outputs of the whole one, whose norms see the images of all."""
    script = Path(TESTS) / "train" / "synchronised_sizes.py"
    ended(torchrun([str(script), str(tmp_path / "two.pt")]))
    trained([str(script), str(tmp_path / "one.pt")])
    one, two = (torch.load(tmp_path / name) for name in ("one.pt", "two.pt"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize("sharded", ["before constrain", "after constrain", "after SFW"])
def test_sharded_parameters_are_refused_by_name(sharded):
    """Made before, they are those of the model; made after, the model no longer has those that SFW has."""
    script = Path(TESTS) / "train" / "sharded.py"
    out, _ = ended(torchrun([str(script), sharded]))
    expected = (
        "TypeError: 0.weight: sharded parameters (DTensor) are not supported"
        if sharded == "before constrain"
        else "RuntimeError: SFW: the model no longer has 0.weight, 0.bias, 2.weight and 1 more"
    )
    assert out.count(expected) == 2, out
