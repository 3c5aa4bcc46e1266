"""Networks by name: build("resnet18", classes=10, stem="cifar"). What is not listed in MODELS comes through the hub."""

from sparsefw.models.hub import import_torchvision
from sparsefw.models.registry import MODELS, ModelInfo, build, build_registered
from sparsefw.models.resnet import BasicBlock, Bottleneck, ResNet, Trunk

__all__ = [
    "MODELS", "BasicBlock", "Bottleneck", "ModelInfo", "ResNet", "Trunk", "build", "build_registered",
    "import_torchvision",
]  # fmt: skip
