"""Train a small ResNet on handwritten digits, by SGD and by SFW over sizes, and shrink both. About a minute on 2 cores."""

from contextlib import nullcontext

import torch
from torch import nn

from sparsefw import SFW, Sizes, compress, constrain, coupled_filters, curve, load, save
from sparsefw.data import load_digits
from sparsefw.models import build

EPOCHS, BATCH = 30, 64
images, labels = load_digits("train")
test_images, test_labels = load_digits("test")
calibration = images.split(100)
loss = nn.functional.cross_entropy


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    return 100 * float((net.eval()(test_images).argmax(1) == test_labels).float().mean())


for method in ("SGD", "SFW over sizes"):
    torch.manual_seed(0)
    net = build("resnet_digits")
    steps = EPOCHS * len(images.split(BATCH))
    sizes = None
    if method == "SFW over sizes":
        sizes = Sizes(net, "filters", example=images[:2])
        rules = coupled_filters(net, images[:2])  # filters that must be removed together are constrained together
        groups = constrain(net, rules, steps=steps, renewals=8, k=0.3, report=None)
        optimizer = SFW(groups, lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    step = 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            net.train()
            optimizer.zero_grad()
            with (
                nullcontext() if sizes is None else sizes.mixed(step)
            ):  # half of the batch sees a size drawn for the step
                loss(net(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
            step += 1
    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    print(f"trained once by {method}, filters removed, never retrained: accuracy in % and size")
    print(curve(net, "filters", shares, form="removed", calibration=calibration, evaluate=accuracy))

small = compress(net, filters=0.8, calibration=calibration)
print(f"80 % of the filters removed: {accuracy(small.model):.1f} % correct")
print(small)
save(small, "runs/quickstart")
print(f"saved to runs/quickstart, loaded again: {accuracy(load('runs/quickstart').model):.1f} % correct")
