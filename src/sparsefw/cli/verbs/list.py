"""sparsefw list"""

from __future__ import annotations

from typing import Annotated

import typer

from sparsefw.cli.options import JsonOption
from sparsefw.cli.output import print_result, verb


@verb
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, datasets, methods, kinds, regions, recipes, grids, experiments, or rows of bench."
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="One method or grid, with all of its settings.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """What there is.

    sparsefw list recipes

    sparsefw list methods ssl
    """
    from sparsefw.cli.catalog import catalog

    found = catalog(what, name)
    print_result(found.record, json, found.text)
