"""timm makes an SFW by its factory; its loop trains, averages weights and resumes as with its own optimizers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from integrations.plain_loop import BATCHES, DECAY, EPOCHS, EXAMPLE, IMAGES, LR, assert_equal, batches
from sparsefw import SFW, Sizes, compress, load, save
from vision import require_vision

require_vision("timm:")
from timm.models import VisionTransformer, resume_checkpoint  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import create_scheduler_v2  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3, dispatch_clip_grad  # noqa: E402

from sparsefw.integrations.timm import constrained, register  # noqa: E402

STEPS = EPOCHS * BATCHES


def network() -> nn.Module:
    torch.manual_seed(0)
    return VisionTransformer(img_size=8, patch_size=4, in_chans=1, num_classes=10, embed_dim=16, depth=1, num_heads=2)


class Training:
    """The parts of timm's script."""

    def __init__(self, kind: str = "neurons") -> None:
        register()
        self.net = network()
        groups = partial(constrained, kind=kind, example=EXAMPLE, steps=STEPS, report=None)
        more = dict(rest="adamw", param_group_fn=groups)
        self.optimizer = create_optimizer_v2(self.net, opt="sfw", lr=LR / 50, weight_decay=DECAY, **more)
        self.schedule, _ = create_scheduler_v2(
            self.optimizer, num_epochs=EPOCHS, warmup_epochs=1, updates_per_epoch=BATCHES, step_on_epochs=False
        )
        self.ema = ModelEmaV3(self.net, decay=0.9)
        self.sizes = Sizes(self.net, kind, example=EXAMPLE)

    def train(self, epochs: range) -> None:
        self.net.train()
        for epoch in epochs:
            for i, (x, y) in enumerate(batches()):
                step = epoch * BATCHES + i
                with self.sizes.mixed(step):
                    cross_entropy(self.net(x), y).backward()
                dispatch_clip_grad(self.net.parameters(), 0.5, mode="agc")
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.ema.update(self.net, step=step)
                self.schedule.step_update(num_updates=step + 1)


def test_a_resumed_training_ends_in_the_same_weights(tmp_path):
    whole, resumed = Training(), Training()
    saver = CheckpointSaver(whole.net, whole.optimizer, model_ema=whole.ema, checkpoint_dir=str(tmp_path))
    whole.train(range(1))
    saver.save_checkpoint(epoch=0)
    whole.train(range(1, EPOCHS))
    path = tmp_path / "last.pth.tar"
    assert resume_checkpoint(resumed.net, str(path), optimizer=resumed.optimizer, log_info=False) == 1
    resumed.ema.module.load_state_dict(torch.load(path, weights_only=False)["state_dict_ema"])
    resumed.schedule.step_update(num_updates=BATCHES)
    resumed.train(range(1, EPOCHS))
    assert_equal(resumed.net, whole.net)
    assert_equal(resumed.ema.module, whole.ema.module)


def test_averaged_weights_can_be_compressed(tmp_path):
    training = Training()
    training.train(range(EPOCHS))
    small = compress(training.ema.module, neurons=0.5, calibration=batches())
    assert small.model.blocks[0].mlp.fc1.out_features == 32
    save(small, tmp_path / "small")
    with torch.no_grad():
        again = load(tmp_path / "small", network).model.eval()(IMAGES)
        assert torch.allclose(again, small.model.eval()(IMAGES), atol=1e-5)


def test_decay_follows_the_rules_of_timm():
    """Biases, norms, and what the model names have none; what has a region decays by its steps."""
    optimizer = Training().optimizer
    assert isinstance(optimizer, SFW)
    of = {name: group for group in optimizer.param_groups for name in group["param_names"]}
    assert of["blocks.0.mlp.fc1.weight"]["region"] is not None
    assert of["patch_embed.proj.weight"]["weight_decay"] == DECAY
    assert {of[name]["weight_decay"] for name in ("pos_embed", "cls_token", "norm.weight", "head.bias")} == {0.0}


def test_groups_are_asked_for():
    register()
    with pytest.raises(ValueError, match=r"^opt='sfw' needs param_group_fn=, such as partial\(constrained"):
        create_optimizer_v2(network(), opt="sfw", lr=0.1)
