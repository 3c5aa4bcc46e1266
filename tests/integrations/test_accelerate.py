"""A loop with Accelerate trains as the plain one does, resumes to the bit, and knows its number of steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from integrations.plain_loop import (
    BATCH,
    BATCHES,
    CLIP,
    DECAY,
    EPOCHS,
    EXAMPLE,
    IMAGES,
    LABELS,
    LR,
    assert_equal,
    falling,
    network,
    trained,
)
from sparsefw import SFW, Sizes, compress, constrain, load, save
from sparsefw.integrations.requirements import prepare_torchvision

prepare_torchvision()
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'sparsefw[transformers]'")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402

from sparsefw.integrations.accelerate import training_steps  # noqa: E402

ROOT = Path(__file__).parents[2]


class Training:
    """What a script has: it can be saved after any step, and goes on from there."""

    def __init__(self, kind: str = "filters", accumulate: int = 1) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        loader = DataLoader(TensorDataset(IMAGES, LABELS), BATCH)
        self.net, self.loader = self.accelerator.prepare(network(), loader)
        steps = training_steps(self.accelerator, self.loader, EPOCHS)
        groups = constrain(self.net, kind, example=EXAMPLE, steps=steps, report=None)
        optimizer = SFW(groups, lr=LR, weight_decay=DECAY)
        self.optimizer, self.schedule = self.accelerator.prepare(optimizer, falling(optimizer, steps))
        self.sizes = Sizes(self.net, kind, example=EXAMPLE)
        self.accelerator.register_for_checkpointing(self.sizes)

    def train(self, begin: int = 0, end: int = EPOCHS, clip: float | None = None) -> Training:
        accumulate = self.accelerator.gradient_accumulation_steps
        for batch, (x, y) in enumerate((batch for _ in range(begin, end) for batch in self.loader), begin * BATCHES):
            with self.accelerator.accumulate(self.net), self.sizes.mixed(batch // accumulate):
                self.accelerator.backward(cross_entropy(self.net(x), y))
                if clip is not None and self.accelerator.sync_gradients:
                    parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
                    self.accelerator.clip_grad_norm_(parameters, clip)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
        return self


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, CLIP)])
def test_it_trains_as_the_plain_loop(accumulate, clip):
    assert_equal(Training(accumulate=accumulate).train(clip=clip).net, trained(accumulate=accumulate, clip=clip))


@pytest.mark.parametrize("kind", ["filters", "rank"])
def test_a_resumed_training_ends_in_the_same_weights(tmp_path, kind):
    first = Training(kind).train(end=1)
    first.accelerator.save_state(tmp_path)
    whole = first.train(begin=1).net
    second = Training(kind)
    second.accelerator.load_state(tmp_path)
    assert_equal(second.train(begin=1).net, whole)


def test_what_it_trained_can_be_compressed(tmp_path):
    training = Training().train()
    small = compress(training.accelerator.unwrap_model(training.net), filters=0.5, calibration=training.loader)
    save(small, tmp_path / "small")
    with torch.no_grad():
        again = load(tmp_path / "small").model.eval()(IMAGES)
        assert torch.allclose(again, small.model.eval()(IMAGES), atol=1e-5)


@pytest.mark.slow
def test_two_processes_take_half_of_the_steps_and_end_in_the_same_weights(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    paths = [str(ROOT / part) for part in ("src", "tests", "examples")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    worker = Path(__file__).with_name("two_processes.py")
    done = subprocess.run([*torchrun, worker, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["steps"] == second["steps"] == EPOCHS * BATCHES // 2
    assert first["planned"] == {first["steps"]}
    assert_equal(first["parameters"], second["parameters"])


@pytest.mark.parametrize(("accumulate", "at_ends", "steps"), [(1, True, 18), (4, True, 6), (4, False, 4)])
def test_steps_by_hand(accumulate, at_ends, steps):
    """Six batches: four and two, and a step at the end of each of three epochs; or 18 batches in four steps and two batches."""
    plugin = GradientAccumulationPlugin(num_steps=accumulate, sync_with_dataloader=at_ends)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    loader = accelerator.prepare(DataLoader(TensorDataset(IMAGES, LABELS), BATCH))
    assert training_steps(accelerator, loader, epochs=3) == steps
    net = torch.nn.Linear(1, 1)
    optimizer = accelerator.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
    taken = 0
    for _ in range(3):
        for _ in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(torch.ones(1, 1)).sum())
                optimizer.step()
                taken += accelerator.sync_gradients
    assert taken == steps


def test_what_has_no_known_number_of_steps_is_refused(monkeypatch):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(IMAGES, LABELS, strict=True))

    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match=r"^this loader has the batches of all processes: give the one that"):
        training_steps(accelerator, DataLoader(TensorDataset(IMAGES, LABELS), BATCH), 1)
    with pytest.raises(ValueError, match=r"^the loader does not know its number of batches: count the steps yourself"):
        training_steps(accelerator, accelerator.prepare(DataLoader(Stream(), BATCH)), 1)
    from sparsefw.integrations import accelerate

    monkeypatch.setattr(accelerate, "_SHARDING", (accelerator.distributed_type,))
    with pytest.raises(ValueError, match=r"^NO shards weights, and SFW needs each of them whole"):
        training_steps(accelerator, accelerator.prepare(DataLoader(TensorDataset(IMAGES, LABELS), BATCH)), 1)
