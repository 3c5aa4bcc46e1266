"""Train a network once under a norm constraint, then compress it to any size without retraining."""

from sparsefw.compression import compress, curve, load, recalibrate, save, save_elastic
from sparsefw.optim import SFW, Rule, constrain

__version__ = "0.1.0"
__all__ = [
    "SFW",
    "Rule",
    "__version__",
    "compress",
    "constrain",
    "curve",
    "load",
    "recalibrate",
    "save",
    "save_elastic",
]
