"""Reports from run folders: tables, figures, and one page. Nothing here knows how a run was made."""

from sparsefw.report.canvas import save_figure
from sparsefw.report.figures import curves_figure, sizes_figure, training_figure, write_figures
from sparsefw.report.page import write_page
from sparsefw.report.read import Damaged, ReportError, Run, read_run, read_runs
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
    "runs_table",
    "save_figure",
    "sizes_figure",
    "training_figure",
    "write_figures",
    "write_page",
]
