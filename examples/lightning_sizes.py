"""Train a small ResNet on digits in Lightning, by SGD and by SFW over sizes, and shrink both. Under a minute on a CPU core."""

# Before Lightning, which imports a torchvision that may not fit this torch:
from sparsefw.integrations.lightning import CompressCallback, SizesCallback

# isort: split
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sparsefw import SFW, constrain, curve, load
from sparsefw.data import load_digits
from sparsefw.models import build

EPOCHS, USUAL, SHARES = 12, dict(lr=0.1, momentum=0.9, weight_decay=5e-4), (0.3, 0.5, 0.7)
TRAIN, (test_images, test_labels) = load_digits("train"), load_digits("test")


class Classifier(LightningModule):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method
        self.net = build("resnet_digits", width=16)
        self.example_input_array = TRAIN[0][:2]

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> tuple[list, list]:
        steps = self.trainer.estimated_stepping_batches
        if self.method == "SGD":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), **USUAL)
        else:
            groups = constrain(self.net, "filters", example=self.example_input_array, steps=steps, report=None)
            optimizer = SFW(groups, **USUAL)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@torch.no_grad()
def accuracy(net: torch.nn.Module) -> float:
    return 100 * float((net.eval()(test_images).argmax(1) == test_labels).float().mean())


def train(method: str, epochs: int = EPOCHS, seed: int = 0) -> torch.nn.Module:
    seed_everything(seed, verbose=False)
    module = Classifier(method)
    loader = DataLoader(TensorDataset(*TRAIN), 64, shuffle=True, drop_last=True)
    callbacks = [
        SizesCallback("filters", network="net"),
        CompressCallback("runs/lightning", network="net", filters=0.7),
    ]
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", callbacks=callbacks * (method != "SGD"), **quiet)
    trainer.fit(module, loader)
    return module.net


if __name__ == "__main__":
    for method in ("SGD", "SFW over sizes"):
        net = train(method)
        print(f"trained once by {method}, filters removed, never retrained: accuracy in % and size")
        print(curve(net, "filters", SHARES, form="removed", calibration=TRAIN[0].split(100), evaluate=accuracy))
    print(f"saved to runs/lightning, loaded again: {accuracy(load('runs/lightning').model):.1f} % correct")
