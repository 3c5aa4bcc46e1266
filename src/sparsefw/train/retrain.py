"""Magnitude pruning with retraining: the rival that may train again after compression, once or several times over.

In phase i of n the smallest weights of all convolutions and linear layers are set to 0 until 1 - (1 - weights)^(i/n) of them are,
and training goes on with these masks (methods/masked.py). Each phase is an ordinary run: killed, the same call goes on.

    Han et al., arXiv:1506.02626; Renda, Frankle, Carbin, arXiv:2003.02389 (iterative, LRW); Le, Hua, arXiv:2105.03193 (SLR, CLR);
    Zimmer, Spiegel, Pokutta, arXiv:2111.00843 (LLR)
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsefw.atomic_io import replaced_file, write_json
from sparsefw.compression.structure.masks import global_masks
from sparsefw.config_base import ConfigError, parse
from sparsefw.kinds import WEIGHTS
from sparsefw.methods import Masked
from sparsefw.methods.layers import layers_of
from sparsefw.text import did_you_mean
from sparsefw.train.config import TrainConfig, WeightsConfig
from sparsefw.train.folder import RunFolder
from sparsefw.train.run import fit
from sparsefw.train.schedule import Schedule

WARM_UP = 0.1  # of the retraining

SCHEDULES = {
    "ft": "the rate at which the last epoch began, constant",
    "lrw": "the last epochs of the original schedule, again",
    "slr": "the original schedule in the time that there is, after a warm-up",
    "clr": "from the largest rate to that of ft along a cosine, after a warm-up",
    "llr": "from the largest rate to zero along a line, after a warm-up",
}


def retraining(train: TrainConfig, epochs: int, schedule: str) -> TrainConfig:
    """How a network that was trained like this is retrained for so many epochs."""
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule={schedule!r}{did_you_mean(schedule, SCHEDULES)}; there are {', '.join(SCHEDULES)}")
    if epochs < 1:
        raise ConfigError(f"epochs={epochs}: at least one")
    old = train.schedule
    falling = train.epochs - old.warmup  # epochs that were not warm-up
    if schedule == "lrw" and epochs > falling:
        raise ConfigError(f"epochs={epochs}: lrw repeats the end of a training that had {falling:g} after its warm-up")
    first, last = old.factor_at(old.begin), _last(old, train.epochs)
    warmup = WARM_UP * epochs
    scale = {"ft": last, "clr": first, "llr": first}.get(schedule, 1.0)
    if schedule == "ft":
        found = Schedule(kind="constant")
    elif schedule == "lrw":
        begin = old.begin + (1 - old.begin) * (falling - epochs) / falling
        found = old.model_copy(update={"begin": begin, "warmup": 0.0})
    elif schedule == "slr":
        found = old.model_copy(update={"warmup": warmup})
    elif schedule == "clr" and last < first:
        found = Schedule(kind="cosine", warmup=warmup, floor=last / first)
    else:
        found = Schedule(kind="linear" if schedule == "llr" else "constant", warmup=warmup)
    rest_lr = None if train.rest_lr is None else train.rest_lr * scale
    return train.model_copy(update={"epochs": epochs, "schedule": found, "lr": train.lr * scale, "rest_lr": rest_lr})


def _last(schedule: Schedule, epochs: int) -> float:
    """The factor with which the last epoch began; also where a warm-up took part of an epoch."""
    fine = 1000  # steps per epoch
    return schedule.at((epochs - 1) * fine, epochs * fine, fine)


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
    quiet: bool = False,
) -> list[Phase]:
    """Prune the network of a run and retrain it, in phases; the runs' folders are out/phase-1, out/phase-2, ..."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("retrain runs in one process: without torchrun")
    if not 0 < weights < 1:
        raise ConfigError(f"weights={weights}: the fraction of the weights to remove must be between 0 and 1")
    if phases < 1:
        raise ConfigError(f"phases={phases}: at least one")
    source = RunFolder(run)
    original = source.config
    how = retraining(original.train, epochs, schedule)
    if weight_decay is not None:
        how = parse(TrainConfig, {**how.model_dump(), "weight_decay": weight_decay}, "retrain")
    already = _zeros(source.load_model()[0])
    if already >= 1 - (1 - weights) ** (1 / phases):
        raise ConfigError(
            f"weights={weights:g} in {phases} phases: {already:.2%} of the weights of {run} are 0 already"
        )
    _claim(out, {"run": _digest(run), "weights": weights, "epochs": epochs, "schedule": schedule, "phases": phases})
    found: list[Phase] = []
    for i in range(1, phases + 1):
        removed = 1 - (1 - weights) ** (i / phases)
        folder = out / f"phase-{i}"
        file = _masked_weights(source, folder.with_name(f"phase-{i}.safetensors"), removed)
        model = original.model.model_copy(update={"weights": WeightsConfig(file=file)})
        name = f"{original.name}-retrained-{schedule}"
        config = original.model_copy(
            update={"name": name, "model": model, "method": Masked(removed=round(removed, 6)), "train": how}
        )
        result = fit(config, folder, source.data if data is None else data, quiet=quiet)
        source = RunFolder(folder)
        found.append(Phase(folder, removed, _zeros(source.load_model()[0]), result))
    return found


class Phase(NamedTuple):
    """A retrained network: where it is, the fraction of weights that was removed, that which is 0 now, and its metrics."""

    folder: Path
    ratio: float
    zeros: float
    result: dict[str, Any]


def _claim(out: Path, asked: dict[str, Any]) -> None:
    """Write down what was asked for, or see that it is what was asked for before: what lies there is never mixed."""
    file = out / "retrain.json"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another --out")
    if not file.exists():
        if out.exists() and os.listdir(out):
            raise ConfigError(f"{out} holds files, but no retraining; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_json(file, asked)
    before = json.loads(file.read_text())
    for key, value in asked.items():
        if before.get(key) != value:
            what = "of another network" if key == "run" else f"with {key}={before.get(key)}"
            raise ConfigError(f"{key}={value}: {out} holds a retraining {what}; choose another --out")


def _digest(run: Path) -> str:
    """Of the trained weights: a run that was trained anew is another one."""
    with (run / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _masked_weights(source: RunFolder, file: Path, removed: float) -> Path:
    """The run's weights without the smallest, as a file; written once, since the run that starts from it names it."""
    from safetensors.torch import save_file

    if not file.exists():
        model, _ = source.load_model()
        weights = _prunable(model)
        with torch.no_grad():
            for name, mask in global_masks(weights, removed).items():
                weights[name].mul_(mask)
        with replaced_file(file) as aside:
            save_file({name: value.contiguous() for name, value in model.state_dict().items()}, aside)
    return file


def _prunable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that masks hold: those of convolutions and linear layers."""
    wanted = {p for layers in layers_of(model, WEIGHTS) for p in layers.parameters}
    return {name: p for name, p in model.named_parameters() if p in wanted}


def _zeros(model: nn.Module) -> float:
    weights = _prunable(model).values()
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
