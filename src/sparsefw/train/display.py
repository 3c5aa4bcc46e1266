"""What the user sees of a training: a live bar on a terminal, a line per epoch elsewhere, nothing where quiet."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from sparsefw.train.constraint_progress import planned_renewals, told
from sparsefw.train.diagnosis import Trouble

if TYPE_CHECKING:
    from sparsefw.train.loop import Training

REFRESH = 0.5  # seconds: reading figures from a GPU waits for it, so not in every step


class Display:
    """Used in a `with` block. `quiet` shows nothing but warnings."""

    def __init__(self, title: str, quiet: bool, first: bool = True) -> None:
        """first: whether this is the first of several processes; the others are silent."""
        quiet = quiet or not first
        self._title, self._first = title, first
        self._bar: Any = None
        self._live = not quiet and sys.stderr.isatty()
        self._lines = not quiet and not self._live
        self._last = 0.0
        self._mark = (0, 0.0)  # step and seconds at the last refresh
        self._rate = 0.0
        self._validated, self._constraint = "", ""  # as the last epoch that was looked at had it
        self._warned: set[str] = set()  # keys of the troubles that were told

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
        """In one line that stays, once, also where the user asked for quiet."""
        if trouble.key not in self._warned:
            self._warned.add(trouble.key)
            self.note(f"{self._title}: warning: {trouble.text}", warning=True)

    def note(self, text: str, warning: bool = False) -> None:
        """A line that stays; a warning also where the user asked for quiet."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._lines or (warning and self._first):
            print(text, file=sys.stderr, flush=True)

    def stepped(self, t: Training, lr: float) -> None:
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
        moved = "" if eta is None else f"  step size {eta:.1e}"
        return f"{text}{self._validated}{self._constraint}  lr {lr:.4f}{moved}"

    def epoch_ended(self, t: Training, row: dict[str, Any]) -> None:
        metric = t.task.metric
        constraint = f"  {told(row['constraint'], planned_renewals(t.optimizer))}" if "constraint" in row else ""
        if "validation" in row:
            self._validated = f"  validation {row['validation'][metric]:.1f}"
        self._constraint = constraint or self._constraint
        if self._bar is not None:
            self._bar.update(self._row, total=t.steps, completed=t.step)
        text = f"{self._title}  epoch {row['epoch']:>3}/{t.config.train.epochs}  {row['images_per_second']:>8,.0f} images/s"
        text += f"  loss {row['train']['loss']:.4f}  {metric} {row['train'][metric]:6.2f}"
        if "validation" in row:
            text += f"  validation {row['validation'][metric]:6.2f}"
        if self._lines:
            print(text + constraint, file=sys.stderr, flush=True)


def effective_step(t: Training) -> float | None:
    """The mean over the constrained layers of eta, by which weights moved towards their vertices in the last step."""
    found = t.optimizer.step_sizes()
    return float(found.mean()) if found is not None else None
