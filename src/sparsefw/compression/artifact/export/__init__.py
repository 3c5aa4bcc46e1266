"""Export: one file per format. Each is written aside, run by its own runtime, compared with the network, and put in place."""

from sparsefw.compression.artifact.export.checked import ExportError
from sparsefw.compression.artifact.export.executorch import export_executorch
from sparsefw.compression.artifact.export.onnx import export_onnx, onnx_session
from sparsefw.compression.artifact.export.openvino import export_openvino
from sparsefw.compression.artifact.export.program import export_program

__all__ = ["ExportError", "export_executorch", "export_onnx", "export_openvino", "export_program", "onnx_session"]
