"""What is kept of a training and told about it while it runs: metrics, display, warnings, checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType

from sparsefw.errors import Interrupted
from sparsefw.train.checkpoint import save_checkpoint
from sparsefw.train.constraint_progress import planned_renewals
from sparsefw.train.diagnosis import Aim, epochs_of, troubles
from sparsefw.train.display import Display
from sparsefw.train.engine import any_process
from sparsefw.train.folder import RunFolder
from sparsefw.train.log import MetricsFile, Tracker, flat_metrics, read_metrics, trackers
from sparsefw.train.loop import Training, Watcher, synchronise

AGREED_EVERY = 8  # steps after which several processes ask each other whether to write a checkpoint or to stop

Judge = Callable[[Training], None]


def aim_of(training: Training) -> Aim:
    """What the training is judged by."""
    t, method = training, training.config.method
    most = t.data.train.largest_class
    chance = 100 * max(most or 0.0, 1 / t.task.classes) if t.task.metric == "accuracy" else None
    dials = set(type(method).model_fields)
    if not method.prepares.takes_k:
        dials.discard("k")
    images = t.steps_per_epoch * t.config.data.batch_size
    lr, planned = t.config.train.lr, planned_renewals(t.optimizer)
    return Aim(t.config.train.epochs, images, chance, lr, planned, frozenset(dials))


class Recorder(Watcher):
    """Metrics, display, checkpoints. Every process has one, since all must stop together; the first one writes."""

    def __init__(self, folder: RunFolder, training: Training, display: Display, judge: Judge | None = None) -> None:
        self._folder, self._display, self._judge = folder, display, judge
        self._first = training.engine.share.rank == 0
        self._file = MetricsFile(folder.metrics, training.step) if self._first else None
        self._trackers: list[Tracker] = trackers(training.config, folder.path, training.step) if self._first else []
        self._aim = aim_of(training)
        self._history = epochs_of(read_metrics(folder.metrics)) if self._first else []
        self._saved = time.monotonic()
        self._mark = (training.step, training.clock.seconds())
        self._asked: str | None = None  # the signal that asked to stop

    def __enter__(self) -> Recorder:
        # Python hears signals in its main thread only.
        heard = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        self._before = {which: signal.signal(which, self._ask) for which in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)
        for tracker in self._trackers:
            tracker.close()

    def _ask(self, which: int, frame: FrameType | None) -> None:
        if self._asked is not None:  # asked twice: at once
            raise KeyboardInterrupt
        self._asked = signal.Signals(which).name

    def stepped(self, training: Training, lr: float) -> None:
        self._display.stepped(training, lr)
        self._checkpoint_if_due(training)

    def epoch_ended(self, training: Training, lr: float, figures: dict[str, dict[str, float]]) -> None:
        t, now = training, training.clock.seconds()
        images = (t.step - self._mark[0]) * t.config.data.batch_size
        row = {
            "epoch": t.epoch,
            "step": t.step,
            "seconds": now,
            "images_per_second": images / max(now - self._mark[1], 1e-9),
            "lr": lr,
            **figures,
        }
        self._mark = (t.step, now)
        if self._file is not None:
            self._file.write(row)
        for tracker in self._trackers:
            tracker.write(flat_metrics(row), t.step)
        self._display.epoch_ended(t, row)
        self._history += epochs_of([row])
        for trouble in troubles(self._aim, self._history) if self._first else ():
            self._display.warn(trouble)
        if self._judge is not None:
            self._judge(t)
        self._checkpoint_if_due(t)

    def _checkpoint_if_due(self, t: Training) -> None:
        """Where there are several processes, all come here at the same steps and hear of what any of them wants."""
        if t.engine.share.world > 1 and t.step % AGREED_EVERY and t.step % t.steps_per_epoch:
            return
        due = self._first and time.monotonic() - self._saved >= t.config.engine.checkpoint_seconds
        asked, due = any_process(t.engine, self._asked is not None, due)
        if asked or (due and t.step < t.steps):
            synchronise(t.engine.device)
            with t.clock.paused():
                state = t.state()
                if self._first:
                    save_checkpoint(self._folder.checkpoints, t.step, state)
            self._saved = time.monotonic()
        if asked:
            raise Interrupted(
                f"{self._asked or 'asked'}: stopped at step {t.step:,} of {t.steps:,}; the same command goes on from there"
            )
