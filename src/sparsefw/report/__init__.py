"""Reports from run folders: tables, figures, and one page. Nothing here trains."""

from sparsefw.plotting.figure_io import save_figure
from sparsefw.report.export import write_files
from sparsefw.report.figures import curves_figure, run_figure, sizes_figure, training_figure
from sparsefw.report.page import write_page
from sparsefw.report.read import read_run, read_runs
from sparsefw.report.records import Damaged, ReportError, Run
from sparsefw.report.tables import Table, ratio_table, runs_table

__all__ = [
    "Damaged",
    "ReportError",
    "Run",
    "Table",
    "curves_figure",
    "ratio_table",
    "read_run",
    "read_runs",
    "run_figure",
    "runs_table",
    "save_figure",
    "sizes_figure",
    "training_figure",
    "write_files",
    "write_page",
]
