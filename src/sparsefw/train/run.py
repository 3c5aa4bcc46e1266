"""Trains: `fit` makes a finished run folder from a configuration; after a kill, the same call resumes."""

from __future__ import annotations

import re
import statistics
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefw.atomic_io import remove_leftovers
from sparsefw.compression.spectra import spectra
from sparsefw.config_base import ConfigError
from sparsefw.data.batches import Share
from sparsefw.data.loaders import Data, open_data
from sparsefw.errors import Diverged
from sparsefw.methods import OptimizerSettings
from sparsefw.models import MODELS, build_named, load_weights
from sparsefw.optim import NonFiniteGradientError, SFWWarning
from sparsefw.runfolder.parse import parse_spectra
from sparsefw.runfolder.read import read_epochs
from sparsefw.runfolder.schema import DataRecord, ResultRecord, RetrainingPhase, SweepJob
from sparsefw.text import first_line
from sparsefw.train.average import Average
from sparsefw.train.checkpoint import load_checkpoint, newest_checkpoint
from sparsefw.train.config import RunConfig
from sparsefw.train.diagnosis import epochs_of, hint, troubles
from sparsefw.train.display import Display
from sparsefw.train.engine import Engine, engine_for, join_processes, on_first, processes
from sparsefw.train.facts import environment_record, run_facts
from sparsefw.train.folder import RunFolder, check_weights
from sparsefw.train.loop import Rates, Training, Watcher, evaluate, evaluated_model, train
from sparsefw.train.recorder import Judge, Recorder, aim_of
from sparsefw.train.sizes import OverSizes
from sparsefw.train.step import Step, step_for
from sparsefw.train.tasks import task_for
from sparsefw.train.trackers import check_trackers

FINAL_CALIBRATION = 8192  # images on which the saved network's BatchNorm statistics are computed
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory|[Ss]torage size calculation overflowed")


def fit(
    config: RunConfig,
    path: Path,
    data_folder: Path | None = None,
    *,
    trust: bool = False,
    quiet: bool = False,
    judge: Judge | None = None,
    phase: RetrainingPhase | None = None,
    job: SweepJob | None = None,
    data_changed: bool = False,
) -> dict[str, Any]:
    """Train a configuration into a run folder, or resume the run that is there.

    Args:
        trust: whether Python code that the configuration names may be imported, which runs it: its network or its method.
        judge: called after every epoch; what it raises ends the training.
        phase: of the retraining that makes the run; recorded in its folder.
        job: of the sweep that makes the run; recorded in its folder.
        data_changed: resume also where the data are not those with which the run began; recorded in its folder.

    Returns:
        The final metrics, as in result.json.
    """
    with processes(config.engine.device) as share:
        # A function of its own: when it returns, its network is gone, as `processes` requires.
        return _fit(
            config.with_code(trust), RunFolder(path), data_folder, share, trust, quiet, judge, phase, job, data_changed
        ).to_json()


def _fit(
    config: RunConfig,
    folder: RunFolder,
    data_folder: Path | None,
    share: Share,
    trust: bool,
    quiet: bool,
    judge: Judge | None,
    phase: RetrainingPhase | None,
    job: SweepJob | None,
    data_changed: bool,
) -> ResultRecord:
    with ExitStack() as claimed:
        finished = on_first(share, lambda: _claim(folder, config, claimed))
        if finished is not None:
            return finished
        check_trackers(config)
        with Display(config.name, quiet, share.rank == 0) as display:
            training = prepare(config, data_folder, display, trust)
            facts = run_facts(config, training.task.metric, phase, job)
            data = _resume(training, folder, display, data_changed)
            environment = environment_record(data_folder)
            on_first(share, lambda: folder.begin(config, facts, data, environment, training.regions))
            with Recorder(folder, training, display, judge) as watcher:
                _train(training, watcher)
            result = _finish(training, folder)
            advice = hint(aim_of(training), epochs_of(read_epochs(folder.path)))
            if advice is not None:
                display.note(f"{config.name}: {advice}")
            if result.skipped_images:
                display.note(f"{result.skipped_images} corrupt images were left out", warning=True)
            return result


def _train(training: Training, watcher: Watcher) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SFWWarning)  # it warns of single layers; diagnosis.py judges the whole
            train(training, watcher)
    except NonFiniteGradientError as error:
        advice = "a smaller train.lr" + " or method.strength" * hasattr(training.config.method, "strength")
        place = f"by step {training.step} of {training.steps}"
        raise Diverged(
            f"{place}: the training diverged, non-finite gradient in {error.where}; {advice} may help"
        ) from error


def _claim(folder: RunFolder, config: RunConfig, claimed: ExitStack) -> ResultRecord | None:
    """Lock the folder, check that it is empty or holds this very run, and return the result if that is over."""
    claimed.enter_context(folder.locked())
    folder.check(config)
    result = folder.result
    if result is not None:
        folder.check_model()
        folder.forget_checkpoints()  # a kill may have prevented that
        remove_leftovers(folder.path)
    return result


def prepare(config: RunConfig, data_folder: Path | None, display: Display, trust: bool = False) -> Training:
    """Return a training at step 0, with its data, network and optimizer.

    trust: whether Python code that the configuration names may be imported.
    """
    config = config.with_code(trust)
    # Whether to compile depends on the number of steps, which depends on the data, which depend on the device.
    share = join_processes(config.engine.device)
    engine = engine_for(config, steps=0)
    data = open_data(
        config.data,
        data_folder,
        device=engine.device,
        seed=config.seed,
        share=share,
        channels_last=engine.channels_last,
        workers=engine.workers,
    )
    steps = config.train.epochs * (len(data.train) // config.data.batch_size)
    engine = engine_for(config, steps)
    task = task_for(data.task, data.classes, config.train.label_smoothing, data.ignore_label)
    if config.train.mixup and data.task != "classification":
        raise ConfigError("train.mixup mixes labels of whole images: it is for classification")
    torch.manual_seed(config.seed)
    model = engine.place(build_model(config, data, display, trust))
    check_fit(model, config.model.name, data, engine.device)
    settings = config.train
    regions: list[str] = []
    rest_lr = settings.lr if settings.rest_lr is None else settings.rest_lr
    given = OptimizerSettings(
        settings.lr,
        settings.momentum,
        settings.weight_decay,
        settings.nesterov,
        settings.rest,
        rest_lr,
        steps,
        example=torch.zeros((2, *data.shape), device=engine.device),
    )
    with warnings.catch_warnings():
        if config.model.weights is None:  # scaling weights that are still random loses nothing
            warnings.simplefilter("ignore", SFWWarning)
        optimizer = config.method.optimizer(model, given, regions.append)
    scaler = torch.amp.GradScaler(engine.device.type, enabled=engine.precision == torch.float16)
    average = None if settings.ema is None else Average(model, settings.ema)
    norms = torch.zeros((), dtype=torch.float64, device=engine.device) if config.observe.gradients else None
    sizes = None
    if config.sizes is not None:
        sizes = OverSizes(
            config.sizes,
            model,
            config.sizes_kind,
            shape=data.shape,
            images=config.data.batch_size // share.world,
            parts=engine.accumulate,
            seed=config.seed,
        )
        if sizes.waits and engine.cuda_graph:
            if config.engine.cuda_graph:
                raise ConfigError(f"engine.cuda_graph=true needs steps that never wait for the device: {sizes}")
            engine = replace(engine, cuda_graph=False)
    step = step_for(Step(engine, model, config.method, task, optimizer, scaler, average, norms, sizes))
    rates = Rates(optimizer, engine.device)
    display.note(f"{config.name}: {_summary(data, model, steps, engine)}")
    if share.world > 1 and not engine.sync_batchnorm and any(isinstance(m, _BatchNorm) for m in model.modules()):
        display.note(
            f"batch norms see the {config.data.batch_size // share.world} images of their own process only, of a batch of "
            f"{config.data.batch_size}: accuracy may be below that of one process; CUDA devices synchronise them",
            warning=True,
        )
    regions_text = "\n".join(regions)
    return Training(
        config,
        engine,
        data,
        task,
        model,
        optimizer,
        scaler,
        average,
        step,
        rates,
        regions_text,
        norms=norms,
        sizes=sizes,
    )


def build_model(config: RunConfig, data: Data, display: Display, trust: bool) -> nn.Module:
    """Build the network for this data: its source names the arguments for classes and input channels that are filled in."""
    name = config.model.name
    arguments = dict(config.model.arguments)
    names = {"timm": ("num_classes", "in_chans"), "torchvision": ("num_classes", None)}.get(name.partition(":")[0])
    if name in MODELS:
        names = ("classes", "in_channels")
    for argument, value, default in zip(names or (), (data.classes, data.shape[0]), (None, 3), strict=False):
        if argument is not None and value != default:
            arguments.setdefault(argument, value)
    try:
        model = build_named(name, arguments, trust=trust)
    except RuntimeError as error:
        if not _NO_MEMORY.search(str(error)):
            raise
        raise MemoryError(f"model {name}: the network does not fit into memory") from error
    if (weights := config.model.weights) is not None:
        check_weights(weights.file)
        display.note(str(load_weights(model, weights.file, into=weights.into, leave_out=weights.leave_out)))
    return model


def check_fit(model: nn.Module, name: str, data: Data, device: torch.device) -> None:
    """Try the model on two images: ConfigError of one line if it does not fit the data, not an error deep in torch."""
    shape = (2, *data.shape)
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(shape, device=device))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise ConfigError(f"model {name} does not fit inputs of shape {shape}: {first_line(error)}") from error
    needed = (2, data.classes) if data.task == "classification" else (2, data.classes, *data.shape[1:])
    returned = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if returned != needed:
        raise ConfigError(
            f"model {name} gives {returned} for inputs of shape {shape}; the data, of {data.classes} classes, need {needed}"
        )


def _summary(data: Data, model: nn.Module, steps: int, engine: Engine) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    parts = [f"{len(data.train):,} training"]
    parts += [f"{len(part):,} {name}" for name, part in (("validation", data.validation), ("test", data.test)) if part]
    return f"{', '.join(parts)} images; {parameters:,} parameters; {steps:,} steps on {engine}"


def _resume(training: Training, folder: RunFolder, display: Display, data_changed: bool) -> DataRecord:
    """Load the newest whole checkpoint, the same in all processes, and return the record of the data."""
    share = training.engine.share
    checkpoint, damaged = on_first(share, lambda: newest_checkpoint(folder.paths.checkpoints))
    for path in damaged:
        display.note(f"{path} is damaged: its content is not what was written", warning=True)
    if checkpoint is not None:
        state = load_checkpoint(checkpoint)
        if state.get("run") != training.identity:
            raise ConfigError(
                f"{checkpoint} belongs to another run: it was written with another configuration or seed; remove it to resume "
                "from the one before, or to start again"
            )
        now = training.data.fingerprint
        data = on_first(share, lambda: folder.accepted_data(now, state["step"], data_changed))
        training.load(state)
        if data.changes:  # with other data, epochs may have had another number of steps
            display.note(str(data.changes[-1]), warning=True)
        else:
            on_first(share, lambda: folder.check_epochs(training.epoch))
        display.note(f"resuming from step {training.step:,} of {training.steps:,}", warning=bool(damaged))
        return data
    if damaged:
        display.note("no whole checkpoint is left: starting again", warning=True)
    elif on_first(share, folder.paths.metrics.exists):
        interval = f"engine.checkpoint_seconds={training.config.engine.checkpoint_seconds:g}"
        display.note(f"stopped before its first checkpoint ({interval}): starting again")
    return DataRecord(training.data.fingerprint)


def _finish(training: Training, folder: RunFolder) -> ResultRecord:
    """Evaluate the trained network; the first process saves it with its result."""
    t = training
    model = evaluated_model(t, FINAL_CALIBRATION)
    validation, test = (
        None if part is None else evaluate(model, part, t.task, t.engine) for part in (t.data.validation, t.data.test)
    )
    seconds = t.clock.seconds()
    epochs = read_epochs(folder.path)
    rates = [epoch.images_per_second for epoch in epochs if epoch.images_per_second is not None]
    overall_rate = t.steps * t.config.data.batch_size / max(seconds, 1e-9)
    result = ResultRecord(
        metric=t.task.metric,
        validation=validation,
        test=test,
        steps=t.steps,
        seconds=seconds,
        # The median over the epochs: the first one also compiles, and an interrupted one is cut short.
        images_per_second=statistics.median(rates) if rates else overall_rate,
        skipped_images=t.data.skipped,
        warnings=tuple(trouble.text for trouble in troubles(aim_of(t), epochs_of(epochs))),
        model=on_first(
            t.engine.share,
            lambda: folder.save_model(model, t.identity, t.data.shape, t.data.task, t.data.classes),
        ),
        run=t.identity,
    )
    if t.engine.share.rank == 0:
        folder.writer.spectra(replace(parse_spectra(spectra(model)), model=result.model))
        folder.finish(result)
    return result
