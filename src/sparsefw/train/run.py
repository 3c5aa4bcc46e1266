"""fit: from a configuration to a finished run folder; the same call goes on where a killed one ended."""

from __future__ import annotations

import statistics
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.spectra import spectra
from sparsefw.config_base import ConfigError
from sparsefw.data.batches import Share
from sparsefw.data.loaders import Data, open_data
from sparsefw.errors import Diverged
from sparsefw.methods import OptimizerSettings
from sparsefw.models import MODELS, build, load_weights
from sparsefw.optim import NonFiniteGradientError, SFWWarning
from sparsefw.text import first_line
from sparsefw.train.average import Average
from sparsefw.train.checkpoint import load_checkpoint, newest_checkpoint
from sparsefw.train.config import RunConfig
from sparsefw.train.diagnosis import epochs_of, troubles
from sparsefw.train.display import Display
from sparsefw.train.engine import Engine, engine_for, join_processes, on_first, processes
from sparsefw.train.folder import RunFolder
from sparsefw.train.log import check_trackers, read_metrics
from sparsefw.train.loop import Rates, Training, Watcher, evaluate, evaluated_model, train
from sparsefw.train.recorder import Judge, Recorder, aim_of
from sparsefw.train.step import Step, step_for
from sparsefw.train.tasks import task_for

FINAL_CALIBRATION = 8192  # images on which the saved network's BatchNorm statistics are computed


def fit(
    config: RunConfig,
    path: Path,
    data_folder: Path | None = None,
    *,
    quiet: bool = False,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Train as `config` says into the folder `path`, or go on with what lies there. Returns the final metrics.

    judge: called after every epoch; what it raises ends the training.
    """
    with processes(config.engine.device) as share:
        return _fit(config, RunFolder(path), data_folder, share, quiet, judge)


def _fit(
    config: RunConfig, folder: RunFolder, data_folder: Path | None, share: Share, quiet: bool, judge: Judge | None
) -> dict[str, Any]:
    with ExitStack() as claimed:
        finished = on_first(share, lambda: _claim(folder, config, claimed))
        if finished is not None:
            return finished
        check_trackers(config)
        with Display(config.name, quiet, share.rank == 0) as display:
            training = prepare(config, data_folder, display)
            on_first(share, lambda: folder.begin(config, training.regions, data_folder))
            _resume(training, folder, display)
            with Recorder(folder, training, display, judge) as watcher:
                _train(training, watcher)
            result = _final(training, folder)
            if result["skipped_images"]:
                display.note(f"{result['skipped_images']} corrupt images were left out", warning=True)
            return result


def _train(training: Training, watcher: Watcher) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SFWWarning)  # it warns of single layers; trouble.py judges the whole
            train(training, watcher)
    except NonFiniteGradientError as error:
        smaller = "a smaller train.lr" + " or method.strength" * hasattr(training.config.method, "strength")
        where = f"by step {training.step} of {training.steps}"
        raise Diverged(
            f"{where}: the training diverged, non-finite gradient in {error.where}; {smaller} may help"
        ) from error


def _claim(folder: RunFolder, config: RunConfig, claimed: ExitStack) -> dict[str, Any] | None:
    """Lock the folder, and see that it is empty or holds this very run; the result of one that is over."""
    claimed.enter_context(folder.locked())
    folder.check(config)
    if folder.result is not None:
        folder.forget_checkpoints()  # a kill may have come before that
    return folder.result


def prepare(config: RunConfig, data_folder: Path | None, display: Display) -> Training:
    """Data, network and optimizer, at step 0."""
    # Whether to compile depends on the number of steps, that on the data, and that on the device.
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
    model = fitting(engine.place(build_model(config, data, display)), config.model.name, data, engine.device)
    settings, regions = config.train, list[str]()
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
        if config.model.weights is None:  # of weights that know nothing yet, none are lost where they are scaled
            warnings.simplefilter("ignore", SFWWarning)
        optimizer = config.method.optimizer(model, given, regions.append)
    scaler = torch.amp.GradScaler(engine.device.type, enabled=engine.precision == torch.float16)
    average = None if settings.ema is None else Average(model, settings.ema)
    norms = torch.zeros((), dtype=torch.float64, device=engine.device) if config.observe.gradients else None
    step = step_for(Step(engine, model, config.method, task, optimizer, scaler, average, norms))
    rates = Rates(optimizer, engine.device)
    display.note(f"{config.name}: {_summary(data, model, steps, engine)}")
    told = "\n".join(regions)
    return Training(config, engine, data, task, model, optimizer, scaler, average, step, rates, told, norms=norms)


def build_model(config: RunConfig, data: Data, display: Display) -> nn.Module:
    """The network for this data: classes and input channels are filled in under the names that its source has for them."""
    name, given = config.model.name, dict(config.model.arguments)
    names = {"timm": ("num_classes", "in_chans"), "torchvision": ("num_classes", None)}.get(name.partition(":")[0])
    if name in MODELS:
        names = ("classes", "in_channels")
    for argument, value, usual in zip(names or (), (data.classes, data.shape[0]), (None, 3), strict=False):
        if argument is not None and value != usual:
            given.setdefault(argument, value)
    model = build(name, **given)
    if (weights := config.model.weights) is not None:
        display.note(str(load_weights(model, weights.file, into=weights.into, leave_out=weights.leave_out)))
    return model


def fitting(model: nn.Module, name: str, data: Data, device: torch.device) -> nn.Module:
    """The model, tried on two images: one line where it does not fit the data, instead of an error deep in torch."""
    shape = (2, *data.shape)
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(shape, device=device))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise ConfigError(f"model {name} does not fit inputs of shape {shape}: {first_line(error)}") from error
    wanted = (2, data.classes) if data.task == "classification" else (2, data.classes, *data.shape[1:])
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found != wanted:
        raise ConfigError(
            f"model {name} gives {found} for inputs of shape {shape}; the data, of {data.classes} classes, need {wanted}"
        )
    return model


def _summary(data: Data, model: nn.Module, steps: int, engine: Engine) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    parts = [f"{len(data.train):,} training"]
    parts += [f"{len(part):,} {name}" for name, part in (("validation", data.validation), ("test", data.test)) if part]
    return f"{', '.join(parts)} images; {parameters:,} parameters; {steps:,} steps on {engine}"


def _resume(training: Training, folder: RunFolder, display: Display) -> None:
    """From the newest whole checkpoint, the same for all processes."""
    chosen, damaged = on_first(training.engine.share, lambda: newest_checkpoint(folder.checkpoints))
    for path in damaged:
        display.note(f"{path} is damaged: its content is not what was written", warning=True)
    if chosen is not None:
        training.load(load_checkpoint(chosen))
        display.note(f"going on from step {training.step:,} of {training.steps:,}", warning=bool(damaged))
    elif damaged:
        display.note("no whole checkpoint is left: starting again", warning=True)
    elif on_first(training.engine.share, folder.metrics.exists):
        every = f"engine.checkpoint_seconds={training.config.engine.checkpoint_seconds:g}"
        display.note(f"stopped before its first checkpoint ({every}): starting again")


def _final(training: Training, folder: RunFolder) -> dict[str, Any]:
    t = training
    model = evaluated_model(t, FINAL_CALIBRATION)
    result: dict[str, Any] = {"metric": t.task.metric}
    for name, part in (("validation", t.data.validation), ("test", t.data.test)):
        result[name] = None if part is None else evaluate(model, part, t.task, t.engine)
    seconds = t.clock.seconds()
    result |= {
        "steps": t.steps,
        "seconds": seconds,
        "images_per_second": _rate(folder, t.steps * t.config.data.batch_size / max(seconds, 1e-9)),
        "skipped_images": t.data.skipped,
        "warnings": [trouble.text for trouble in troubles(aim_of(t), epochs_of(read_metrics(folder.metrics)))],
    }
    if t.engine.share.rank == 0:
        about = {"shape": list(t.data.shape), "task": t.data.task, "classes": t.data.classes}
        folder.save_model(model, about)
        folder.save_spectra(spectra(model))
        folder.finish(result)
    return result


def _rate(folder: RunFolder, overall: float) -> float:
    """The median over the epochs: the first one also compiles, and an interrupted one is cut short."""
    rates = [row["images_per_second"] for row in read_metrics(folder.metrics)]
    return statistics.median(rates) if rates else overall
