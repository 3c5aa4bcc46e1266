"""sparsefw bench: verb -> function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.output import DataOption, JsonOption, SetOption, result, verb

StemArgument = Annotated[str, typer.Argument(help="A recipe without its variant, such as cifar10-resnet18.")]
SecondsOption = Annotated[
    float, typer.Option(min=0.0, help="How long each row is measured, after its warm-up; three steps at least.")
]
ImagesOption = Annotated[
    Path | None,
    typer.Option(help="As for train; default: $SPARSEFW_DATA, and without it made-up images.", show_default=False),
]

bench = typer.Typer(no_args_is_help=True, help="Measure on this machine.")


@bench.command("train")
@verb
def bench_train(
    recipe: StemArgument = "digits-resnet",
    rows: Annotated[
        str | None,
        typer.Option(
            help="Such as filters,nuc,nuc-svd (full SVD), or all, of `sparsefw list rows`; SGD is always measured. "
            "Default: SparseFW and NUC with a full SVD."
        ),
    ] = None,
    seconds: SecondsOption = 5.0,
    data: ImagesOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Training speed and memory by SparseFW, and by its rivals, beside plain SGD's, all in one run.

    sparsefw bench train digits-resnet

    sparsefw bench train cifar10-resnet18 --rows rank-0.1,nuc,nuc-svd
    """
    from sparsefw.cli.bench import chosen_rows, rates

    found = rates(recipe, data, seconds, set_ or (), chosen_rows(rows))
    result(found.record, json, found.text)


@bench.command("methods")
@verb
def bench_methods(
    recipe: StemArgument = "digits-resnet",
    seconds: SecondsOption = 2.0,
    data: ImagesOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """What a step of every method costs, in steps of SGD.

    sparsefw bench methods digits-resnet
    """
    from sparsefw.cli.bench import chosen_rows, costs_text, rates

    found = rates(recipe, data, seconds, set_ or (), chosen_rows("all"))
    result(found.record, json, costs_text(found.record))


@bench.command("data")
@verb
def bench_data(
    recipe: Annotated[str, typer.Argument(help="A recipe.")] = "digits-resnet-sgd",
    seconds: Annotated[float, typer.Option(min=0.0, help="How long.")] = 5.0,
    data: DataOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Images per second that a recipe's data path delivers to the device, augmented, without a network.

    sparsefw bench data digits-resnet-sgd
    """
    from sparsefw.cli.bench import data_rate

    found = data_rate(recipe, data, seconds, set_ or ())
    result(found.record, json, found.text)
