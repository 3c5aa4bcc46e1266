"""The paper's throughput table: training images per second of the low-rank methods, as shares of SGD's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefw.bench import STEADY, measure_training_speed
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import QUICK_STEM, Experiment, ExperimentOptions, ExperimentResult
from sparsefw.reproduce.paper import paper
from sparsefw.train.recipes import baseline_of, load_recipe

SECONDS = 5.0  # for which each rate is measured
QUICK_SECONDS = 0.5
STEMS = {"cifar10": "cifar10-resnet18", "cifar100": "cifar100-wide-resnet", "tinyimagenet": "tinyimagenet-resnet50"}
# Row of `sparsefw bench train` -> row of the paper's table.
ROWS = {
    "sgd": "SGD",
    "rank-0.1": "SparseFW",
    "nuc": "NUC",
    "nuc-svd": "NUC",
    "svdenergy": "SVDEnergy",
    "svdenergy-svd": "SVDEnergy",
    "fr": "FR",
    "trp": "TRP",
    "trp-svd": "TRP",
}


@dataclass(frozen=True)
class ThroughputExperiment(Experiment):
    unused_options = {  # noqa: RUF012  (a ClassVar of the base class)
        "seeds": "speed does not depend on the seed",
        "workers": "methods are timed one after the other",
        "storage": "this is no sweep",
    }

    def stems(self, options: ExperimentOptions) -> dict[str, str]:
        """Return the recipes to measure, by the data set of the paper's column."""
        return {"cifar10": QUICK_STEM} if options.quick else STEMS

    def describe(self, options: ExperimentOptions) -> list[str]:
        self._check_changes(options)
        lines = []
        changes = "".join(f" --set {change}" for change in options.changes)
        for stem in self.stems(options).values():
            lines.append(f"sparsefw bench train {stem} --rows {','.join(ROWS)}{changes}")
        return lines

    def _check_changes(self, options: ExperimentOptions) -> None:
        """Refuse changes that a recipe does not accept, before anything is measured."""
        for stem in self.stems(options).values():
            load_recipe(baseline_of(stem), options.changes)

    def run(self, options: ExperimentOptions) -> ExperimentResult:
        self._check_changes(options)
        tables = {}
        record = {}
        for data, stem in self.stems(options).items():
            setup = paper().setups[data]
            record[stem] = measure_rates(stem, options, list(ROWS))
            tables[f"{stem}, paper: {setup.title}"] = _table(record[stem], data)
        deviations = [
            "images/s are of this machine, the paper's of a V100: compare the shares of SGD's",
            "NUC, SVDEnergy and TRP are measured with full SVDs, as in the paper, and in the forms that need none",
            "SparseFW has k = 0.1; the paper does not say which k its row has",
        ]
        deviations += [warning for measured in record.values() if (warning := drift_warning(measured))]
        if options.quick:
            deviations.append(f"a small network on digits, {QUICK_STEM}, beside the paper's ResNet-18 on CIFAR-10")
        elif options.data is None:
            deviations.append("images are made up in memory, because no --data was given")
        return ExperimentResult(self.title(options), tables, {}, deviations, record)


def measure_rates(stem: str, options: ExperimentOptions, rows: list[str]) -> dict[str, Any]:
    """Measure training images per second of rows of `sparsefw bench train`."""
    seconds = QUICK_SECONDS if options.quick else SECONDS
    return measure_training_speed(stem, options.data, seconds, options.changes, rows, options.trust)


def drift_warning(measured: Mapping[str, Any]) -> str | None:
    """Return a warning if the speed of SGD itself changed between the beginning and the end of the measurement."""
    drift = measured["drift"]
    if abs(drift) <= STEADY:
        return None
    return f"images/s are unreliable: SGD's changed by {drift:+.0%} meanwhile, because the machine was busy"


def _table(measured: Mapping[str, Any], data: str) -> Table:
    header = ("", "images/s", "share of SGD's", "paper: images/s", "paper: share", "difference of shares")
    rows = []
    for name, ours in measured["rows"].items():
        theirs = paper().throughput[ROWS[name]][data]
        share = theirs / paper().throughput["SGD"][data]
        rows.append(
            (
                ours["label"],
                f"{ours['images_per_second']:,.0f}",
                f"{ours['share']:.3f}",
                f"{theirs:,.0f}",
                f"{share:.3f}",
                f"{ours['share'] - share:+.3f}",
            )
        )
    return Table((), header, tuple(rows))
