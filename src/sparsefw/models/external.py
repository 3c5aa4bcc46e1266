"""Networks of timm and torchvision, which are not imported before a network is asked for."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from sparsefw.limits import NETWORK_ARGUMENT, NETWORK_BLOCKS
from sparsefw.text import did_you_mean

LIBRARIES = ("timm:", "torchvision:", "transformers:")  # begin the names of their networks
# Schemas exist as long as the library object that defined them.
_SCHEMAS: list[torch.library.Library] = []
# The arguments that a recipe may give: the shape of a network and its dropout. Others name files and addresses to load from.
TIMM_ARGUMENTS = (
    "num_classes", "in_chans", "img_size", "patch_size", "global_pool", "output_stride",
    "width", "depth", "depths", "dims", "layers", "channels", "embed_dim", "embed_dims", "num_heads", "mlp_ratio", "mlp_ratios",
    "window_size", "class_token", "reg_tokens", "qkv_bias", "init_values", "cardinality", "base_width", "stem_width",
    "growth_rate", "drop_rate", "drop_path_rate", "drop_block_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate",
    "attn_drop_rate",
)  # fmt: skip
TORCHVISION_ARGUMENTS = (
    "num_classes", "image_size", "patch_size", "window_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim", "embed_dim",
    "depths", "mlp_ratio", "width_mult", "alpha", "groups", "width_per_group", "replace_stride_with_dilation",
    "zero_init_residual", "growth_rate", "block_config", "num_init_features", "bn_size", "aux_logits", "aux_loss",
    "init_weights", "dropout", "drop_rate", "attention_dropout", "stochastic_depth_prob", "layer_scale",
)  # fmt: skip
_BLOCKS = {"depth", "depths", "layers", "num_layers", "block_config"}  # arguments that count what is built
_WORD = re.compile(r"[A-Za-z0-9_]*")
_NO_OPERATORS = "operator torchvision::nms does not exist"


def import_torchvision() -> ModuleType:
    """Import torchvision, even where its compiled operators do not fit this torch, such as beside a CPU build.

    Its networks need none of these operators, but its import describes two of them to torch.export and fails where they are
    missing. Declaring them without an implementation is enough for the import; calling them still fails.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if str(error) != _NO_OPERATORS:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _SCHEMAS.append(library)
    return importlib.import_module("torchvision")


def _import_timm() -> ModuleType:
    import_torchvision()  # timm imports it
    return importlib.import_module("timm")


def build_from_timm(name: str, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of timm of this name with fresh weights."""
    _check_arguments(f"timm:{name}", arguments, TIMM_ARGUMENTS)
    timm = _require_installed(f"timm:{name}", _import_timm)
    # timm itself would accept names that download, such as hf-hub:...
    if not re.fullmatch(r"[\w.]+", name) or not timm.is_model(name):
        known = [f"timm:{model}" for model in timm.list_models()]
        raise ValueError(unknown_model(f"timm:{name}", known))
    return _call(f"timm:{name}", timm.create_model, {"model_name": name, "pretrained": False, **arguments})


def build_from_torchvision(name: str, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of torchvision of this name with fresh weights."""
    _check_arguments(f"torchvision:{name}", arguments, TORCHVISION_ARGUMENTS)
    models = _require_installed(f"torchvision:{name}", import_torchvision).models
    if name not in models.list_models():
        known = [f"torchvision:{model}" for model in models.list_models()]
        raise ValueError(unknown_model(f"torchvision:{name}", known))
    builder = models.get_model_builder(name)
    # By default, some networks download the weights of their backbone.
    accepted = inspect.signature(builder).parameters
    no_downloads = {key: None for key in ("weights", "weights_backbone") if key in accepted}
    return _call(f"torchvision:{name}", builder, {**no_downloads, **arguments})


def unknown_model(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not among the known ones."""
    return f"unknown model {name!r}{did_you_mean(name, known)}; see `sparsefw list models`"


def _require_installed(name: str, load: Callable[[], ModuleType]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        raise ValueError(f"model {name!r} needs {error.name}: pip install 'sparsefw[vision]'") from error


def _check_arguments(name: str, arguments: dict[str, Any], accepted: Iterable[str]) -> None:
    """Refuse what would make a library read a file, download or build for hours, in one line."""
    for key, value in arguments.items():
        if key not in accepted:
            raise ValueError(
                f"model {name!r}: the argument {key!r} is refused; accepted: {', '.join(accepted)}; "
                "nothing is downloaded, model.weights.file loads weights"
            )
        if not _is_number_or_word(value):
            raise ValueError(
                f"model {name!r}: {key}={value!r} is refused; it must be a number, a word, or a list of these"
            )
        numbers = _numbers(value)
        if any(abs(number) > NETWORK_ARGUMENT for number in numbers):
            raise ValueError(f"model {name!r}: {key} has a number above {NETWORK_ARGUMENT:,}")
        if key in _BLOCKS and sum(map(abs, numbers)) > NETWORK_BLOCKS:
            raise ValueError(f"model {name!r}: {key} asks for more than {NETWORK_BLOCKS:,} blocks")


def _is_number_or_word(value: Any) -> bool:
    """Return whether a plain value is neither a path, nor an address, nor a table; a list is what its values are."""
    if isinstance(value, list):
        return all(map(_is_number_or_word, value))
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return not isinstance(value, dict)


def _numbers(value: Any) -> list[float]:
    """Return all numbers in a value that may be a list of lists."""
    if isinstance(value, list):
        return [number for entry in value for number in _numbers(entry)]
    return [value] if isinstance(value, (int, float)) else []


def _call(name: str, builder: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """Call a builder that passes its arguments on: a wrong one is noticed only by the constructor that gets it."""
    try:
        return builder(**arguments)
    except TypeError as error:
        raise ValueError(f"model {name!r}: {error}") from error
