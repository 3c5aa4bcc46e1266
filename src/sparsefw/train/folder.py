"""The run folder: the only contract between training, compression and reports.

config.yaml          the whole configuration
regions.txt          which layer is constrained to which region, and what is left out
metrics.jsonl        a line per epoch; where validation was due, also how far the constraint has come
checkpoints/         while training
model.safetensors    the trained network, with what is needed to build it again
spectra.json         filter norms and singular values of its layers, sorted
result.json          final metrics, and what went wrong; its presence says that training is over
training.png, .svg   what `sparsefw train` drew of it
environment.json     versions, hardware, date, version of the code
curves/              what `sparsefw curve` found on the test images, one file per kind and form
curves-validation/   the same on the validation images
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torch import nn

from sparsefw.atomic_io import is_leftover, replaced_file, sweep, write_json, write_text
from sparsefw.compression.artifact.files import ArtifactError, read_json, read_tensors
from sparsefw.config_base import ConfigError, flat
from sparsefw.environment import environment
from sparsefw.models import MODELS, build
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import read_config, write_config

LOCK = ".lock"
# What may change between a start and a resume: where and how fast, and what is done with the result.
MAY_CHANGE = re.compile(r"engine\.(?!accumulate$)|track|curve\.")


class FolderBusy(ConfigError):  # noqa: N818  (a state, not a fault)
    """Another process trains into the folder."""


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.path / "result.json"
        return dict(read_json(path)) if path.exists() else None

    @property
    def config(self) -> RunConfig:
        path = self.path / "config.yaml"
        if not path.is_file():
            if phases := [file.parent for file in self.path.glob("phase-*/config.yaml")]:
                last = max(phases, key=lambda phase: (len(phase.name), phase.name))  # 10 comes after 9
                raise ConfigError(f"{self.path} holds the phases of a retraining; the last one is {last}")
            raise ConfigError(f"{self.path} is not a run folder: it has no config.yaml; `sparsefw train` makes one")
        return read_config(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No two processes train into one folder."""
        for _ in range(100):
            if (file := self._lock()) is not None:
                break
        else:
            raise ConfigError(f"{self.path} cannot be made; choose another --out")
        with file:
            try:
                yield
            finally:
                with suppress(OSError):  # the folder is gone, or another process has begun
                    if os.listdir(self.path) == [LOCK]:  # nothing was begun: leave no trace
                        (self.path / LOCK).unlink()
                        self.path.rmdir()

    def _lock(self) -> TextIO | None:
        """The lock file, held; None where another process that left no trace removed it meanwhile: then once more."""
        if self.path.is_file():
            raise ConfigError(f"{self.path} is a file; choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, PermissionError) as error:
            raise ConfigError(f"{self.path} cannot be made: {error.strerror}; choose another --out") from None
        except OSError:
            return None
        with suppress(FileNotFoundError, FileExistsError), ExitStack() as opened:
            file = opened.enter_context((self.path / LOCK).open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderBusy(
                    f"{self.path} is being trained into by another process; wait for it, or choose another --out"
                ) from None
            except OSError as error:
                raise ConfigError(f"{self.path} cannot be locked: {error.strerror}") from None
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path / LOCK)):
                opened.pop_all()
                return file
        return None

    def check(self, config: RunConfig) -> None:
        """The folder is empty, or holds this very run."""
        if (self.path / "config.yaml").exists():
            self._same(config)
        elif any(name != LOCK and not is_leftover(name) for name in os.listdir(self.path)):
            raise ConfigError(f"{self.path} holds files, but no run; choose another --out")

    def begin(self, config: RunConfig, regions: str = "", data: Path | None = None) -> None:
        for folder in (self.path, self.checkpoints):
            sweep(folder)
        write_text(self.path / "config.yaml", write_config(config))
        if regions:
            write_text(self.path / "regions.txt", regions + "\n")
        where = None if data is None else str(data.resolve())
        write_json(
            self.path / "environment.json",
            {"method": config.label, **environment(), "code": code_version(), "data": where},
        )

    @property
    def data(self) -> Path | None:
        """The folder that the data were read from, if it is still there."""
        path = self.path / "environment.json"
        where = read_json(path).get("data") if path.exists() else None
        return Path(where) if where is not None and Path(where).is_dir() else None

    def _same(self, config: RunConfig) -> None:
        old, new = flat(self.config.plain()), flat(config.plain())
        for key in sorted(
            {*old, *new}, key=lambda key: (not key.endswith(".name"), key)
        ):  # other names, other settings
            if old.get(key) != new.get(key) and not MAY_CHANGE.match(key):
                raise ConfigError(
                    f"{self.path} holds a run with {key}={old.get(key)!r}, this one has {new.get(key)!r}; "
                    "choose another --out, or remove the folder"
                )

    def save_model(self, model: nn.Module, about: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in model.state_dict().items()}
        with replaced_file(self.path / "model.safetensors") as aside:
            save_file(tensors, str(aside), {"sparsefw": json.dumps({**about, "model": model.built_from})})

    def load_model(self, trust: bool = False) -> tuple[nn.Module, dict[str, Any]]:
        """The trained network and what was noted about it."""
        from safetensors import SafetensorError, safe_open

        path = self.path / "model.safetensors"
        if not path.exists():
            if self.result is not None:
                raise ConfigError(f"{self.path}: its network was not kept, since a sweep chose another configuration")
            raise ConfigError(f"{self.path} has no trained model yet; `sparsefw train` again goes on with it")
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads(file.metadata()["sparsefw"])
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ArtifactError(f"{path} is damaged: {error}") from None
        record = about["model"]
        if is_own_code(record["name"]) and not trust:
            raise ConfigError(
                f"{self.path}: its network is made by the code {record['name']!r}; add --trust to import and run that"
            )
        model = build(record["name"], **record["arguments"])
        model.load_state_dict(read_tensors(path))
        return model.eval(), about

    def save_spectra(self, found: dict[str, Any]) -> None:
        write_json(self.path / "spectra.json", found)

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", result)
        self.forget_checkpoints()

    def forget_result_without_model(self) -> None:
        """A training whose network is gone is not over."""
        if self.path.is_dir() and not (self.path / "model.safetensors").exists():
            (self.path / "result.json").unlink(missing_ok=True)

    def forget_checkpoints(self) -> None:
        """Training is over: they are no longer needed."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def is_own_code(model: str) -> bool:
    """Whether a network of that name is made by code of the user's own, which is not run unless asked for."""
    return model not in MODELS and model.partition(":")[0] not in ("timm", "torchvision")


def code_version() -> dict[str, Any]:
    """The package's version, a hash of its sources, and the commit where it runs from a repository."""
    from sparsefw import __version__

    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    found: dict[str, Any] = {"version": __version__, "sha256": digest.hexdigest()}
    for key, command in (("commit", ["rev-parse", "HEAD"]), ("changed", ["status", "--porcelain", "--", "."])):
        try:
            done = subprocess.run(["git", *command], cwd=package, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return found
        if done.returncode:
            return found
        found[key] = done.stdout.strip() if key == "commit" else bool(done.stdout.strip())
    return found
