"""Training methods, one short file each. What is imported here is registered, listed, configured and tested."""

from sparsefw.methods.base import METHODS, Backward, Batch, Method, OptimizerSettings, method_from
from sparsefw.methods.nuc import NUC
from sparsefw.methods.sgd import SGD
from sparsefw.methods.sparsefw import SparseFW

__all__ = ["METHODS", "NUC", "SGD", "Backward", "Batch", "Method", "OptimizerSettings", "SparseFW", "method_from"]
