"""Networks of Hugging Face's transformers: a class of that package and its configuration, as plain values."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.limits import CONFIG_NUMBER, NETWORK_BLOCKS
from sparsefw.models.external import import_torchvision
from sparsefw.text import one_line

LIBRARY = "transformers"
_MODULES = "transformers.models."  # where its networks are; code that a hub delivers is elsewhere
_ATTENTION = "attn_implementation"  # how attention is computed: by one of these, which come with torch
_KERNELS = ("eager", "sdpa")
# What says where a configuration is from, not what its network is.
_ORIGIN = ("architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path", "_commit_hash")
_LABELS = ("id2label", "label2id")  # free text
# Keys with which a class reads files, downloads, or runs code that is not of the package.
_REFUSED = re.compile(
    r"_.*|auto_map|.*implementation|quantization_config|backbone|.*(timm|pretrained)_backbone|.*_path"
)
_BLOCKS = re.compile(r"layer|depth|block|stage")
_WORD = re.compile(r"[\w .,+()-]*")


def is_of_transformers(model: nn.Module) -> bool:
    """Return whether it is a network of that package, with a configuration."""
    return type(model).__module__.startswith(_MODULES) and hasattr(getattr(model, "config", None), "to_dict")


def record_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the record from which a network of transformers is built again; None for others.

    There is none where its configuration names a file, an address or code of others.
    """
    if not is_of_transformers(model):
        return None
    kind = type(model)
    config: Any = model.config
    try:
        values = json.loads(json.dumps(config.to_dict(), allow_nan=False))
        arguments = {**without_origin(values), _ATTENTION: config._attn_implementation}
        check_config(kind.__name__, arguments)
    except (TypeError, ValueError):
        return None
    return {"name": f"{LIBRARY}:{kind.__name__}", "arguments": arguments}


def build_from_transformers(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Build the network of transformers of this class and configuration, with fresh weights."""
    check_config(name, arguments)
    transformers = _import_transformers(name)
    kind = getattr(transformers, name, None) if re.fullmatch(r"[A-Za-z]\w*", name) else None
    is_network = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if kind is None or not is_network or not kind.__module__.startswith(_MODULES):
        raise ValueError(f"model '{LIBRARY}:{name}': transformers {transformers.__version__} has no network {name}")
    values = {key: value for key, value in arguments.items() if key != _ATTENTION}
    try:
        config = kind.config_class.from_dict(values)
    except Exception as error:  # the library checks configurations by exceptions of its own
        raise ValueError(f"model '{LIBRARY}:{name}': {one_line(error)}") from error
    model = kind(config)
    attention = arguments.get(_ATTENTION)
    if attention is not None and attention != model.config._attn_implementation:
        model.set_attn_implementation(attention)
    return model


def with_weights(model: Any, weights: Mapping[str, Tensor], origin: str) -> nn.Module:
    """Return the network with these weights, whose names the package itself translates: files keep those of earlier versions.

    Raise ValueError, naming the first misfit, unless all weights of the network are there, and no others.
    """
    logging = importlib.import_module("transformers.utils.logging")
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        loaded, found = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=dict(weights),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            attn_implementation=model.config._attn_implementation,
            dtype=torch.float32,
        )
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
    for word, keys in (
        ("is missing", "missing_keys"),
        ("does not fit", "mismatched_keys"),
        ("is unknown", "unexpected_keys"),
    ):
        if misfits := sorted(str(key[0] if isinstance(key, tuple) else key) for key in found[keys]):
            more = f" ({len(misfits) - 1} more)" if len(misfits) > 1 else ""
            raise ValueError(
                f"{origin}: {misfits[0]} {word}{more}: these are not the weights of {type(model).__name__}"
            )
    loaded.built_from = model.built_from
    return loaded


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a configuration that would make its class read a file, download, run foreign code or build for hours."""
    what = f"model '{LIBRARY}:{name}'"
    if config.get(_ATTENTION) not in (None, *_KERNELS):
        raise ValueError(f"{what}: {_ATTENTION}={config[_ATTENTION]!r} is refused; accepted: {', '.join(_KERNELS)}")
    for key, value in _entries({key: value for key, value in config.items() if key != _ATTENTION}):
        if _REFUSED.fullmatch(key) and value not in (None, False):
            raise ValueError(f"{what}: {key}={value!r} is refused: it may name a file, a download or code of others")
        numbers, words = _leaves(value)
        if any(not _WORD.fullmatch(word) for word in words):
            raise ValueError(f"{what}: {key}={value!r} is refused; it must be a number, a word, or a list of these")
        largest = NETWORK_BLOCKS if _BLOCKS.search(key) else CONFIG_NUMBER
        if sum(abs(number) for number in numbers if isinstance(number, int)) > largest:
            raise ValueError(f"{what}: {key} has numbers above {largest:,}")


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of a configuration and of those inside it, but for the names of labels."""
    for key, value in config.items():
        if key in _LABELS:
            continue
        yield key, value
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, dict):
                yield from _entries(inner)


def _leaves(value: Any) -> tuple[list[float], list[str]]:
    """Return the numbers and the words in a value and in the lists inside it."""
    if isinstance(value, list):
        parts = [_leaves(entry) for entry in value]
        return [n for numbers, _ in parts for n in numbers], [w for _, words in parts for w in words]
    if isinstance(value, (int, float)):
        return [value], []
    return [], [value] if isinstance(value, str) else []


def without_origin(value: Any) -> Any:
    """Return a configuration, and those inside it, without where they are from."""
    if isinstance(value, list):
        return [without_origin(entry) for entry in value]
    if isinstance(value, dict):
        return {key: without_origin(entry) for key, entry in value.items() if key not in _ORIGIN}
    return value


def _import_transformers(name: str) -> ModuleType:
    with contextlib.suppress(ModuleNotFoundError):
        import_torchvision()  # which transformers would import in a way that not every build survives
    try:
        return importlib.import_module(LIBRARY)
    except ModuleNotFoundError as error:
        if error.name != LIBRARY:
            raise
        raise ValueError(f"model '{LIBRARY}:{name}' needs transformers: pip install transformers") from error
