"""sparsefw report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import JsonOption
from sparsefw.cli.output import print_result, verb


@verb
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    json: JsonOption = False,
) -> None:
    """One self-contained page about any number of runs: figures, tables, configurations. Opens offline.

    Beside it, a folder with every figure as PNG and SVG and every table as CSV, LaTeX and Markdown.

    sparsefw report runs -o report.html
    """
    from sparsefw.cli.report_page import write_report

    found = write_report(runs, out)
    print_result(found.record, json, found.text)
