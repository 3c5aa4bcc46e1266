"""Train a network once under a norm constraint, then compress it to any size without retraining."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefw.compression import Sizes, compress, curve, load, recalibrate, save, save_elastic, smaller
    from sparsefw.constraints import constrain
    from sparsefw.optim import SFW, Rule

__version__ = "0.1.0"
__all__ = [
    "SFW",
    "Rule",
    "Sizes",
    "__version__",
    "compress",
    "constrain",
    "curve",
    "load",
    "recalibrate",
    "save",
    "save_elastic",
    "smaller",
]

# Imported when first asked for: a command line that says --help need not wait seconds for torch.
_HOMES = {
    "sparsefw.compression": ("Sizes", "compress", "curve", "load", "recalibrate", "save", "save_elastic", "smaller"),
    "sparsefw.constraints": ("constrain",),
    "sparsefw.optim": ("SFW", "Rule"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'sparsefw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
