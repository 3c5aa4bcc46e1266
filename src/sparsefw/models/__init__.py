"""Networks by name, such as build("resnet18", classes=10, stem="cifar"): those of MODELS, timm or torchvision, or your own."""

from sparsefw.models.external import import_torchvision
from sparsefw.models.huggingface import is_of_transformers, record_of
from sparsefw.models.own_networks import is_own_network, model_factory, require_trusted_network
from sparsefw.models.pretrained import LeftOut, LoadReport, load_weights, read_weights
from sparsefw.models.pretrained_folder import open_pretrained
from sparsefw.models.pspnet import PSPNet
from sparsefw.models.registry import MODELS, ModelInfo, build, build_named, build_registered, is_rebuilt_by_name
from sparsefw.models.resnet import BasicBlock, Bottleneck, ResNet, Trunk
from sparsefw.models.skeletons import BUILD_ERRORS, build_for, build_skeleton
from sparsefw.models.vgg import VGG
from sparsefw.models.vit import ViT
from sparsefw.models.wide_resnet import WideResNet

__all__ = [
    "BUILD_ERRORS", "MODELS", "VGG", "BasicBlock", "Bottleneck", "LeftOut", "LoadReport", "ModelInfo", "PSPNet", "ResNet",
    "Trunk", "ViT", "WideResNet", "build", "build_for", "build_named", "build_registered", "build_skeleton",
    "import_torchvision", "is_of_transformers", "is_own_network", "is_rebuilt_by_name", "load_weights", "model_factory",
    "open_pretrained", "read_weights", "record_of", "require_trusted_network",
]  # fmt: skip
