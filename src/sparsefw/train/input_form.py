"""How images become inputs of a network that was trained elsewhere: as its library says, unless the user says otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sparsefw.config_base import ConfigError
from sparsefw.data.own_images import InputForm
from sparsefw.models import MODELS, import_torchvision
from sparsefw.models.pretrained_folder import PREPROCESSOR, read_table

COLOURS = 3


class FormOptions(NamedTuple):
    """What the user says; None: as the library says. A given size is that of whole images, of which nothing is cropped."""

    size: Sequence[float] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None


@dataclass(frozen=True)
class _Known:
    """What is known of the inputs of a network, each None where nothing says it."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: float = 1.0
    channels: int = COLOURS
    origin: str = ""


def input_form(model: nn.Module, record: Mapping[str, Any], folder: Path | None, options: FormOptions) -> InputForm:
    """Return the form of the inputs of a network; ConfigError where neither its library nor the user says it.

    Args:
        model: the network.
        record: its name and arguments, as `sparsefw.models.build` takes them.
        folder: where save_pretrained wrote it; None for others.
        options: what the user says.
    """
    known = _known(model, record, folder)
    size = _size(options.size) if options.size is not None else known.size
    mean = _numbers(options.mean, "--mean", known.channels) if options.mean is not None else known.mean
    std = _numbers(options.std, "--std", known.channels) if options.std is not None else known.std
    found = {"--image-size": size, "--mean": mean, "--std": std}
    missing = [name for name, value in found.items() if value is None]
    if size is None or mean is None or std is None:
        raise ConfigError(f"{record['name']}: nothing says how its images are made; give {', '.join(missing)}")
    if len(mean) != known.channels or len(std) != known.channels:
        raise ConfigError(
            f"{record['name']}: its inputs have {known.channels} channels; give --mean and --std for each"
        )
    if min(std) <= 0:
        raise ConfigError("--std: must be above 0, of pixels divided by 255")
    given = [name for name, value in zip(found, options, strict=True) if value is not None]
    origin = f"{', '.join(given)} as given" + (f", the rest by {known.origin}" if len(given) < len(found) else "")
    crop = known.crop if options.size is None else 1.0
    return InputForm((known.channels, *size), mean, std, crop, origin if given else known.origin)


def _known(model: nn.Module, record: Mapping[str, Any], folder: Path | None) -> _Known:
    name, arguments = record["name"], record["arguments"]
    library, _, library_name = name.partition(":")
    if folder is not None:
        return _from_preprocessor(model, folder)
    if library == "timm":
        return _from_timm(model, arguments)
    if library == "torchvision":
        return _from_torchvision(library_name, arguments)
    if name in MODELS:
        channels, *size = MODELS[name].input_shape
        return _Known((size[0], size[1]), channels=arguments.get("in_channels", channels), origin="sparsefw")
    return _Known()


def _from_timm(model: nn.Module, arguments: Mapping[str, Any]) -> _Known:
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    _, *size = config.get("input_size", (COLOURS,))
    own = arguments.get("img_size")
    size = size if own is None else [own, own] if isinstance(own, int) else own
    return _Known(
        size=(size[0], size[1]) if len(size) == 2 else None,
        mean=config.get("mean"),
        std=config.get("std"),
        crop=config.get("crop_pct") or 1.0 if own is None else 1.0,
        channels=arguments.get("in_chans", COLOURS),
        origin="timm",
    )


def _from_torchvision(name: str, arguments: Mapping[str, Any]) -> _Known:
    preset = import_torchvision().models.get_model_weights(name).DEFAULT.transforms()
    crop, resized = (getattr(preset, key, None) for key in ("crop_size", "resize_size"))
    if not crop or not resized:
        return _Known(origin="torchvision")
    own = arguments.get("image_size")
    side = crop[0] if own is None else own
    share = crop[0] / resized[0] if own is None else 1.0
    return _Known((side, side), tuple(preset.mean), tuple(preset.std), share, origin="torchvision")


def _from_preprocessor(model: nn.Module, folder: Path) -> _Known:
    config: Any = model.config
    channels = getattr(config, "num_channels", COLOURS)
    side = getattr(config, "image_size", None)
    size = (side, side) if isinstance(side, int) else None
    if not (folder / PREPROCESSOR).is_file():
        return _Known(size, channels=channels, origin="config.json")
    values = read_table(folder / PREPROCESSOR)
    resized, cropped = (_side(values.get(key)) for key in ("size", "crop_size"))
    if values.get("do_center_crop") and resized and cropped:
        size, share = (cropped, cropped), min(1.0, cropped / resized)
    else:
        size, share = (resized, resized) if resized else size, 1.0
    mean, std = (values.get(key) for key in ("image_mean", "image_std"))
    numbers = [
        tuple(v) if isinstance(v, list) and all(isinstance(n, (int, float)) for n in v) else None for v in (mean, std)
    ]
    return _Known(size, numbers[0], numbers[1], share, channels, PREPROCESSOR)


def _side(value: Any) -> int | None:
    """Return the length of a side: a number, or the first in a table such as {"height": 224, "width": 224}."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("shortest_edge", "height") if key in value), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _size(given: Sequence[float]) -> tuple[int, int]:
    if len(given) not in (1, 2) or any(not side.is_integer() or side < 1 for side in map(float, given)):
        raise ConfigError("--image-size: must be one whole number, or height and width, such as 224 or 360,480")
    return int(given[0]), int(given[-1])


def _numbers(given: Sequence[float], option: str, channels: int) -> tuple[float, ...]:
    """Return a number per channel; one that is given alone is that of all."""
    if len(given) not in (1, channels) or not all(map(math.isfinite, given)):
        raise ConfigError(f"{option}: must be one number or {channels}, one per channel, of pixels divided by 255")
    return tuple(given) * (channels if len(given) == 1 else 1)
