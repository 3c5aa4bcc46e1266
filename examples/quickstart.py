"""Train a small ResNet on handwritten digits, by SGD and by SFW over sizes, and shrink both. About a minute on 2 cores."""

import torch
from torch.nn.functional import cross_entropy

from sparsefw import SFW, Sizes, compress, constrain, curve, load, save
from sparsefw.data import load_digits
from sparsefw.models import build

EPOCHS, BATCH, USUAL = 30, 64, dict(lr=0.1, momentum=0.9, weight_decay=5e-4)
(images, labels), (test_images, test_labels) = load_digits("train"), load_digits("test")


@torch.no_grad()
def accuracy(net: torch.nn.Module) -> float:
    return 100 * float((net.eval()(test_images).argmax(1) == test_labels).float().mean())


for method in ("SGD", "SFW over sizes"):
    torch.manual_seed(0)
    net = build("resnet_digits")
    steps = EPOCHS * len(images.split(BATCH))
    # With an example, what is constrained is what compress can remove later, and what goes together decays together.
    groups = constrain(net, "filters", example=images[:2], steps=steps, renewals=8, report=None)
    sizes = Sizes(net, "filters", example=images[:2], distribution="logarithm")
    optimizer = torch.optim.SGD(net.parameters(), **USUAL) if method == "SGD" else SFW(groups, **USUAL)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for step, batch in enumerate(b for _ in range(EPOCHS) for b in torch.randperm(len(images)).split(BATCH)):
        net.train().zero_grad()
        x, y = images[batch], labels[batch]
        if method == "SGD":
            cross_entropy(net(x), y).backward()
        else:
            with sizes.mixed(step, draws=4):  # the whole network sees every image, and teaches four smaller ones
                small, whole = net(x.repeat(2, 1, 1, 1)).chunk(2)
                (cross_entropy(whole, y) / 2 + cross_entropy(small, whole.detach().softmax(1)) / 2).backward()
        optimizer.step()
        schedule.step()
    print(f"trained once by {method}, filters removed, never retrained: accuracy in % and size")
    shares = [0.5, 0.6, 0.7, 0.8, 0.9]
    print(curve(net, "filters", shares, form="removed", calibration=images.split(100), evaluate=accuracy))

small = compress(net, filters=0.8, calibration=images.split(100))
print(small)
save(small, "runs/quickstart")
print(f"saved to runs/quickstart, loaded again: {accuracy(load('runs/quickstart').model):.1f} % correct")
