"""Where the ledger is kept: a SQLite file for one machine, a PostgreSQL server for many."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sparsefw.config_base import ConfigError
from sparsefw.text import first_line

try:
    import optuna
    from sqlalchemy import event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
except ModuleNotFoundError as error:
    raise ConfigError(f"sweeps need the package {error.name}: pip install 'sparsefw[sweep]'") from None


class StorageAway(ConfigError):  # noqa: N818  (a state, not a fault)
    """The storage cannot be reached, now."""


F = TypeVar("F", bound=Callable[..., Any])
AWAY = (optuna.exceptions.StorageInternalError, DBAPIError)  # locked, restarting, or unreachable
LEDGER = "ledger.db"  # in a sweep's folder
PATIENCE = 600.0  # seconds for which a database may be away


def patient(call: F) -> F:
    """A call that is safe to repeat is repeated while the database is away."""

    @functools.wraps(call)
    def repeated(*args: Any, **kwargs: Any) -> Any:
        end, pause = time.monotonic() + PATIENCE, 0.1
        while True:
            try:
                return call(*args, **kwargs)
            except AWAY:
                if time.monotonic() > end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 10.0)

    return repeated  # type: ignore[return-value]


def storage_url(text: str | None, folder: Path) -> str:
    """The address of what the user gave: a URL, a file, a sweep's folder, or nothing, which is a file in the sweep's folder."""
    if text is None:
        return f"sqlite:///{folder.resolve() / LEDGER}"
    if "://" in text:
        return text
    path = Path(text).resolve()
    return f"sqlite:///{path / LEDGER if path.is_dir() else path}"


def shown_url(url: str) -> str:
    """Without the password."""
    return make_url(url).render_as_string(hide_password=True)


def open_storage(url: str, must_exist: bool = False) -> optuna.storages.RDBStorage:
    """ConfigError, in one line, where there is none."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        parsed = make_url(url)
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(
            f"storage {url!r}: must be a file, or a URL such as postgresql://user@host/database"
        ) from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"storage {shown_url(url)}: must be a file, or a URL of postgresql or sqlite")
    local = parsed.get_backend_name() == "sqlite"
    if local and parsed.database:
        if must_exist and not Path(parsed.database).is_file():
            raise ConfigError(f"storage {parsed.database}: there is no such file")
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    how: dict[str, Any] = {"connect_args": {"timeout": 60}} if local else {"pool_pre_ping": True}
    if parsed.drivername == "postgresql":
        parsed = parsed.set(
            drivername="postgresql+psycopg"
        )  # which of its drivers is meant depends on SQLAlchemy's version
    try:
        storage = optuna.storages.RDBStorage(parsed.render_as_string(hide_password=False), engine_kwargs=how)
        if local:
            _one_at_a_time(storage)
        return storage
    except ImportError:
        raise ConfigError(f"storage {shown_url(url)} needs a driver: pip install 'sparsefw[postgres]'") from None
    except (*AWAY, RuntimeError) as error:
        raise StorageAway(f"storage {shown_url(url)} cannot be opened: {first_line(error)}") from None


def _one_at_a_time(storage: optuna.storages.RDBStorage) -> None:
    """Transactions of SQLite lock the file when they begin, and not when they first write.

    Optuna reads a trial's state, looks at it, and then writes: without this, two workers could take the same trial.
    """

    def plain(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transactions by itself

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # connections from before
    event.listen(storage.engine, "connect", plain)
    event.listen(storage.engine, "begin", begin)
