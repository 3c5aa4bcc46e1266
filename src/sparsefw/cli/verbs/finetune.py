"""sparsefw finetune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import Outcome, print_outcome, verb


@verb
def finetune(
    run: options.RunArgument,
    epochs: Annotated[int, typer.Option(help="Epochs of the fine-tuning.")] = 5,
    kind: Annotated[
        str | None, typer.Option(help="What is removed later, such as filters. Default: the kind of the run.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder to write. Default: RUN-finetuned.")
    ] = None,
    data: options.RunDataOption = None,
    data_changed: options.DataChangedOption = False,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    show: Annotated[bool, typer.Option("--show", help="Print the whole configuration, and stop.")] = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Teach a trained network to work at every size, in a few epochs.

    Continues a run from its trained weights; in every step, half of the batch sees the network without a share of its units
    (docs/sizes.md). If it is interrupted or killed, the same command continues it. To start from a file of weights instead:
    `sparsefw train RECIPE --set model.weights.file=FILE --set sizes={}`.

    Examples:

        sparsefw finetune runs/digits-resnet-sgd-seed0
        sparsefw finetune RUN --epochs 10 --kind rank --set train.lr=0.02
    """
    from sparsefw.cli.train_run import train_run
    from sparsefw.runfolder.schema import ConfigRecord
    from sparsefw.runfolder.write import config_yaml
    from sparsefw.train.finetune import finetuning
    from sparsefw.train.folder import RunFolder

    config = finetuning(run, epochs, kind, set_ or ())
    if show:
        return print_outcome(Outcome(config.plain(), config_yaml(ConfigRecord(config.plain())).rstrip()), json)
    folder = run.with_name(f"{run.name}-finetuned") if out is None else out
    data = RunFolder(run).data if data is None else data
    return print_outcome(train_run(config, folder, data, quiet, trust, data_changed), json)
