"""Magnitude pruning with retraining: the rival that may train again after compression, once or in several phases.

Phase i of n sets the smallest weights of all convolutions and linear layers to 0 until 1 - (1 - weights)^(i/n) of them are,
and trains with these masks (methods/masked.py). Each phase is an ordinary run: after a kill, the same call resumes it.

    Han et al., arXiv:1506.02626; Renda, Frankle, Carbin, arXiv:2003.02389 (iterative, LRW); Le, Hua, arXiv:2105.03193 (SLR, CLR);
    Zimmer, Spiegel, Pokutta, arXiv:2111.00843 (LLR)
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsefw.atomic_io import file_digest
from sparsefw.compression.structure.masks import global_masks
from sparsefw.config_base import ConfigError, parse
from sparsefw.kinds import WEIGHTS
from sparsefw.methods import Masked
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.runfolder import RetrainingPaths
from sparsefw.runfolder.read import read_retraining
from sparsefw.runfolder.schema import RetrainingPhase, RetrainingRequest
from sparsefw.runfolder.write import write_phase_weights, write_retraining
from sparsefw.text import did_you_mean
from sparsefw.train.config import TrainConfig, WeightsConfig
from sparsefw.train.folder import RunFolder
from sparsefw.train.run import fit
from sparsefw.train.schedule import Schedule

WARM_UP = 0.1  # share of the retraining

SCHEDULES = {
    "ft": "constant, the rate with which the last epoch began",
    "lrw": "the last epochs of the original schedule, repeated",
    "slr": "the original schedule, compressed to the epochs of the retraining, after a warm-up",
    "clr": "from the largest rate to that of ft along a cosine, after a warm-up",
    "llr": "from the largest rate to zero along a line, after a warm-up",
}


def retraining_config(train: TrainConfig, epochs: int, schedule: str) -> TrainConfig:
    """Return how a network that was trained like this is retrained for `epochs` epochs."""
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule={schedule!r}{did_you_mean(schedule, SCHEDULES)}; there are {', '.join(SCHEDULES)}")
    if epochs < 1:
        raise ConfigError(f"epochs={epochs}: must be at least 1")
    old = train.schedule
    falling = train.epochs - old.warmup  # epochs after the warm-up
    if schedule == "lrw" and epochs > falling:
        raise ConfigError(f"epochs={epochs}: lrw repeats the end of a training that had {falling:g} after its warm-up")
    first = old.factor_at(old.begin)
    last = _last_factor(old, train.epochs)
    warmup = WARM_UP * epochs
    scale = {"ft": last, "clr": first, "llr": first}.get(schedule, 1.0)
    if schedule == "ft":
        new = Schedule(kind="constant")
    elif schedule == "lrw":
        begin = old.begin + (1 - old.begin) * (falling - epochs) / falling
        new = old.model_copy(update={"begin": begin, "warmup": 0.0})
    elif schedule == "slr":
        new = old.model_copy(update={"warmup": warmup})
    elif schedule == "clr" and last < first:
        new = Schedule(kind="cosine", warmup=warmup, floor=last / first)
    else:
        new = Schedule(kind="linear" if schedule == "llr" else "constant", warmup=warmup)
    rest_lr = None if train.rest_lr is None else train.rest_lr * scale
    return train.model_copy(update={"epochs": epochs, "schedule": new, "lr": train.lr * scale, "rest_lr": rest_lr})


def _last_factor(schedule: Schedule, epochs: int) -> float:
    """Return the factor with which the last epoch began, also where a warm-up took part of an epoch."""
    steps_per_epoch = 1000
    return schedule.at((epochs - 1) * steps_per_epoch, epochs * steps_per_epoch, steps_per_epoch)


def retrain(
    run: Path,
    out: Path,
    *,
    weights: float,
    epochs: int,
    schedule: str = "llr",
    phases: int = 1,
    weight_decay: float | None = None,
    data: Path | None = None,
    trust: bool = False,
    quiet: bool = False,
    data_changed: bool = False,
) -> list[Phase]:
    """Prune the network of a run and retrain it, in phases, each of which is a run folder in `out`.

    Args:
        weights: the fraction of the weights that the last phase has removed.
        epochs: of each phase.
        schedule: a key of SCHEDULES.
        weight_decay: None: that of the run.
        data: None: the folder that the run was trained on.
        trust: whether Python code that makes the run's network may be imported, which runs it.
        data_changed: resume also where the data are not those with which the retraining began.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("retrain runs in one process: start it without torchrun")
    if not 0 < weights < 1:
        raise ConfigError(f"weights={weights}: the fraction of the weights to remove must be between 0 and 1")
    if phases < 1:
        raise ConfigError(f"phases={phases}: must be at least 1")
    source = RunFolder(run)
    original = source.config
    train = retraining_config(original.train, epochs, schedule)
    if weight_decay is not None:
        train = parse(TrainConfig, {**train.model_dump(), "weight_decay": weight_decay}, "retrain")
    zeros = _zero_share(source.load_model(trust)[0])
    if zeros >= 1 - (1 - weights) ** (1 / phases):
        raise ConfigError(f"weights={weights:g} in {phases} phases: {zeros:.2%} of the weights of {run} are 0 already")
    _claim(out, RetrainingRequest(file_digest(source.paths.model)[:16], weights, epochs, schedule, phases))
    finished: list[Phase] = []
    for number in range(1, phases + 1):
        removed = 1 - (1 - weights) ** (number / phases)
        file = _masked_weights(source, out, number, removed, trust)
        model = original.model.model_copy(update={"weights": WeightsConfig(file=file)})
        name = f"{original.name}-retrained-{schedule}"
        method = Masked(removed=round(removed, 6))
        config = original.model_copy(update={"name": name, "model": model, "method": method, "train": train})
        phase = RetrainingPhase(str(run.resolve()), removed, schedule, number, phases)
        folder = RetrainingPaths(out).phase(number)
        images = source.data if data is None else data
        result = fit(config, folder, images, trust=trust, quiet=quiet, phase=phase, data_changed=data_changed)
        source = RunFolder(folder)
        finished.append(Phase(folder, removed, _zero_share(source.load_model(trust)[0]), result))
    return finished


class Phase(NamedTuple):
    """A retrained network.

    ratio    fraction of the weights that was removed
    zeros    fraction of the weights that is 0 now
    result   its metrics
    """

    folder: Path
    ratio: float
    zeros: float
    result: dict[str, Any]


def _claim(out: Path, request: RetrainingRequest) -> None:
    """Record the request in an empty folder, or check that the folder holds this very retraining."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    before = read_retraining(out)
    if before is None:
        if out.exists() and os.listdir(out):
            raise ConfigError(f"{out} holds files, but no retraining; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_retraining(out, request)
        return
    old = asdict(before)
    for key, value in asdict(request).items():
        if old[key] != value:
            other = "of another network" if key == "run" else f"with {key}={old[key]}"
            raise ConfigError(f"{key}={value}: {out} holds a retraining {other}; choose another --out")


def _masked_weights(source: RunFolder, out: Path, phase: int, removed: float, trust: bool) -> Path:
    """Write a file with the weights of a run, the smallest set to 0, and return its path.

    It is written again where a killed phase is resumed: nothing else would notice that it was damaged meanwhile.
    """
    model, _ = source.load_model(trust)
    weights = _prunable(model)
    with torch.no_grad():
        for name, mask in global_masks(weights, removed).items():
            weights[name].mul_(mask)
    return write_phase_weights(out, phase, {name: value.contiguous() for name, value in model.state_dict().items()})


def _prunable(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that are masked: those of convolutions and linear layers."""
    wanted = {p for layers in weight_stacks(model, WEIGHTS) for p in layers.parameters}
    return {name: p for name, p in model.named_parameters() if p in wanted}


def _zero_share(model: nn.Module) -> float:
    """Return the fraction of the prunable weights that is 0."""
    weights = _prunable(model).values()
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
