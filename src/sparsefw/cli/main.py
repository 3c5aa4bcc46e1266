"""sparsefw: verb -> function. Heavy imports are inside, so that --help and completion answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.benches import bench
from sparsefw.cli.comparisons import reproduce, sweep
from sparsefw.cli.output import (
    DataOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    SetOption,
    TrustOption,
    is_first,
    number,
    numbers,
    result,
    say,
    verb,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train a neural network once, then compress it to any size without retraining. Start with `sparsefw demo`.",
)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `sparsefw train` made.")]


@app.command()
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
    from sparsefw.cli.demo import run_demo

    folder = Path("runs", "demo" if seed == 0 else f"demo-seed{seed}") if out is None else out
    found = run_demo(folder, seed, quiet)
    result(found.record, json, found.text)


@app.command()
@verb
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `sparsefw list recipes`, or a .yaml file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE-seedN.")] = None,
    data: DataOption = None,
    seed: Annotated[int | None, typer.Option(help="Default: the recipe's.")] = None,
    set_: SetOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print the whole configuration, and stop.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a network once. Killed or interrupted, the same command goes on where it was.

    Writes a picture of the training into the run folder, and warns where it goes wrong.

    sparsefw train digits-resnet-filters

    sparsefw train cifar10-resnet18-filters --data DIR --set train.epochs=20 --set method.k=0.3

    torchrun --nproc-per-node 4 -m sparsefw train imagenet-resnet50-rank --data DIR
    """
    from sparsefw.report import read_run, run_figure, save_figure
    from sparsefw.train import fit, load_recipe
    from sparsefw.train.folder import is_own_code
    from sparsefw.train.recipes import write_config

    config = load_recipe(recipe, set_ or (), seed=seed)
    if show:
        return result(config.plain(), json, write_config(config).rstrip())
    folder = Path("runs") / f"{config.name}-seed{config.seed}" if out is None else out
    found = fit(config, folder, data, quiet=quiet)
    if not is_first():
        return None
    picture, _ = save_figure(run_figure(read_run(folder)), folder / "training")
    metric, trust = found["metric"], " --trust" if is_own_code(config.model.name) else ""
    figures = [f"{name} {found[name][metric]:.2f}" for name in ("validation", "test") if found[name]]
    lines = [
        f"{config.name}: {metric} {', '.join(figures)}; {found['images_per_second']:,.0f} images/s",
        *(f"warning: {text}" for text in found.get("warnings", ())),  # runs of earlier versions have none
        str(picture),
        f"{folder}: next, `sparsefw curve {folder}{trust}`",
    ]
    return result({"run": folder, **found, "picture": picture}, json, "\n".join(lines))


@app.command()
@verb
def retrain(
    run: RunArgument,
    weights: Annotated[float, typer.Option(help="Fraction of the weights to set to 0.")],
    epochs: Annotated[int, typer.Option(help="Epochs of each phase.")],
    schedule: Annotated[str, typer.Option(help="ft, lrw, slr, clr or llr.")] = "llr",
    phases: Annotated[int, typer.Option(help="1: one shot; more: prune and retrain that often.")] = 1,
    weight_decay: Annotated[float | None, typer.Option(help="Default: that of the run.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; default: RUN-retrained.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Magnitude pruning with retraining: a rival, which trains again after compression. Killed, the same command goes on.

    sparsefw retrain runs/cifar10-resnet18-sgd-seed0 --weights 0.95 --epochs 10

    sparsefw retrain RUN --weights 0.95 --epochs 10 --phases 3 --schedule lrw
    """
    from sparsefw.train.retrain import retrain as prune_and_retrain

    folder = run.with_name(f"{run.name}-retrained") if out is None else out
    how = dict(weights=weights, epochs=epochs, schedule=schedule, phases=phases, weight_decay=weight_decay)
    found = prune_and_retrain(run, folder, **how, data=data, quiet=quiet)  # type: ignore[arg-type]
    metric = found[-1].result["metric"]
    lines = [
        f"{phase.folder}: {phase.zeros:.2%} of the weights are 0, retrained for {epochs} epochs ({schedule}); {metric} "
        + ", ".join(
            f"{split} {phase.result[split][metric]:.2f}" for split in ("validation", "test") if phase.result[split]
        )
        for phase in found
    ]
    result([phase._asdict() for phase in found], json, "\n".join(lines))


@app.command()
@verb
def curve(
    run: RunArgument,
    kind: Annotated[str | None, typer.Option(help="filters, rank or weights; default: the recipe's.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Ratios to remove, such as 0.5,0.7,0.9; default: the recipe's.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="removed (physically smaller) or masked (the paper's protocol).")
    ] = "removed",
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    score: Annotated[str, typer.Option(help="Which filters go first: l1, l2, bn, activation.")] = "l1",
    allocation: Annotated[str | None, typer.Option(help="uniform, global, energy, worst, sensitivity.")] = None,
    calibration: Annotated[int | None, typer.Option(help="Training images, without labels, for recovery.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="Measure milliseconds too.")] = False,
    data: DataOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Accuracy against size, from one trained network, without retraining. Writes a table and a picture into the run folder.

    sparsefw curve runs/digits-resnet-filters-seed0

    sparsefw curve RUN --kind rank --at 0.6,0.8,0.9 --latency
    """
    from sparsefw.report import curves_figure, read_run, save_figure
    from sparsefw.train.study import Study

    study = Study.open(run, data, device, trust)
    how = dict(score=score, allocation=allocation, calibration=calibration, latency=latency)
    found = study.curve(kind, numbers(at, "--at"), form, split, progress=False if quiet else None, **how)
    again = "retrained before" if study.config.method.name == "masked" else "never retrained"
    text = f"{study.config.name}: {study.task.metric} in % on the {split} images, {form}, {again}\n{found}"
    if split == "test":
        picture = save_figure(curves_figure([read_run(run)], found.kind, form), run / "curves" / f"{found.kind}-{form}")
        text += f"\n{picture[0]}"
    result({"run": run, "metric": study.task.metric, "split": split, **found.to_json()}, json, text)


@app.command()
@verb
def compress(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; default: RUN/small.")] = None,
    filters: Annotated[float | None, typer.Option(help="Fraction of the filters to remove.")] = None,
    rank: Annotated[float | None, typer.Option(help="Fraction of the singular values to remove.")] = None,
    weights: Annotated[str | None, typer.Option(help="Fraction of the weights to set to 0, or N:M.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Instead: params=0.3, macs=0.3, bytes=0.3, latency=0.5, or drop=2 (points).")
    ] = None,
    by: Annotated[str | None, typer.Option(help="What a target is met by: filters, rank, weights, or several.")] = None,
    score: Annotated[str, typer.Option(help="Which filters go first: l1, l2, bn, activation.")] = "l1",
    allocation: Annotated[str | None, typer.Option(help="uniform, global, energy, worst, sensitivity.")] = None,
    round_to: Annotated[int, typer.Option(help="Channel counts and ranks in multiples of this.")] = 1,
    calibration: Annotated[int | None, typer.Option(help="Training images, without labels, for recovery.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx.")] = False,
    data: DataOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """A smaller network from a trained one, physically smaller, saved without pickle.

    sparsefw compress RUN --filters 0.7 -o small --onnx

    sparsefw compress RUN --target drop=1 --by filters
    """
    from sparsefw.cli.small import compress_run
    from sparsefw.train.study import Study

    if filters is rank is weights is target is None:
        raise ValueError(
            "how much? give --filters, --rank or --weights, the fraction to remove, or --target params=0.3"
        )
    amount = weights if weights is None or ":" in weights else number(weights, "--weights")
    study = Study.open(run, data, device, trust)
    how = dict(
        filters=filters, rank=rank, weights=amount, target=target, by=by.split(",") if by else None, score=score,
        allocation=allocation, round_to=round_to, calibration=calibration, progress=False if quiet else None,
    )  # fmt: skip
    found = compress_run(study, run / "small" if out is None else out, onnx, how)
    result(found.record, json, found.text)


@app.command()
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
    from sparsefw.report import read_runs, runs_table, write_files, write_page

    found, damaged = read_runs(runs)
    if not found:
        raise ValueError(f"no run can be read; {damaged[0].folder}: {damaged[0].reason}")
    write_page(out, found, damaged)
    files = out.with_name(f"{out.stem}_files")
    write_files(files, found)
    for one in damaged:
        say(f"{one.folder}: {one.reason}")
    for run in found:
        if run.notes:
            say(f"{run.folder}: {'; '.join(run.notes)}")
    record = {
        "page": out,
        "files": files,
        "runs": [run.folder for run in found],
        "damaged": {str(d.folder): d.reason for d in damaged},
    }
    result(record, json, f"{runs_table(found).text()}\n{out}, {files}")


app.command()(sweep)
app.command()(reproduce)


@app.command("list")
@verb
def list_(
    what: Annotated[
        str, typer.Argument(help="models, datasets, methods, regions, recipes, grids, experiments, or rows of bench.")
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

    record, text = catalog(what, name)
    result(record, json, text)


app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version, and stop.", is_eager=True)] = False,
) -> None:
    if show:
        from sparsefw import __version__

        print(__version__)
        raise typer.Exit
