"""compress: fewer filters, lower rank, fewer weights; physically smaller, recovered without retraining."""

from sparsefw.compress.api import Compressed, compress
from sparsefw.compress.artifact import Artifact, save
from sparsefw.compress.batchnorm import recalibrate
from sparsefw.compress.cost import Costs, costs
from sparsefw.compress.curve import Curve, CurvePoint, curve
from sparsefw.compress.elastic import load, save_elastic
from sparsefw.compress.export import export_onnx, export_program
from sparsefw.compress.files import ArtifactError
from sparsefw.compress.latency import Latency, measure
from sparsefw.compress.target import UnreachableError

__all__ = [
    "Artifact",
    "ArtifactError",
    "Compressed",
    "Costs",
    "Curve",
    "CurvePoint",
    "Latency",
    "UnreachableError",
    "compress",
    "costs",
    "curve",
    "export_onnx",
    "export_program",
    "load",
    "measure",
    "recalibrate",
    "save",
    "save_elastic",
]
