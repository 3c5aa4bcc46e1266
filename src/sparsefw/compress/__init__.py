"""compress: fewer filters, lower rank, fewer weights; physically smaller, recovered without retraining."""

from sparsefw.compress.api import Compressed, compress
from sparsefw.compress.batchnorm import recalibrate

__all__ = ["Compressed", "compress", "recalibrate"]
