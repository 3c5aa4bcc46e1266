"""sparsefw demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import JsonOption, QuietOption
from sparsefw.cli.output import print_result, verb


@verb
def demo(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; default: runs/demo.")] = None,
    seed: Annotated[int, typer.Option(help="Another start, other batches.")] = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train on handwritten digits by SGD and by SparseFW, shrink both, and look at the difference.

    Three minutes on two CPU cores, no data to download. Writes a picture, a page and a small model.

        sparsefw demo
    """
    from sparsefw.cli.digits_demo import run_demo

    folder = Path("runs", "demo" if seed == 0 else f"demo-seed{seed}") if out is None else out
    found = run_demo(folder, seed, quiet)
    print_result(found.record, json, found.text)
