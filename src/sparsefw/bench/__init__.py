"""Measure the speed of training, relative to that of SGD, and of loading images."""

from sparsefw.bench.data_speed import DataSpeed, measure_data_speed
from sparsefw.bench.method_rows import ROWS, MethodRow, choose_rows, row_config
from sparsefw.bench.speed_text import costs_text, speeds_text
from sparsefw.bench.step_times import WARM_UP_STEPS, endless_batches
from sparsefw.bench.training_speed import STEADY, measure_training_speed

__all__ = [
    "ROWS",
    "STEADY",
    "WARM_UP_STEPS",
    "DataSpeed",
    "MethodRow",
    "choose_rows",
    "costs_text",
    "endless_batches",
    "measure_data_speed",
    "measure_training_speed",
    "row_config",
    "speeds_text",
]
