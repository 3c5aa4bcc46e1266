"""sparsefw bench train, bench methods, bench data"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import Outcome, print_outcome, verb

StemArgument = Annotated[str, typer.Argument(help="A recipe without its variant, such as cifar10-resnet18.")]
SecondsOption = Annotated[
    float, typer.Option(min=0.0, help="Seconds to measure each row, after its warm-up; at least three steps.")
]
BenchDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder with the files of the data set. Default: $SPARSEFW_DATA, or made-up images if it is not set.",
        show_default=False,
    ),
]

bench = typer.Typer(no_args_is_help=True, help="Measure the speed of training on this machine.")


@bench.command("train")
@verb
def bench_train(
    recipe: StemArgument = "digits-resnet",
    rows: Annotated[
        str | None,
        typer.Option(
            help="Rows of `sparsefw list rows` to measure beside SGD, such as filters,nuc,nuc-svd, or all. "
            "Default: SparseFW, and NUC with a full SVD."
        ),
    ] = None,
    seconds: SecondsOption = 5.0,
    data: BenchDataOption = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
) -> None:
    """Compare the training speed and memory of methods with those of SGD, all in one run.

    Without a data set, images are made up in memory.

    Examples:

        sparsefw bench train digits-resnet
        sparsefw bench train cifar10-resnet18 --rows rank-0.1,nuc,nuc-svd
    """
    from sparsefw.bench import choose_rows, measure_training_speed, speeds_text

    record = measure_training_speed(recipe, data, seconds, set_ or (), choose_rows(rows), trust)
    print_outcome(Outcome(record, speeds_text(record)), json)


@bench.command("methods")
@verb
def bench_methods(
    recipe: StemArgument = "digits-resnet",
    seconds: SecondsOption = 2.0,
    data: BenchDataOption = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
) -> None:
    """Measure the cost of a training step of every method, as a multiple of SGD's.

    `sparsefw list methods` shows the costs that were measured on a GPU.

    Example:

        sparsefw bench methods digits-resnet
    """
    from sparsefw.bench import choose_rows, costs_text, measure_training_speed

    record = measure_training_speed(recipe, data, seconds, set_ or (), choose_rows("all"), trust)
    print_outcome(Outcome(record, costs_text(record)), json)


@bench.command("data")
@verb
def bench_data(
    recipe: Annotated[str, typer.Argument(help="A recipe of `sparsefw list recipes`.")] = "digits-resnet-sgd",
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to measure.")] = 5.0,
    data: options.DataOption = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
) -> None:
    """Measure how many augmented images per second the data path of a recipe delivers to the device.

    No network is trained.

    Example:

        sparsefw bench data digits-resnet-sgd
    """
    from sparsefw.bench import measure_data_speed
    from sparsefw.environment import environment

    speed = measure_data_speed(recipe, data, seconds, set_ or (), trust)
    record = {"images_per_second": speed.images_per_second, **environment()}
    text = f"{recipe}: {speed.images_per_second:,.0f} images/s on {speed.engine}"
    print_outcome(Outcome(record, text), json)
