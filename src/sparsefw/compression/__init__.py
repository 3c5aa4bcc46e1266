"""Compression: fewer filters, lower rank, fewer weights; physically smaller networks, recovered without retraining."""

from sparsefw.compression.artifact.elastic import save_elastic
from sparsefw.compression.artifact.export import export_executorch, export_onnx, export_openvino, export_program
from sparsefw.compression.artifact.files import ArtifactError
from sparsefw.compression.artifact.folder import save
from sparsefw.compression.artifact.load import load
from sparsefw.compression.artifact.pretrained import as_pretrained
from sparsefw.compression.compressed import Compressed, compress
from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.curves import Curve, CurvePoint, curve
from sparsefw.compression.latency import Latency, measure
from sparsefw.compression.pipeline import NotRunWarning
from sparsefw.compression.quantised import Quantised, quantise
from sparsefw.compression.recovery.batchnorm import recalibrate
from sparsefw.compression.sizes import Sizes, smaller
from sparsefw.compression.target import UnreachableError

__all__ = [
    "ArtifactError",
    "Compressed",
    "Costs",
    "Curve",
    "CurvePoint",
    "Latency",
    "NotRunWarning",
    "Quantised",
    "Sizes",
    "UnreachableError",
    "as_pretrained",
    "compress",
    "costs",
    "curve",
    "export_executorch",
    "export_onnx",
    "export_openvino",
    "export_program",
    "load",
    "measure",
    "quantise",
    "recalibrate",
    "save",
    "save_elastic",
    "smaller",
]
