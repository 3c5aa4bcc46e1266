"""The figures that come from single trainings: weight decay and retraining, distance to the pruned network, gradient norms."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefw.plotting.charts import Axis, Chart, HeatMap, Line, Spread, spread_of
from sparsefw.plotting.palette import looks_of
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import QUICK_STEM, Command, Experiment, Findings, Setting, run_commands
from sparsefw.reproduce.paper import deviations, paper
from sparsefw.reproduce.weight_figures import NO_NUMBERS, map_table
from sparsefw.train.folder import RunFolder
from sparsefw.train.log import read_metrics
from sparsefw.train.recipes import load_recipe

STEM, SETUP = "cifar10-resnet18", "cifar10"
QUICK_EPOCHS = 10


@dataclass(frozen=True)
class Trainings(Experiment):
    """An experiment that is a list of `sparsefw` commands, each of which can be repeated."""

    name: str
    shows: str

    @abstractmethod
    def commands(self, setting: Setting) -> list[Command]: ...

    def place(self, setting: Setting) -> Path:
        return setting.folder / (f"quick-{self.name}" if setting.quick else self.name)

    def training(self, setting: Setting, variant: str, name: str, *changes: str, seed: int = 0) -> Command:
        """A recipe's variant with settings of the experiment, checked before anything is trained."""
        folder = self.place(setting) / f"{name}-seed{seed}"
        asked = [f"train.epochs={QUICK_EPOCHS}"] * setting.quick + [*changes, *setting.changes]
        recipe = f"{QUICK_STEM if setting.quick else STEM}-{variant}"
        config = load_recipe(recipe, asked, seed=seed)
        if folder.exists():
            RunFolder(folder).check(config)  # what was trained otherwise is not shown as this
        words = ["train", recipe, "--out", str(folder), "--seed", str(seed), "--quiet"]
        for change in asked:
            words += ["--set", change]
        words += ["--data", str(setting.data)] if setting.data is not None else []
        return Command(tuple(words), folder / "result.json")

    def planned(self, setting: Setting) -> list[str]:
        return [*map(str, self.commands(setting)), *self.told(setting, 1)]

    def told(self, setting: Setting, seeds: int) -> list[str]:
        epochs = [f"train.epochs={QUICK_EPOCHS}"] * setting.quick
        config = load_recipe(f"{QUICK_STEM if setting.quick else STEM}-sgd", [*epochs, *setting.changes])
        return [*deviations(config, paper().setups[SETUP], seeds, setting.changes), NO_NUMBERS]


@dataclass(frozen=True)
class Retraining(Trainings):
    """SGD with many weight decays, pruned at once, retrained with many weight decays; and SparseFW, for the same time."""

    removed: float = 0.95

    def decays(self, setting: Setting) -> tuple[list[float], list[float]]:
        """In training, and in retraining."""
        if setting.quick:
            return [1e-4, 2e-3, 1e-2], [0.0, 5e-4, 5e-3]
        return [1e-4, 2e-4, 5e-4, 1e-3, 2e-3], [0.0, 1e-4, 2e-4, 5e-4, 1e-3]

    def commands(self, setting: Setting) -> list[Command]:
        return [command for stage in self.stages(setting) for command in stage]

    def stages(self, setting: Setting) -> list[list[Command]]:
        """One after the other: train, prune, prune and retrain."""
        training, retraining = self.decays(setting)
        trained = [self.training(setting, "sgd", f"sgd-{wd:g}", f"train.weight_decay={wd}") for wd in training]
        trained.append(self.training(setting, "weights-paper", "sparsefw"))
        pruned, again = [], []
        data = ["--data", str(setting.data)] if setting.data is not None else []
        epochs = 3 if setting.quick else 10
        for command in trained:
            run = command.makes.parent
            words = [
                "curve",
                str(run),
                "--kind",
                "weights",
                "--at",
                f"{self.removed}",
                "--form",
                "masked",
                "--quiet",
                *data,
            ]
            pruned.append(Command(tuple(words), run / "curves" / "weights-masked.json"))
            for wd in retraining:
                out = run.with_name(f"{run.name}-retrained-{wd:g}")
                words = [
                    "retrain",
                    str(run),
                    "--weights",
                    f"{self.removed}",
                    "--epochs",
                    str(epochs),
                    "--out",
                    str(out),
                ]
                words += ["--weight-decay", f"{wd}", "--schedule", "llr", "--quiet", *data]
                again.append(Command(tuple(words), out / "phase-1" / "result.json"))
        return [trained, pruned, again]

    def run(self, setting: Setting) -> Findings:
        failed = [line for stage in self.stages(setting) for line in run_commands(stage, setting)]
        training, retraining = self.decays(setting)
        runs = [self.place(setting) / f"sgd-{wd:g}-seed0" for wd in training]
        x, y = tuple(f"{wd:g}" for wd in training), tuple(f"{wd:g}" for wd in retraining)

        def figures(value: Any) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(value(run, wd) for run in runs) for wd in retraining)

        def one_map(title: str, value: Any) -> HeatMap:
            labels = "weight decay in training", "weight decay in retraining"
            return HeatMap(title, "SGD: test accuracy in %", *labels, x, y, figures(value), "test accuracy")

        share = f"{self.removed:.0%} of the weights removed"
        maps = [
            one_map("dense", lambda run, wd: _dense(run)),
            one_map(share, lambda run, wd: _pruned(run)),
            one_map("retrained", lambda run, wd: _retrained(run, wd)),
        ]
        sparse = self.place(setting) / "sparsefw-seed0"
        best = _best(sparse, retraining)
        rows = [("SparseFW", _text(_dense(sparse)), _text(_pruned(sparse)), _text(best[0]), f"{best[1]:g}")]
        for wd, run in zip(training, runs, strict=True):
            top = _best(run, retraining)
            rows.append(
                (f"SGD, weight decay {wd:g}", _text(_dense(run)), _text(_pruned(run)), _text(top[0]), f"{top[1]:g}")
            )
        table = Table((), ("", "dense", share, "retrained", "with weight decay"), tuple(rows))
        told = [
            *self.told(setting, 1),
            "of all weight decays in retraining, a row tells the one with the best test accuracy",
        ]
        tables = {"Before pruning, after it, after retraining": table, "SGD, retrained": map_table(maps[2])}
        return Findings(self.title(setting), tables, {"heat": maps}, told, {"rows": rows}, failed)


def _json(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text())) if path.exists() else None


def _dense(run: Path) -> float:
    result = _json(run / "result.json")
    return math.nan if result is None else float(result["test"][result["metric"]])


def _pruned(run: Path) -> float:
    curve = _json(run / "curves" / "weights-masked.json")
    value = None if curve is None else curve["points"][0]["plain"]
    return math.nan if value is None else float(value)


def _retrained(run: Path, decay: float) -> float:
    return _dense(run.with_name(f"{run.name}-retrained-{decay:g}") / "phase-1")


def _best(run: Path, decays: Sequence[float]) -> tuple[float, float]:
    """The best figure after retraining, and the weight decay that has it; those that failed do not count."""
    found = [(value, decay) for decay in decays if not math.isnan(value := _retrained(run, decay))]
    return max(found, default=(math.nan, math.nan))


def _text(value: float) -> str:
    return f"{value:.2f}"


@dataclass(frozen=True)
class Observed(Trainings):
    """A figure over the epochs of several trainings. quantity: what metrics.jsonl calls it."""

    quantity: str = "distance"

    def variants(self, setting: Setting) -> dict[str, tuple[str, ...]]:
        """Label -> the recipe's variant, and settings."""
        scale = 0.02 if setting.quick else 1.0  # of w: a short training needs small regions
        if self.quantity == "distance":
            ks = (0.1, 0.3, 0.6) if setting.quick else (0.1, 0.2, 0.3, 0.5, 0.7)
            found = {f"SparseFW k={k:g}": ("filters-paper", f"method.k={k}", f"method.w={20 * scale:g}") for k in ks}
            return {"SGD": ("sgd", "curve.kind=filters"), **found}
        pairs = ((0.1, 10), (0.1, 30), (0.3, 30)) if not setting.quick else ((0.1, 20), (0.1, 60))
        found = {
            f"SparseFW k={k:g} w={w * scale:g}": ("weights-paper", f"method.k={k}", f"method.w={w * scale:g}")
            for k, w in pairs
        }
        decays = {f"SGD weight decay {wd:g}": ("sgd", f"train.weight_decay={wd}") for wd in (1e-4, 5e-4)}
        return {**decays, **found}

    def seeds(self, setting: Setting) -> int:
        usual = 1 if setting.quick or self.quantity == "distance" else 2  # as the paper's gradient norms
        return setting.count(usual)

    def runs(self, setting: Setting) -> dict[str, list[Command]]:
        watched = "observe.distance=0.7" if self.quantity == "distance" else "observe.gradients=true"
        return {
            label: [
                self.training(setting, variant, label.replace(" ", "-"), watched, *changes, seed=seed)
                for seed in range(self.seeds(setting))
            ]
            for label, (variant, *changes) in self.variants(setting).items()
        }

    def commands(self, setting: Setting) -> list[Command]:
        return [command for group in self.runs(setting).values() for command in group]

    def run(self, setting: Setting) -> Findings:
        failed = run_commands(self.commands(setting), setting)
        series = {label: _over_epochs(group, self.quantity) for label, group in self.runs(setting).items()}
        chart = self.chart(self.title(setting), {label: values for label, values in series.items() if values})
        told = self.told(setting, self.seeds(setting))
        record = {label: [one.mean for one in values] for label, values in series.items()}
        return Findings(
            self.title(setting), {"Over the training": _table(series)}, {"epochs": chart}, told, record, failed
        )

    def chart(self, title: str, series: Mapping[str, Sequence[Spread]]) -> Chart:
        percent = self.quantity == "distance"
        style = looks_of(series)
        lines = []
        for label, values in series.items():
            scaled = [_times(100.0, one) if percent else one for one in values]
            x = {"epoch": [float(number) for number in range(1, len(values) + 1)]}
            lines.append(Line(label, label, self.quantity, style[label], True, x, scaled))
        label = "relative distance to the pruned network" if percent else "norm of the gradient"
        axis = Axis("epoch", "epoch")
        return Chart(tuple(lines), (axis,), label, "%" if percent else "log", title, marked=False)


def _over_epochs(group: Sequence[Command], quantity: str) -> list[Spread]:
    rows = [read_metrics(command.makes.parent / "metrics.jsonl") for command in group if command.makes.exists()]
    return [spread_of([row["observed"][quantity] for row in epoch]) for epoch in zip(*rows, strict=False)]


def _times(factor: float, one: Spread) -> Spread:
    return Spread(factor * one.mean, factor * one.low, factor * one.high, factor * one.deviation, one.count)


def _table(series: Mapping[str, Sequence[Spread]]) -> Table:
    """At the beginning, the quarters and the end."""
    parts = {"first epoch": 0.0, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "last epoch": 1.0}
    rows = []
    for label, values in series.items():
        places = [max(0, round(part * len(values)) - 1) for part in parts.values()]
        rows.append((label, *(f"{values[place].mean:.4g}" if values else "-" for place in places)))
    return Table((), ("", *parts), tuple(rows))
