"""sparsefw finetune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import Outcome, print_outcome, verb


@verb
def finetune(
    network: options.NetworkArgument,
    epochs: Annotated[int, typer.Option(help="Epochs of the fine-tuning.")] = 5,
    kind: Annotated[
        str | None, typer.Option(help="What is removed later, such as filters. Default: the kind of the run.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Run folder to write. Default: RUN-finetuned, or runs/NAME-finetuned."),
    ] = None,
    data: options.RunDataOption = None,
    checkpoint: options.CheckpointOption = None,
    argument: options.ArgumentOption = None,
    image_size: options.ImageSizeOption = None,
    mean: options.MeanOption = None,
    std: options.StdOption = None,
    data_changed: options.DataChangedOption = False,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    show: Annotated[bool, typer.Option("--show", help="Print the whole configuration, and stop.")] = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Teach a trained network to work at every size, in a few epochs.

    Continues a run from its trained weights, or a network that was trained elsewhere from its file of weights, on a folder of
    images in a folder per class; in every step, half of the batch sees the network without a share of its units (docs/sizes.md).
    If it is interrupted or killed, the same command continues it.

    Examples:

        sparsefw finetune runs/digits-resnet-sgd-seed0
        sparsefw finetune RUN --epochs 10 --kind rank --set train.lr=0.02
        sparsefw finetune timm:resnet18 --checkpoint model.safetensors --data photos --epochs 10
    """
    from sparsefw.cli.subjects import NetworkOptions, RunOptions, finetuning_request
    from sparsefw.cli.train_run import train_run
    from sparsefw.runfolder.schema import ConfigRecord
    from sparsefw.runfolder.write import config_yaml

    given = NetworkOptions(checkpoint, argument, None, image_size, mean, std)
    request = finetuning_request(network, given, RunOptions(data, data_changed), epochs, kind, set_ or (), trust)
    if show:
        plain = request.config.plain()
        return print_outcome(Outcome(plain, config_yaml(ConfigRecord(plain)).rstrip()), json)
    folder = request.folder if out is None else out
    return print_outcome(train_run(request.config, folder, request.data, quiet, trust, data_changed), json)
