"""Shows a training: by a live bar of rich on a terminal, by a line per epoch elsewhere, not at all where quiet."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from sparsefw.runfolder.schema import EpochRecord
from sparsefw.train.constraint_progress import planned_renewals, progress_text
from sparsefw.train.diagnosis import Trouble

if TYPE_CHECKING:
    from sparsefw.train.loop import Training

REFRESH = 0.5  # seconds: reading figures from a GPU waits for it, so not in every step


class Display:
    """Used in a `with` block. `quiet` shows nothing but warnings."""

    def __init__(self, title: str, quiet: bool, first: bool = True) -> None:
        """first: whether this is the first of several processes; the others are silent."""
        quiet = quiet or not first
        self._title = title
        self._first = first
        self._bar: Any = None
        self._live = not quiet and sys.stderr.isatty()
        self._lines = not quiet and not self._live
        self._last = 0.0
        self._mark = (0, 0.0)  # step and seconds at the last refresh
        self._rate = 0.0
        self._validated = ""  # the validation metric when it was last measured
        self._constraint = ""  # the progress of the constraint when it was last measured
        self._warned: set[str] = set()  # keys of the troubles that were shown

    def __enter__(self) -> Display:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
            self._bar = Progress(*columns, TextColumn("{task.fields[figures]}"), console=Console(stderr=True))
            self._bar.start()
            self._row = self._bar.add_task(self._title, total=None, figures="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def warn(self, trouble: Trouble) -> None:
        """Show a trouble in one line that stays, once, also where the user asked for quiet."""
        if trouble.key not in self._warned:
            self._warned.add(trouble.key)
            self.note(f"{self._title}: warning: {trouble.text}", warning=True)

    def note(self, text: str, warning: bool = False) -> None:
        """Show a line that stays; a warning also where the user asked for quiet."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._lines or (warning and self._first):
            print(text, file=sys.stderr, flush=True)

    def stepped(self, t: Training, lr: float) -> None:
        """Move the bar."""
        now = time.monotonic()
        if self._bar is None or now - self._last < REFRESH:
            return
        self._last = now
        self._bar.update(self._row, total=t.steps, completed=t.step, figures=self._figures(t, lr))

    def _figures(self, t: Training, lr: float) -> str:
        step, seconds = self._mark
        now = t.clock.seconds()
        if now > seconds:
            self._rate = (t.step - step) * t.config.data.batch_size / (now - seconds)
        self._mark = (t.step, now)
        figures = t.task.metrics(t.sums.cpu())
        text = f"{self._rate:,.0f} images/s  loss {figures['loss']:.3f}  {t.task.metric} {figures[t.task.metric]:.1f}"
        eta = effective_step(t)
        step_size = "" if eta is None else f"  step size {eta:.1e}"
        return f"{text}{self._validated}{self._constraint}  lr {lr:.4f}{step_size}"

    def epoch_ended(self, t: Training, record: EpochRecord) -> None:
        """Show the line of an epoch, or keep its figures for the bar."""
        metric = t.task.metric
        figures = record.figures
        constraint = ""
        if figures.constraint is not None:
            constraint = f"  {progress_text(figures.constraint, planned_renewals(t.optimizer))}"
            self._constraint = constraint
        validation = ""
        if figures.validation is not None:
            validation = f"  validation {figures.validation[metric]:6.2f}"
            self._validated = f"  validation {figures.validation[metric]:.1f}"
        if self._bar is not None:
            self._bar.update(self._row, total=t.steps, completed=t.step)
        if self._lines:
            place = f"epoch {record.epoch:>3}/{t.config.train.epochs}  {record.images_per_second:>8,.0f} images/s"
            train = f"loss {figures.train['loss']:.4f}  {metric} {figures.train[metric]:6.2f}"
            print(f"{self._title}  {place}  {train}{validation}{constraint}", file=sys.stderr, flush=True)


def effective_step(t: Training) -> float | None:
    """Return the mean step size of the constrained layers in the last step; None where nothing is constrained.

    The step size eta is the share of the way to its vertex that a weight moved.
    """
    sizes = t.optimizer.step_sizes()
    return float(sizes.mean()) if sizes is not None else None
