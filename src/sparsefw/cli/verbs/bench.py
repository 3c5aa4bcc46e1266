"""sparsefw bench train, bench methods, bench data"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import DataOption, JsonOption, SetOption
from sparsefw.cli.output import print_result, verb

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
    from sparsefw.bench import chosen_rows, measure_training_speed, speeds_text

    record = measure_training_speed(recipe, data, seconds, set_ or (), chosen_rows(rows))
    print_result(record, json, speeds_text(record))


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
    from sparsefw.bench import chosen_rows, costs_text, measure_training_speed

    record = measure_training_speed(recipe, data, seconds, set_ or (), chosen_rows("all"))
    print_result(record, json, costs_text(record))


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
    from sparsefw.bench import measure_data_speed
    from sparsefw.environment import environment

    found = measure_data_speed(recipe, data, seconds, set_ or ())
    record = {"images_per_second": found.images_per_second, **environment()}
    print_result(record, json, f"{recipe}: {found.images_per_second:,.0f} images/s on {found.engine}")
