"""The figures from single trainings: weight decay and retraining, distance to the pruned network, norms of gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sparsefw.kinds import WEIGHTS
from sparsefw.plotting.charts import Axis, Chart, HeatMap, Line, Spread, spread_of
from sparsefw.plotting.palette import line_styles
from sparsefw.report.tables import Table
from sparsefw.reproduce.commands import Command, run_commands
from sparsefw.reproduce.experiment import QUICK_STEM, Experiment, ExperimentOptions, ExperimentResult
from sparsefw.reproduce.paper import find_deviations, paper
from sparsefw.reproduce.weight_figures import NO_NUMBERS, heat_map_table
from sparsefw.runfolder import RetrainingPaths, RunPaths
from sparsefw.runfolder.read import read_curve, read_epochs, read_result
from sparsefw.train.folder import RunFolder
from sparsefw.train.recipes import baseline_of, load_recipe

STEM = "cifar10-resnet18"
SETUP = "cifar10"
QUICK_EPOCHS = 10


@dataclass(frozen=True)
class TrainingExperiment(Experiment):
    """An experiment that is a list of `sparsefw` commands, each of which can be repeated."""

    unused_options = {"storage": "this is no sweep"}  # noqa: RUF012  (a ClassVar of the base class)

    @abstractmethod
    def commands(self, options: ExperimentOptions) -> list[Command]: ...

    def training(self, options: ExperimentOptions, variant: str, name: str, *changes: str, seed: int = 0) -> Command:
        """Return the command that trains a variant of the recipe; its configuration is checked now."""
        folder = self.result_folder(options) / f"{name}-seed{seed}"
        recipe = f"{_stem(options)}-{variant}"
        all_changes = [*_quick_changes(options), *changes, *options.changes]
        config = load_recipe(recipe, all_changes, seed=seed)
        if folder.exists():
            RunFolder(folder).check(config)  # refuses a run with other settings
        words = ["train", recipe, "--out", str(folder), "--seed", str(seed), "--quiet"]
        for change in all_changes:
            words += ["--set", change]
        return Command((*words, *_shared_words(options)), RunPaths(folder).result)

    def describe(self, options: ExperimentOptions) -> list[str]:
        return [*map(str, self.commands(options)), *self.deviations(options, 1)]

    def deviations(self, options: ExperimentOptions, seeds: int) -> list[str]:
        config = load_recipe(baseline_of(_stem(options)), [*_quick_changes(options), *options.changes])
        return [*find_deviations(config, paper().setups[SETUP], seeds, options.changes), NO_NUMBERS]


def _stem(options: ExperimentOptions) -> str:
    return QUICK_STEM if options.quick else STEM


def _quick_changes(options: ExperimentOptions) -> list[str]:
    return [f"train.epochs={QUICK_EPOCHS}"] if options.quick else []


def _shared_words(options: ExperimentOptions) -> list[str]:
    """Return the options that all commands take alike."""
    data = [] if options.data is None else ["--data", str(options.data)]
    return [*data, *["--trust"] * options.trust]


class WeightDecays(NamedTuple):
    """The weight decays that are tried in training, and those in retraining."""

    training: tuple[float, ...]
    retraining: tuple[float, ...]


DECAYS = WeightDecays((1e-4, 2e-4, 5e-4, 1e-3, 2e-3), (0.0, 1e-4, 2e-4, 5e-4, 1e-3))
QUICK_DECAYS = WeightDecays((1e-4, 2e-3, 1e-2), (0.0, 5e-4, 5e-3))


@dataclass(frozen=True)
class RetrainingExperiment(TrainingExperiment):
    """SGD with several weight decays, pruned, and retrained with several weight decays; and SparseFW for as many epochs."""

    removed: float = 0.95
    unused_options = {  # noqa: RUF012  (a ClassVar of the base class)
        **TrainingExperiment.unused_options,
        "seeds": "there is one training per weight decay, on seed 0",
    }

    def decays(self, options: ExperimentOptions) -> WeightDecays:
        return QUICK_DECAYS if options.quick else DECAYS

    def commands(self, options: ExperimentOptions) -> list[Command]:
        return [command for stage in self.stages(options) for command in stage]

    def stages(self, options: ExperimentOptions) -> list[list[Command]]:
        """Return the commands that train, those that prune, and those that prune and retrain; each needs those before."""
        decays = self.decays(options)
        train = [
            self.training(options, "sgd", f"sgd-{decay:g}", f"train.weight_decay={decay}") for decay in decays.training
        ]
        train.append(self.training(options, "weights-paper", "sparsefw"))
        runs = [command.output.parent for command in train]
        prune = [self._pruning(options, run) for run in runs]
        retrain = [self._retraining(options, run, decay) for run in runs for decay in decays.retraining]
        return [train, prune, retrain]

    def _pruning(self, options: ExperimentOptions, run: Path) -> Command:
        words = ("curve", str(run), "--kind", WEIGHTS.name, "--at", f"{self.removed}", "--form", "masked", "--quiet")
        return Command((*words, *_shared_words(options)), RunPaths(run).curve(WEIGHTS.name, "masked"))

    def _retraining(self, options: ExperimentOptions, run: Path, decay: float) -> Command:
        out = _retrained_folder(run, decay)
        epochs = 3 if options.quick else 10
        words = ["retrain", str(run), "--weights", f"{self.removed}", "--epochs", str(epochs), "--out", str(out)]
        words += ["--weight-decay", f"{decay}", "--schedule", "llr", "--quiet"]
        return Command((*words, *_shared_words(options)), RunPaths(RetrainingPaths(out).phase(1)).result)

    def run(self, options: ExperimentOptions) -> ExperimentResult:
        failed: list[str] = []
        for stage in self.stages(options):
            failed += run_commands(stage, options.worker_count, options.log)
        folder = self.result_folder(options)
        decays = self.decays(options)
        runs = [folder / f"sgd-{decay:g}-seed0" for decay in decays.training]
        removed = f"{self.removed:.0%} of the weights removed"
        maps = [
            _decay_map("dense", runs, decays, lambda run, decay: _dense_accuracy(run)),
            _decay_map(removed, runs, decays, lambda run, decay: _pruned_accuracy(run)),
            _decay_map("retrained", runs, decays, _retrained_accuracy),
        ]
        rows = [_table_row("SparseFW", folder / "sparsefw-seed0", decays.retraining)]
        for decay, run in zip(decays.training, runs, strict=True):
            rows.append(_table_row(f"SGD, weight decay {decay:g}", run, decays.retraining))
        table = Table((), ("", "dense", removed, "retrained", "with weight decay"), tuple(rows))
        deviations = [
            *self.deviations(options, 1),
            "each row shows the weight decay in retraining that has the best test accuracy",
        ]
        tables = {"Before pruning, after it, after retraining": table, "SGD, retrained": heat_map_table(maps[2])}
        return ExperimentResult(self.title(options), tables, {"heat": maps}, deviations, {"rows": rows}, failed)


def _decay_map(
    title: str, runs: Sequence[Path], decays: WeightDecays, accuracy: Callable[[Path, float], float]
) -> HeatMap:
    """Return a heat map over weight decays in training and in retraining."""
    return HeatMap(
        title,
        "SGD: test accuracy in %",
        "weight decay in training",
        "weight decay in retraining",
        tuple(f"{decay:g}" for decay in decays.training),
        tuple(f"{decay:g}" for decay in decays.retraining),
        tuple(tuple(accuracy(run, decay) for run in runs) for decay in decays.retraining),
        "test accuracy",
    )


def _table_row(label: str, run: Path, decays: Sequence[float]) -> tuple[str, ...]:
    """Return the accuracies of a run: dense, pruned, and retrained with its best weight decay."""
    retrained, decay = _best_retraining(run, decays)
    return label, f"{_dense_accuracy(run):.2f}", f"{_pruned_accuracy(run):.2f}", f"{retrained:.2f}", f"{decay:g}"


def _best_retraining(run: Path, decays: Sequence[float]) -> tuple[float, float]:
    """Return the best accuracy after retraining, and its weight decay; failed retrainings do not count."""
    accuracies = [(_retrained_accuracy(run, decay), decay) for decay in decays]
    return max((pair for pair in accuracies if not math.isnan(pair[0])), default=(math.nan, math.nan))


def _dense_accuracy(run: Path) -> float:
    result = read_result(run)
    return math.nan if result is None or result.test is None else result.test[result.metric]


def _pruned_accuracy(run: Path) -> float:
    curve = read_curve(run, WEIGHTS.name, "masked")
    return math.nan if curve is None else curve.points[0].plain


def _retrained_accuracy(run: Path, decay: float) -> float:
    return _dense_accuracy(RetrainingPaths(_retrained_folder(run, decay)).phase(1))


def _retrained_folder(run: Path, decay: float) -> Path:
    return run.with_name(f"{run.name}-retrained-{decay:g}")


class Quantity(StrEnum):
    """A quantity that a training can record after every epoch; the value is the name of its figure."""

    DISTANCE = "distance"
    GRADIENT_NORM = "gradient_norm"


@dataclass(frozen=True)
class EpochExperiment(TrainingExperiment):
    """A quantity over the epochs of several trainings."""

    quantity: Quantity = Quantity.DISTANCE

    def variants(self, options: ExperimentOptions) -> dict[str, tuple[str, ...]]:
        """Return for every label the variant of the recipe, followed by changes of its settings."""
        scale = 0.02 if options.quick else 1.0  # of w: a short training needs small regions
        if self.quantity is Quantity.DISTANCE:
            ks = (0.1, 0.3, 0.6) if options.quick else (0.1, 0.2, 0.3, 0.5, 0.7)
            sparsefw = {f"SparseFW k={k:g}": ("filters-paper", f"method.k={k}", f"method.w={20 * scale:g}") for k in ks}
            return {"SGD": ("sgd", "curve.kind=filters"), **sparsefw}
        pairs = ((0.1, 20), (0.1, 60)) if options.quick else ((0.1, 10), (0.1, 30), (0.3, 30))
        sgd = {f"SGD weight decay {decay:g}": ("sgd", f"train.weight_decay={decay}") for decay in (1e-4, 5e-4)}
        sparsefw = {
            f"SparseFW k={k:g} w={w * scale:g}": ("weights-paper", f"method.k={k}", f"method.w={w * scale:g}")
            for k, w in pairs
        }
        return {**sgd, **sparsefw}

    def seeds(self, options: ExperimentOptions) -> int:
        # The paper shows two seeds of the gradient norms.
        return options.seeds_or(1 if options.quick or self.quantity is Quantity.DISTANCE else 2)

    def trainings(self, options: ExperimentOptions) -> dict[str, list[Command]]:
        """Return the trainings of every label, one per seed."""
        observe = "observe.distance=0.7" if self.quantity is Quantity.DISTANCE else "observe.gradients=true"
        return {
            label: [
                self.training(options, variant, label.replace(" ", "-"), observe, *changes, seed=seed)
                for seed in range(self.seeds(options))
            ]
            for label, (variant, *changes) in self.variants(options).items()
        }

    def commands(self, options: ExperimentOptions) -> list[Command]:
        return [command for commands in self.trainings(options).values() for command in commands]

    def run(self, options: ExperimentOptions) -> ExperimentResult:
        failed = run_commands(self.commands(options), options.worker_count, options.log)
        series = {
            label: _spread_per_epoch(commands, self.quantity) for label, commands in self.trainings(options).items()
        }
        drawn = {label: values for label, values in series.items() if values}
        chart = self.chart(self.title(options), drawn, self.methods(options))
        deviations = self.deviations(options, self.seeds(options))
        record = {label: [spread.mean for spread in values] for label, values in series.items()}
        tables = {"Over the training": _quarters_table(series)}
        return ExperimentResult(self.title(options), tables, {"epochs": chart}, deviations, record, failed)

    def methods(self, options: ExperimentOptions) -> dict[str, str]:
        """Return the registered name of the method of every label."""
        stem = _stem(options)
        return {
            label: load_recipe(f"{stem}-{variant}").method.name
            for label, (variant, *_) in self.variants(options).items()
        }

    def chart(self, title: str, series: Mapping[str, Sequence[Spread]], methods: Mapping[str, str]) -> Chart:
        in_percent = self.quantity is Quantity.DISTANCE
        styles = line_styles({label: methods[label] for label in series})
        lines = []
        for label, values in series.items():
            y = [_scaled(100.0, spread) for spread in values] if in_percent else values
            x = {"epoch": [float(epoch) for epoch in range(1, len(values) + 1)]}
            lines.append(Line(label, label, self.quantity, styles[label], True, x, y))
        axis = Axis("epoch", "epoch")
        if in_percent:
            return Chart(tuple(lines), (axis,), "relative distance to the pruned network", "%", title, marked=False)
        return Chart(tuple(lines), (axis,), "norm of the gradient", "log", title, marked=False)


def _spread_per_epoch(trainings: Sequence[Command], quantity: Quantity) -> list[Spread]:
    """Return the spread over seeds of a quantity, epoch by epoch, of the trainings that did not fail."""
    finished = [training for training in trainings if training.output.exists()]
    observed = [[epoch.figures.observed for epoch in read_epochs(training.output.parent)] for training in finished]
    return [spread_of([getattr(figures, quantity) for figures in epoch]) for epoch in zip(*observed, strict=False)]


def _scaled(factor: float, spread: Spread) -> Spread:
    return Spread(
        factor * spread.mean, factor * spread.low, factor * spread.high, factor * spread.deviation, spread.count
    )


def _quarters_table(series: Mapping[str, Sequence[Spread]]) -> Table:
    """Return the values after the first epoch, after every quarter of the training, and at its end."""
    parts = {"first epoch": 0.0, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "last epoch": 1.0}
    rows = []
    for label, values in series.items():
        epochs = [max(0, round(part * len(values)) - 1) for part in parts.values()]
        rows.append((label, *(f"{values[epoch].mean:.4g}" if values else "-" for epoch in epochs)))
    return Table((), ("", *parts), tuple(rows))
