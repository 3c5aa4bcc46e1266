"""compress: fewer filters, lower rank, fewer weights; physically smaller, recovered without retraining."""

from sparsefw.compression.api import Compressed, compress
from sparsefw.compression.artifact import Artifact, save
from sparsefw.compression.batchnorm import recalibrate
from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.elastic import load, save_elastic
from sparsefw.compression.export import export_onnx, export_program
from sparsefw.compression.files import ArtifactError
from sparsefw.compression.frontier import Curve, CurvePoint, curve
from sparsefw.compression.latency import Latency, measure
from sparsefw.compression.target import UnreachableError

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
