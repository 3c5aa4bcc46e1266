"""sparsefw demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def demo(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write. Default: runs/demo.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and of the batches.")] = 0,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train on handwritten digits by SGD and by SparseFW, compress both, and compare.

    Takes three minutes on two CPU cores; nothing is downloaded. Writes pictures, a page and a small network.

    Example:

        sparsefw demo
    """
    from sparsefw.cli.digits_demo import run_demo

    folder = Path("runs", "demo" if seed == 0 else f"demo-seed{seed}") if out is None else out
    print_outcome(run_demo(folder, seed, quiet), json)
