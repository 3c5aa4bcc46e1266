"""Records a training while it runs: metrics, display, warnings, checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType

from torch import nn

from sparsefw.errors import Interrupted
from sparsefw.runfolder import EpochWriter
from sparsefw.runfolder.read import read_epochs
from sparsefw.runfolder.schema import EpochFigures, EpochRecord
from sparsefw.text import listed
from sparsefw.train.checkpoint import save_checkpoint
from sparsefw.train.constraint_progress import may_renew_less, planned_renewals
from sparsefw.train.diagnosis import Aim, Epoch, Trouble, epochs_of, troubles
from sparsefw.train.display import Display
from sparsefw.train.engine import any_process
from sparsefw.train.folder import RunFolder
from sparsefw.train.loop import Training, Watcher, synchronise
from sparsefw.train.trackers import Tracker, flat_metrics, open_trackers

AGREED_EVERY = 8  # steps after which several processes ask each other whether to write a checkpoint or to stop

Judge = Callable[[Training], None]


def aim_of(training: Training) -> Aim:
    """Return what the training is judged by."""
    config = training.config
    classifies = training.task.metric == "accuracy"
    largest_share = max(training.data.train.largest_class or 0.0, 1 / training.task.classes)
    dials = set(type(config.method).model_fields)
    if not config.method.prepares.takes_k:
        dials.discard("k")
    return Aim(
        epochs=config.train.epochs,
        images=training.steps_per_epoch * config.data.batch_size,
        chance=100 * largest_share if classifies else None,
        lr=config.train.lr,
        renewals=planned_renewals(training.optimizer),
        may_renew_less=may_renew_less(training.optimizer),
        dials=frozenset(dials),
        over_sizes=config.sizes is not None,
    )


def _unreached(model: nn.Module) -> list[Trouble]:
    """Return what is wrong with parameters that had no gradient in the last step, although they are not frozen."""
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    text = (
        f"{listed(names)} got no gradient and did not move: the output of the network does not depend on them; "
        "leave them out of the network, or freeze them by requires_grad_(False)"
    )
    return [Trouble("unreached", text)] if names else []


class Recorder(Watcher):
    """Metrics, display, checkpoints. Every process has one, since all must stop together; the first one writes."""

    def __init__(self, folder: RunFolder, training: Training, display: Display, judge: Judge | None = None) -> None:
        self._folder = folder
        self._display = display
        self._judge = judge
        self._first = training.engine.share.rank == 0
        self._epochs: EpochWriter | None = None
        self._trackers: list[Tracker] = []
        self._history: list[Epoch] = []
        if self._first:
            self._epochs = EpochWriter(folder.path, training.step)
            self._trackers = open_trackers(training.config, folder.path, training.step)
            self._history = epochs_of(read_epochs(folder.path))
        self._aim = aim_of(training)
        self._saved = time.monotonic()
        self._mark = (training.step, training.clock.seconds())  # at the end of the last epoch
        self._asked: str | None = None  # the signal that asked to stop

    def __enter__(self) -> Recorder:
        # Python delivers signals to its main thread only.
        handled = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        self._handlers_before = {number: signal.signal(number, self._ask) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        for tracker in self._trackers:
            tracker.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:  # a second signal does not wait for a checkpoint
            raise KeyboardInterrupt
        self._asked = signal.Signals(number).name

    def stepped(self, training: Training, lr: float) -> None:
        self._display.stepped(training, lr)
        self._checkpoint_if_due(training)

    def epoch_ended(self, training: Training, lr: float, figures: EpochFigures) -> None:
        record = self._epoch_record(training, lr, figures)
        if self._epochs is not None:
            self._epochs.append(record)
        for tracker in self._trackers:
            tracker.write(flat_metrics(record), training.step)
        self._display.epoch_ended(training, record)
        self._history += epochs_of([record])
        for trouble in (*_unreached(training.model), *troubles(self._aim, self._history)) if self._first else ():
            self._display.warn(trouble)
        if self._judge is not None:
            self._judge(training)
        self._checkpoint_if_due(training)

    def _epoch_record(self, training: Training, lr: float, figures: EpochFigures) -> EpochRecord:
        step_before, seconds_before = self._mark
        seconds = training.clock.seconds()
        self._mark = (training.step, seconds)
        images = (training.step - step_before) * training.config.data.batch_size
        return EpochRecord(
            epoch=training.epoch,
            step=training.step,
            seconds=seconds,
            images_per_second=images / max(seconds - seconds_before, 1e-9),
            lr=lr,
            figures=figures,
            run=training.identity,
        )

    def _checkpoint_if_due(self, t: Training) -> None:
        """Write a checkpoint if one is due or the training is asked to stop.

        Several processes come here at the same steps, and each learns what any of them wants.
        """
        if t.engine.share.world > 1 and t.step % AGREED_EVERY and t.step % t.steps_per_epoch:
            return
        due = self._first and time.monotonic() - self._saved >= t.config.engine.checkpoint_seconds
        asked, due = any_process(t.engine, self._asked is not None, due)
        if asked or (due and t.step < t.steps):
            synchronise(t.engine.device)
            with t.clock.paused():
                state = t.state()
                if self._first:
                    save_checkpoint(self._folder.paths.checkpoints, t.step, state)
            self._saved = time.monotonic()
        if asked:
            raise Interrupted(
                f"{self._asked or 'asked'}: stopped at step {t.step:,} of {t.steps:,}; the same command resumes from there"
            )
