"""Training methods, one short file each. A method is registered by being imported here."""

from sparsefw.methods.abfp import ABFP
from sparsefw.methods.base import METHODS, Backward, Batch, Method, OptimizerSettings, method_from, with_code
from sparsefw.methods.cram import CrAM
from sparsefw.methods.fr import FR
from sparsefw.methods.glt import GLT
from sparsefw.methods.masked import Masked
from sparsefw.methods.nuc import NUC
from sparsefw.methods.sam import SAM
from sparsefw.methods.scion import Scion
from sparsefw.methods.sfp import SFP
from sparsefw.methods.sgd import SGD
from sparsefw.methods.sparsefw import SparseFW
from sparsefw.methods.ssl import SSL
from sparsefw.methods.svdenergy import SVDEnergy
from sparsefw.methods.trp import TRP

__all__ = [
    "ABFP", "FR", "GLT", "METHODS", "NUC", "SAM", "SFP", "SGD", "SSL", "TRP", "Backward", "Batch", "CrAM", "Masked", "Method",
    "OptimizerSettings", "SVDEnergy", "Scion", "SparseFW", "method_from", "with_code",
]  # fmt: skip
