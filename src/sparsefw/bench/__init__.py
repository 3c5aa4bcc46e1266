"""Measures speed: of training steps beside SGD's, and of the images that reach the device."""

from sparsefw.bench.data_speed import DataSpeed, measure_data_speed
from sparsefw.bench.rows import ROWS, Row, chosen_rows, row_config
from sparsefw.bench.speed_text import costs_text, speeds_text
from sparsefw.bench.step_times import WARM_UP_STEPS, endless_batches
from sparsefw.bench.training_speed import STEADY, measure_training_speed

__all__ = [
    "ROWS",
    "STEADY",
    "WARM_UP_STEPS",
    "DataSpeed",
    "Row",
    "chosen_rows",
    "costs_text",
    "endless_batches",
    "measure_data_speed",
    "measure_training_speed",
    "row_config",
    "speeds_text",
]
