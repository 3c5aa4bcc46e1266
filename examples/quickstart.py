"""Train a small ResNet on handwritten digits, by SGD and by SFW over sizes, and shrink both. About a minute on 2 cores."""

import torch
from torch import nn

from sparsefw import SFW, Sizes, compress, constrain, coupled_filters, curve, load, save
from sparsefw.data import load_digits
from sparsefw.models import build

EPOCHS, BATCH = 30, 64
images, labels = load_digits("train")
test_images, test_labels = load_digits("test")
calibration = images.split(100)


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
    for step in range(steps):
        if step % len(images.split(BATCH)) == 0:
            batches = iter(torch.randperm(len(images)).split(BATCH))
        x, y = (part[batch] for batch in [next(batches)] for part in (images, labels))
        half = len(x) // 2 if sizes else 0
        optimizer.zero_grad()
        net.train()
        if sizes:  # half of the batch sees a smaller network, of a size that is drawn for the step
            with sizes.smaller(sizes.draw(step)):
                (nn.functional.cross_entropy(net(x[:half]), y[:half]) / 2).backward()
        (nn.functional.cross_entropy(net(x[half:]), y[half:]) / (2 if sizes else 1)).backward()
        optimizer.step()
        schedule.step()
    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    print(f"trained once by {method}, filters removed, never retrained: accuracy in % and size")
    print(curve(net, "filters", shares, form="removed", calibration=calibration, evaluate=accuracy))

small = compress(net, filters=0.8, calibration=calibration)
print(f"80 % of the filters removed: {accuracy(small.model):.1f} % correct")
print(small)
save(small, "runs/quickstart")
print(f"saved to runs/quickstart, loaded again: {accuracy(load('runs/quickstart').model):.1f} % correct")
