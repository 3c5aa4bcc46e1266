"""The registry of networks, and the record from which a registered network is built again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from sparsefw.models import external, huggingface, resnet, vgg
from sparsefw.models.arguments import check_argument_names
from sparsefw.models.own_networks import build_from_code
from sparsefw.models.pspnet import PSPNet
from sparsefw.models.vit import ViT
from sparsefw.models.wide_resnet import WideResNet
from sparsefw.own_code import names_code

RESNET = "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, arXiv:1512.03385"
WIDE_RESNET = "Zagoruyko, Komodakis: Wide Residual Networks, arXiv:1605.07146"
PSPNET = "Zhao, Shi, Qi, Wang, Jia: Pyramid Scene Parsing Network, arXiv:1612.01105"
VGG = "Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv:1409.1556"
VIT = "Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale, arXiv:2010.11929"


@dataclass(frozen=True)
class ModelInfo:
    """A registered network.

    name          how files and configurations call it
    build         makes it
    input_shape   channels, height and width of its inputs by default
    description   for `sparsefw list models`
    paper         where it was published
    """

    name: str
    build: Callable[..., nn.Module]
    input_shape: tuple[int, int, int]
    description: str
    paper: str


_INFOS = (
    *(
        ModelInfo(name, partial(resnet.ResNet, *plan), (3, 224, 224), f"ResNet-{name.removeprefix('resnet')}", RESNET)
        for name, plan in resnet.PLANS.items()
    ),
    ModelInfo(
        "resnet_digits",
        partial(resnet.ResNet, resnet.BasicBlock, (1, 1, 1), classes=10, stem="cifar", in_channels=1, width=32),
        (1, 8, 8),
        "three residual blocks, 32 to 128 channels wide, for 8 x 8 images of digits",
        RESNET,
    ),
    ModelInfo(
        "wide_resnet",
        WideResNet,
        (3, 32, 32),
        "WideResNet-28x10 for 32 x 32 images; depth and widen make others",
        WIDE_RESNET,
    ),
    *(
        ModelInfo(
            f"pspnet_{name}",
            partial(PSPNet, *resnet.PLANS[name]),
            (3, 713, 713),
            f"PSPNet on a ResNet-{name.removeprefix('resnet')} of output stride 8, with an auxiliary head",
            PSPNET,
        )
        for name in ("resnet18", "resnet50", "resnet101")
    ),
    *(
        ModelInfo(
            name,
            partial(vgg.VGG, plan),
            (3, 224, 224),
            f"VGG-{name.removeprefix('vgg').removesuffix('_bn')} with batch norm",
            VGG,
        )
        for name, plan in vgg.PLANS.items()
    ),
    ModelInfo(
        "vit_tiny",
        ViT,
        (3, 32, 32),
        "a vision transformer for 32 x 32 images: patches of 4 x 4, nine blocks of width 192, three heads",
        VIT,
    ),
)

MODELS: dict[str, ModelInfo] = {info.name: info for info in _INFOS}


def build(name: str, /, **arguments: Any) -> nn.Module:
    """Build a network by name, with fresh weights.

    Args:
        name: a key of MODELS; "timm:NAME" or "torchvision:NAME", never with downloaded weights, and with arguments of its shape
            and its dropout only; "transformers:CLASS", with its configuration as arguments.
        arguments: of the network, as plain values: numbers, text, booleans, None, and lists and dictionaries of them.

    Returns:
        The network. Its attribute `built_from` is the record from which `build_registered` builds it again.

    >>> net = build("resnet18", classes=10, stem="cifar", width=4)
    >>> net.built_from
    {'name': 'resnet18', 'arguments': {'classes': 10, 'stem': 'cifar', 'width': 4}}
    """
    return build_named(name, arguments)


def build_named(
    name: str, arguments: Mapping[str, Any], *, trust: bool = False, field: str = "model.name"
) -> nn.Module:
    """Build a network by a name that may also be "package.module:Attribute", the user's own class or function.

    Args:
        trust: whether the module of such a name may be imported, which runs it.
        field: where the name is written, for messages.
    """
    if is_rebuilt_by_name(name) or not names_code(name):
        return build_registered({"name": name, "arguments": dict(arguments)})
    plain_arguments = _plain(name, arguments)
    return _with_record(build_from_code(name, plain_arguments, trust, field), name, plain_arguments)


def is_rebuilt_by_name(name: str) -> bool:
    """Return whether a file may name this network: those of this package, timm, torchvision or transformers, and no others."""
    return name in MODELS or name.startswith(external.LIBRARIES)


def build_registered(record: dict[str, Any]) -> nn.Module:
    """Build the network of a record `{"name": ..., "arguments": {...}}` that was read from a file.

    Only names in MODELS are accepted, and networks of timm and torchvision with arguments of their shape and dropout, and
    those of transformers with configurations that name neither files nor code: no file can make this run foreign code, and
    nothing is downloaded.

    >>> build_registered({"name": "vit_tiny", "arguments": {"width": 24, "depth": 1}}).head.in_features
    24
    """
    if not isinstance(record, dict) or set(record) != {"name", "arguments"}:
        raise ValueError(f"the record of a model must have the fields name and arguments, got {record!r}")
    name = record["name"]
    arguments = record["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(f"the record of a model must have a string as name, a dictionary as arguments, got {record!r}")
    if not is_rebuilt_by_name(name):
        raise ValueError(external.unknown_model(name, MODELS))
    arguments = _plain(name, arguments)
    library, _, library_name = name.partition(":")
    if name in MODELS:
        check_argument_names(name, MODELS[name].build, arguments)
        model = MODELS[name].build(**arguments)
    elif library == huggingface.LIBRARY:
        model = huggingface.build_from_transformers(library_name, arguments)
    elif library == "timm":
        model = external.build_from_timm(library_name, arguments)
    else:
        model = external.build_from_torchvision(library_name, arguments)
    return _with_record(model, name, arguments)


def _plain(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON stores them: a network is built from these, so that its record describes it exactly."""
    try:
        return json.loads(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"model {name!r}: arguments must be plain values: {error}") from error


def _with_record(model: nn.Module, name: str, arguments: dict[str, Any]) -> nn.Module:
    model.built_from = {"name": name, "arguments": arguments}  # type: ignore[assignment]
    return model
