"""Lightning trains as the plain loop does, resumes to the bit, and leaves a compressed network behind."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

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
from sparsefw import SFW, constrain, load
from sparsefw.integrations.requirements import prepare_torchvision

prepare_torchvision()
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*num_workers.*"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # of the checkpoint that is resumed
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
]
pytest.importorskip("lightning", reason="needs lightning: pip install 'sparsefw[lightning]'")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from sparsefw.integrations.lightning import CompressCallback, SizesCallback  # noqa: E402


class Classifier(LightningModule):
    def __init__(self, kind: str = "filters") -> None:
        super().__init__()
        self.kind = kind
        self.net = network()
        self.example_input_array = EXAMPLE

    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        steps = self.trainer.estimated_stepping_batches
        groups = constrain(self.net, self.kind, example=EXAMPLE, steps=steps, report=None)
        optimizer = SFW(groups, lr=LR, weight_decay=DECAY)
        return [optimizer], [{"scheduler": falling(optimizer, steps), "interval": "step"}]


def trainer(*callbacks, **settings) -> Trainer:
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    settings = {"max_epochs": EPOCHS, **settings}
    return Trainer(callbacks=list(callbacks), enable_checkpointing=saves, **quiet, **settings)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(IMAGES, LABELS), BATCH)


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, CLIP)])
def test_it_trains_as_the_plain_loop(accumulate, clip):
    module = Classifier()
    settings = dict(accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    trainer(SizesCallback("filters", network="net"), **settings).fit(module, loader())
    assert_equal(module.net, trained(accumulate=accumulate, clip=clip))


class Resumable(DataLoader):
    """Goes on, in the epoch that was interrupted, behind the batches that were seen: Lightning saves it with a checkpoint."""

    seen = 0

    def __iter__(self):
        for i, batch in list(enumerate(super().__iter__()))[self.seen % len(self) :]:
            self.seen = i + 1
            yield batch

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("kind", ["filters", "rank"])
@pytest.mark.parametrize("step", [BATCHES, BATCHES + 2], ids=["at the end of an epoch", "in an epoch"])
def test_a_resumed_training_ends_in_the_same_weights(tmp_path, kind, step):
    def fit(folder, **resumed):
        module = Classifier(kind)
        saved = ModelCheckpoint(tmp_path / folder, filename="{step}", every_n_train_steps=step, save_top_k=-1)
        data = Resumable(TensorDataset(IMAGES, LABELS), BATCH)
        # With max_steps, Lightning knows the length without opening the loader, whose state it would not restore after that.
        length = dict(max_steps=EPOCHS * BATCHES, max_epochs=-1)
        trainer(SizesCallback(kind, network="net"), saved, **length).fit(module, data, **resumed)
        return module.net

    whole = fit("whole")
    assert_equal(whole, trained(kind))
    assert_equal(fit("resumed", ckpt_path=tmp_path / "whole" / f"step={step}.ckpt"), whole)


def test_after_an_exception_the_network_is_as_it_was():
    class Failing(Classifier):
        def training_step(self, batch, index):
            raise ArithmeticError

    module = Failing()
    classes = [type(part) for part in module.modules()]
    with pytest.raises(ArithmeticError):
        trainer(SizesCallback("filters", network="net")).fit(module, loader())
    assert [type(part) for part in module.modules()] == classes


def test_an_epoch_that_the_module_ends_leaves_the_network_whole():
    class Skipping(Classifier):
        def on_train_batch_start(self, batch, index):
            return -1 if index == 2 else None

        def on_train_epoch_end(self):
            assert not any(type(part).__name__ == "Sliced" or hasattr(part, "_slice_ends") for part in self.modules())

    trainer(SizesCallback("filters", network="net"), max_epochs=2).fit(Skipping(), loader())


def test_the_end_of_a_fit_leaves_a_compressed_network(tmp_path):
    module = Classifier()
    shrink = CompressCallback(tmp_path / "small", network="net", filters=0.5, refit=True, score="activation")
    trainer(SizesCallback("filters", network="net"), shrink).fit(module, loader())
    again = load(tmp_path / "small").model
    assert sum(p.numel() for p in again.parameters()) < sum(p.numel() for p in module.net.parameters()) / 2
    with torch.no_grad():
        assert torch.allclose(again.eval()(IMAGES), shrink.compressed.model.eval()(IMAGES), atol=1e-5)


def test_what_would_fail_at_the_end_fails_at_the_beginning(tmp_path):
    steps = []

    class Counting(Classifier):
        def training_step(self, batch, index):
            steps.append(index)
            return super().training_step(batch, index)

    for shrink, message in [
        (CompressCallback(tmp_path / "small", network="net", filter=0.5), "filter"),
        (CompressCallback(tmp_path / "small", network="body", filters=0.5), r"network='body'.* it has net$"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            trainer(shrink).fit(Counting(), loader())
    assert not steps


def test_an_unknown_length_is_refused():
    with pytest.raises(
        ValueError, match="steps must be an int of at least 1, the number of steps of the whole training"
    ):
        trainer(SizesCallback("filters", network="net"), max_epochs=-1).fit(Classifier(), loader())


def test_batches_of_one_are_refused():
    alone = DataLoader(TensorDataset(IMAGES, LABELS), 1)
    with pytest.raises(ValueError, match=r"^of a batch of 1 in this process, one of 2 networks sees nothing"):
        trainer(SizesCallback("filters", network="net")).fit(Classifier(), alone)


def test_an_example_is_asked_for():
    module = Classifier()
    module.example_input_array = None
    with pytest.raises(ValueError, match=r"^SizesCallback needs an input of the network: give it example="):
        trainer(SizesCallback("filters", network="net")).fit(module, loader())


def test_sharded_weights_are_refused(monkeypatch):
    from lightning.pytorch.strategies import FSDPStrategy, SingleDeviceStrategy

    from sparsefw.integrations import lightning

    monkeypatch.setattr(lightning, "_SHARDING", (SingleDeviceStrategy,))
    with pytest.raises(ValueError, match=r"^SingleDeviceStrategy shards weights, and SFW needs each of them whole"):
        trainer(SizesCallback("filters", network="net")).fit(Classifier(), loader())
    assert FSDPStrategy
