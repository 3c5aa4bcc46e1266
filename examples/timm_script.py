"""Train a ViT on digits with the parts of timm's script, by AdamW and by SFW over sizes, and shrink both. Half a minute."""

# Before timm, which imports a torchvision that may not fit this torch:
from sparsefw.integrations.timm import constrained, register

# isort: split
from functools import partial

import torch
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch.nn.functional import cross_entropy

from sparsefw import Sizes, curve
from sparsefw.data import load_digits

EPOCHS, BATCH, SHARES = 20, 64, (0.3, 0.5, 0.7, 0.9)
(images, labels), (test_images, test_labels) = load_digits("train"), load_digits("test")


@torch.no_grad()
def accuracy(net: torch.nn.Module) -> float:
    return 100 * float((net.eval()(test_images).argmax(1) == test_labels).float().mean())


def train(method: str, epochs: int = EPOCHS, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    register()
    model = VisionTransformer(img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=48, depth=2, num_heads=4)
    updates = len(images) // BATCH  # in an epoch
    groups = partial(constrained, kind="neurons", example=images[:2], steps=epochs * updates, report=None)
    usual = dict(lr=5e-3, weight_decay=0.05)
    if method == "AdamW":
        optimizer = create_optimizer_v2(model, opt="adamw", **usual)
    else:
        optimizer = create_optimizer_v2(model, opt="sfw", rest="adamw", param_group_fn=groups, **usual)
    schedule, _ = create_scheduler_v2(
        optimizer, "cosine", epochs, warmup_epochs=2, step_on_epochs=False, updates_per_epoch=updates
    )
    ema = ModelEmaV3(model, decay=0.98)
    sizes = Sizes(model, "neurons", example=images[:2])
    model.train()
    for update in range(epochs * updates):
        if update % updates == 0:
            batches = torch.randperm(len(images)).split(BATCH)
        chosen = batches[update % updates]
        optimizer.zero_grad()
        if method == "AdamW":
            cross_entropy(model(images[chosen]), labels[chosen]).backward()
        else:
            with sizes.mixed(update):
                cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        ema.update(model, step=update)
        schedule.step_update(num_updates=update + 1)
    return ema.module


if __name__ == "__main__":
    for method in ("AdamW", "SFW over sizes"):
        net = train(method)
        print(f"trained once by {method}, hidden units removed, never retrained: accuracy in % and size")
        print(curve(net, "neurons", SHARES, form="removed", calibration=images.split(100), evaluate=accuracy))
