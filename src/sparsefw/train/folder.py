"""The run folder of a training: who may train into it, whether it holds the same run, and the network that it keeps.

Files and their contents are those of `sparsefw.runfolder`; this module adds the lock and the network.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor, nn

from sparsefw.atomic_io import file_digest, is_leftover, remove_leftovers
from sparsefw.child_processes import keep_from_children
from sparsefw.config_base import ConfigError, flatten, parse
from sparsefw.data.fingerprint import Fingerprint, difference
from sparsefw.lock_files import open_lock
from sparsefw.methods.base import UnknownMethod
from sparsefw.models import BUILD_ERRORS, build_for, build_named, build_skeleton, is_rebuilt_by_name
from sparsefw.runfolder import RetrainingPaths, RunFacts, RunPaths, RunWriter
from sparsefw.runfolder.identity import MAY_CHANGE, identity_of, is_of
from sparsefw.runfolder.read import (
    lost_epoch,
    read_config,
    read_data,
    read_environment,
    read_epochs,
    read_facts,
    read_model_header,
    read_model_tensors,
    read_result,
    read_retraining,
)
from sparsefw.runfolder.schema import ConfigRecord, DataChange, DataRecord, EnvironmentRecord, ModelRecord, ResultRecord
from sparsefw.text import one_line, shell_path
from sparsefw.train.config import RunConfig

LOCK_ATTEMPTS = 100  # another process may remove the folder between its creation and its locking


class FolderBusy(ConfigError):  # noqa: N818  (a state, not a fault)
    """Another process trains into the folder."""


@dataclass(frozen=True)
class RunFolder:
    """One run folder, as a training uses it."""

    path: Path

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.path)

    @property
    def writer(self) -> RunWriter:
        return RunWriter(self.path)

    @property
    def result(self) -> ResultRecord | None:
        """The final metrics; None while training is not over."""
        return read_result(self.path)

    @property
    def facts(self) -> RunFacts | None:
        """What the run is; None if nothing has begun."""
        return read_facts(self.path)

    @property
    def config(self) -> RunConfig:
        """The configuration. Its method may be the user's own: its code is not needed, and not run."""
        if not self.paths.config.is_file():
            self._raise_no_run()
        return parse(RunConfig, read_config(self.path).values, str(self.paths.config), allow_unknown=True)

    def _raise_no_run(self) -> None:
        request = read_retraining(self.path)
        phases = [] if request is None else [RetrainingPaths(self.path).phase(i + 1) for i in range(request.phases)]
        begun = [phase for phase in phases if RunPaths(phase).config.is_file()]
        if begun:
            raise ConfigError(f"{self.path} holds the phases of a retraining; the last one is {begun[-1]}")
        name = self.paths.config.name
        raise ConfigError(f"{self.path} is not a run folder: it has no {name}; `sparsefw train` makes one")

    @property
    def data(self) -> Path | None:
        """The folder that the data were read from, if it is still there."""
        environment = read_environment(self.path)
        if environment is None or environment.data is None:
            return None
        folder = Path(environment.data)
        return folder if folder.is_dir() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, so that no two processes train into it; FolderBusy if another process holds it."""
        for _ in range(LOCK_ATTEMPTS):
            if (file := self._lock()) is not None:
                break
        else:
            raise ConfigError(f"{self.path} cannot be created; choose another --out")
        with file:
            try:
                yield
            finally:
                with suppress(OSError):  # the folder is gone, or another process has begun
                    if os.listdir(self.path) == [self.paths.lock.name]:  # nothing was begun: leave no trace
                        self.paths.lock.unlink()
                        self.path.rmdir()

    def _lock(self) -> IO[str] | None:
        """Return the lock file, held; None if another process that left no trace removed it meanwhile."""
        if self.path.is_file():
            raise ConfigError(f"{self.path} is a file; choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError):  # another process has just made or removed a part of it
            return None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be created: {error.strerror}; choose another --out") from error
        with suppress(FileNotFoundError, FileExistsError), ExitStack() as opened:
            try:
                file = opened.enter_context(open_lock(self.paths.lock))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderBusy(
                    f"{self.path} is being trained into by another process; wait for it, or choose another --out"
                ) from None
            except (FileNotFoundError, FileExistsError):
                raise
            except OSError as error:
                raise ConfigError(f"{self.paths.lock} cannot be locked: {error.strerror}") from error
            keep_from_children(file)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.paths.lock)):
                opened.pop_all()
                return file
        return None

    def check(self, config: RunConfig) -> None:
        """Raise ConfigError unless the folder is empty or holds a run of this configuration."""
        if self.paths.config.exists():
            self._check_same(config)
        elif any(name != self.paths.lock.name and not is_leftover(name) for name in os.listdir(self.path)):
            raise ConfigError(f"{self.path} holds files, but no run; choose another --out")

    def _check_same(self, config: RunConfig) -> None:
        old = flatten(self.config.plain())
        new = flatten(config.plain())
        # Names first: with another method or model, all of its settings differ, too.
        # Only its own code knows the settings that a method of the user's does not give.
        compared = new if isinstance(config.method, UnknownMethod) else {*old, *new}
        for key in sorted(compared, key=lambda key: (not key.endswith(".name"), key)):
            if old.get(key) != new.get(key) and not MAY_CHANGE.match(key):
                raise ConfigError(
                    f"{self.path} holds a run with {key}={old.get(key)!r}, this one has {new.get(key)!r}; "
                    "choose another --out, or remove the folder"
                )

    def accepted_data(self, now: Fingerprint, step: int | None, changed: bool) -> DataRecord:
        """Return the record of the data with which the run goes on; ConfigError unless they are its own.

        Args:
            now: the fingerprint of the data that are there.
            step: at which the training goes on; None: it is over.
            changed: accept data that have changed, and record that.
        """
        record = read_data(self.path)
        if record is None:
            what: str | None = f"{self.paths.data.name}, which describes its data, is missing"
            record = DataRecord(now)
        else:
            what = difference(record.fingerprint, now)
        if what is None:
            return record
        if not changed:
            raise ConfigError(
                f"{self.path}: {what}; give the data of the training by --data, or add --data-changed to go on with these"
            )
        classes = [fingerprint.get("train", {}).get("classes") for fingerprint in (record.fingerprint, now)]
        if classes[0] != classes[1]:
            raise ConfigError(f"{self.path}: its network has {classes[0]} classes, the data have {classes[1]}")
        change = DataChange(what, step)
        changes = record.changes if change in record.changes else (*record.changes, change)
        return DataRecord(record.fingerprint if step is None else now, changes)

    def check_epochs(self, ended: int) -> None:
        """Raise ConfigError unless the figures of all epochs that have ended are there."""
        identity = self.identity
        lost = lost_epoch((record for record in read_epochs(self.path) if is_of(identity, record.run)), ended)
        if lost is not None:
            raise ConfigError(
                f"{self.paths.metrics} is damaged: it has no whole line of epoch {lost}, which has been trained; "
                f"restore it, or remove {shell_path(self.path)} and train again"
            )

    def begin(
        self,
        config: RunConfig,
        facts: RunFacts,
        data: DataRecord,
        environment: EnvironmentRecord | None = None,
        regions: str = "",
    ) -> None:
        """Record what the run is, and remove the remains of files that a kill interrupted."""
        for folder in (self.path, self.paths.checkpoints):
            remove_leftovers(folder)
        self.writer.begin(ConfigRecord(config.plain()), facts, environment or EnvironmentRecord(), regions)
        self.writer.data(data)

    def save_model(
        self, model: nn.Module, run: str, shape: tuple[int, ...] = (), task: str = "", classes: int = 0
    ) -> str:
        """Write the network, with its name and arguments and the shape, task and classes of its data; return its SHA-256.

        Args:
            run: the identity of the run.
        """
        tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in model.state_dict().items()}
        built_from: Any = model.built_from
        return self.writer.model(
            tensors, ModelRecord(built_from["name"], built_from["arguments"], tuple(shape), task, classes, run)
        )

    def check_model(self) -> ModelRecord:
        """Return the header of the network; ConfigError unless it is the one that the result of this run was measured on."""
        paths = self.paths
        result = self.result
        if result is None:
            raise ConfigError(f"{self.path} has no trained model yet; `sparsefw train` again finishes its training")
        if not paths.model.exists():
            facts = self.facts
            if facts is not None and facts.job is not None:
                raise ConfigError(f"{self.path}: its network was not kept, since a sweep chose another configuration")
            raise ConfigError(f"{paths.model} is missing; restore it, or remove {paths.result.name} and train again")
        try:
            digest = file_digest(paths.model)
        except OSError as error:
            raise ConfigError(f"{paths.model} cannot be read: {error.strerror}") from None
        if digest != result.model:
            raise ConfigError(
                f"{paths.model} is damaged, or belongs to another run: its SHA-256 is not the one in {paths.result.name}; "
                f"restore it, or remove {shell_path(self.path)} and train again"
            )
        record = read_model_header(self.path)
        if record is None or record.run != self.identity:
            raise ConfigError(
                f"{paths.model} belongs to another run: it was trained with another configuration or seed than "
                f"{paths.config.name} has; restore the files of this run"
            )
        return record

    @property
    def identity(self) -> str:
        """What binds files to this run."""
        return identity_of(read_config(self.path))

    def load_model(self, trust: bool = False) -> tuple[nn.Module, ModelRecord]:
        """Build the trained network.

        Args:
            trust: whether Python code that makes the network may be imported, which runs it.
        """
        record = self.check_model()
        tensors = read_model_tensors(self.path)
        try:
            model = _build(record, tensors, trust)
            model.load_state_dict(tensors)
        except BUILD_ERRORS as error:
            raise ConfigError(f"{self.path}: {self.paths.model.name}: {one_line(error)}") from None
        return model.eval(), record

    def finish(self, result: ResultRecord) -> None:
        """Record that training is over; checkpoints are then no longer needed."""
        self.writer.result(result)
        self.forget_checkpoints()

    def forget_checkpoints(self) -> None:
        self.writer.forget_checkpoints()

    def forget_result_without_model(self) -> None:
        """Remove the result of a training whose network is gone: such a training is not over."""
        if self.path.is_dir() and not self.paths.model.exists():
            self.writer.forget_result()


def _build(record: ModelRecord, tensors: Mapping[str, Tensor], trust: bool) -> nn.Module:
    """Build the network of a run; one that a file may name only if the tensors fit it, which is seen before it takes memory."""
    if not is_rebuilt_by_name(record.name):
        return build_named(record.name, record.arguments, trust=trust)
    built_from = {"name": record.name, "arguments": dict(record.arguments)}
    if (skeleton := build_skeleton(built_from)) is not None:
        _check_sizes(skeleton, tensors)
    return build_for(built_from, tensors)


def _check_sizes(skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the tensors have the names and shapes of the network's."""
    sizes = {name: tensor.shape for name, tensor in skeleton.state_dict().items()}
    given = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = [name for name in dict.fromkeys((*sizes, *given)) if sizes.get(name) != given.get(name)]
    if wrong:
        raise ValueError(f"its weights are not those of the network that it names: {wrong[0]} differs")


def check_weights(file: Path) -> None:
    """Check a file of weights that is the network of a run, as load_model does; any other file is left to its reader."""
    folder = RunFolder(file.parent)
    if file.name == folder.paths.model.name and folder.paths.config.is_file():
        folder.check_model()
