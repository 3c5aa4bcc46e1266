"""sparsefw list"""

from __future__ import annotations

from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="models, datasets, methods, kinds, regions, recipes, grids, experiments, or rows (of `sparsefw bench`). "
            "Without it, these lists.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One method or grid, to list it with all of its settings.", show_default=False),
    ] = None,
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
) -> None:
    """List the available models, data sets, methods, recipes and so on.

    A method or a grid can also be listed alone, with all of its settings.

    Examples:

        sparsefw list
        sparsefw list recipes
        sparsefw list methods ssl
    """
    from sparsefw.cli.catalog import catalog

    print_outcome(catalog(what, name, trust), json)
