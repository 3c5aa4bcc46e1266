"""Experiments: their options, their results, and the interface that all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sparsefw.atomic_io import write_json, write_text
from sparsefw.config_base import ConfigError
from sparsefw.environment import environment
from sparsefw.plotting.charts import Chart, HeatMap
from sparsefw.plotting.figure_io import save_figure
from sparsefw.plotting.heat_maps import draw_heat_maps
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.report.tables import Table, save_table
from sparsefw.sweep.processes import default_workers

QUICK_STEM = "digits-resnet"  # the recipe of quick experiments


@dataclass(frozen=True)
class ExperimentOptions:
    """The options of `sparsefw reproduce`.

    folder     where all experiments write
    quick      train on handwritten digits, in minutes, instead of the paper's data set
    seeds      None: the default of the experiment
    data       the folder of the data set
    workers    None: one per GPU, or one per core
    changes    settings of all trainings, such as "train.epochs=5"
    storage    of the sweep; None: a file
    trust      whether Python code that the changes name may be imported, which runs it
    log        called with a line for everything that happens
    """

    folder: Path
    quick: bool
    seeds: int | None
    data: Path | None
    workers: int | None
    changes: tuple[str, ...]
    storage: str | None
    trust: bool
    log: Callable[[str], None]

    def seeds_or(self, default: int) -> int:
        return default if self.seeds is None else self.seeds

    @property
    def worker_count(self) -> int:
        return default_workers() if self.workers is None else self.workers


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment.

    tables       by their titles
    charts       by the ends of their file names
    deviations   from the paper, a sentence each
    record       all numbers, for machines
    failed       a line for every training that failed
    """

    title: str
    tables: Mapping[str, Table]
    charts: Mapping[str, Chart | Sequence[HeatMap]]
    deviations: Sequence[str]
    record: Mapping[str, Any]
    failed: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        lines = [self.title]
        for title, table in self.tables.items():
            lines += ["", title, table.text()]
        lines += ["", "Differences from the paper:", *(f"- {sentence}" for sentence in self.deviations)]
        lines += [f"failed: {line}" for line in self.failed]
        return "\n".join(lines)

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write every table and figure, and a Markdown page with all of them; return the files, the page first."""
        files = []
        parts = [f"# {self.title}"]
        for number, (title, table) in enumerate(self.tables.items(), start=1):
            files += save_table(table, folder / (name if number == 1 else f"{name}-{number}"))
            parts += [f"## {title}", table.markdown()]
        for ending, chart in self.charts.items():
            figure = draw_chart(chart) if isinstance(chart, Chart) else draw_heat_maps(chart)
            files += save_figure(figure, folder / f"{name}-{ending}")
            parts.append(f"![{ending}]({name}-{ending}.png)")
        parts += ["## Differences from the paper", "\n".join(f"- {sentence}" for sentence in self.deviations)]
        page = folder / "README.md"
        write_text(page, "\n\n".join(parts) + "\n")
        summary = {"title": self.title, "deviations": list(self.deviations), "failed": list(self.failed)}
        write_json(folder / "reproduction.json", {**summary, **self.record, **environment()})
        return [page, *files]


@dataclass(frozen=True)
class Experiment(ABC):
    """A table or figure of the paper; shows: what it shows, in a few words."""

    name: str
    shows: str
    # Options of `sparsefw reproduce` that the experiment cannot use, each with the reason.
    unused_options: ClassVar[Mapping[str, str]] = {}

    def check_options(self, options: ExperimentOptions) -> None:
        """Refuse an option that the experiment would ignore."""
        for option, reason in self.unused_options.items():
            value = getattr(options, option)
            if value is not None:
                raise ConfigError(f"--{option} {value}: {reason}; leave it out")

    def title(self, options: ExperimentOptions) -> str:
        return f"Scaled down to digits, for orientation only ({self.shows})" if options.quick else self.shows

    def result_folder(self, options: ExperimentOptions) -> Path:
        return options.folder / (f"quick-{self.name}" if options.quick else self.name)

    @abstractmethod
    def describe(self, options: ExperimentOptions) -> list[str]:
        """Return what would be trained, a line each; all configurations are checked, and nothing is trained."""

    @abstractmethod
    def run(self, options: ExperimentOptions) -> ExperimentResult: ...
