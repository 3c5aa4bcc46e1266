"""Train a small ResNet on digits in a loop with Accelerate, by SGD and by SFW over sizes, and shrink both. Half a minute."""

# Before Accelerate, which imports a torchvision that may not fit this torch:
from sparsefw.integrations.accelerate import training_steps

# isort: split
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sparsefw import SFW, Sizes, constrain, curve
from sparsefw.data import load_digits
from sparsefw.models import build

EPOCHS, USUAL, SHARES = 12, dict(lr=0.1, momentum=0.9, weight_decay=5e-4), (0.3, 0.5, 0.7)
TRAIN, (test_images, test_labels) = load_digits("train"), load_digits("test")


@torch.no_grad()
def accuracy(net: torch.nn.Module) -> float:
    return 100 * float((net.eval()(test_images).argmax(1) == test_labels).float().mean())


def train(method: str, epochs: int = EPOCHS, seed: int = 0) -> torch.nn.Module:
    set_seed(seed)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*TRAIN), 64, shuffle=True, drop_last=True)
    net, loader = accelerator.prepare(build("resnet_digits", width=16), loader)
    steps, example = training_steps(accelerator, loader, epochs), TRAIN[0][:2]
    if method == "SGD":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), **USUAL)
    else:
        optimizer = SFW(constrain(net, "filters", example=example, steps=steps, report=None), **USUAL)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    optimizer, schedule = accelerator.prepare(optimizer, schedule)
    sizes = Sizes(net, "filters", example=example)
    accelerator.register_for_checkpointing(sizes)
    net.train()
    for step, (x, y) in enumerate(batch for _ in range(epochs) for batch in loader):
        optimizer.zero_grad()
        if method == "SGD":
            accelerator.backward(cross_entropy(net(x), y))
        else:
            with sizes.mixed(step):
                accelerator.backward(cross_entropy(net(x), y))
        optimizer.step()
        schedule.step()
    return accelerator.unwrap_model(net)


if __name__ == "__main__":
    for method in ("SGD", "SFW over sizes"):
        net = train(method)
        print(f"trained once by {method}, filters removed, never retrained: accuracy in % and size")
        print(curve(net, "filters", SHARES, form="removed", calibration=TRAIN[0].split(100), evaluate=accuracy))
