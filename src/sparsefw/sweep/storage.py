"""The database that holds the ledgers of a sweep: a SQLite file for one machine, a PostgreSQL server for many."""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sparsefw.config_base import ConfigError
from sparsefw.runfolder.parse import MALFORMED
from sparsefw.sweep.files import LEDGER_FILE
from sparsefw.text import first_line

try:
    import optuna
    from sqlalchemy import event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
except ModuleNotFoundError as error:
    raise ConfigError(f"sweeps need the package {error.name}: pip install 'sparsefw[sweep]'") from None


class StorageUnreachable(ConfigError):  # noqa: N818  (a state, not a fault)
    """The storage cannot be reached at the moment."""


F = TypeVar("F", bound=Callable[..., Any])
UNREACHABLE = (optuna.exceptions.StorageInternalError, DBAPIError)  # the database is locked, restarting or offline
LONGEST_OUTAGE = 600.0  # seconds to wait for the database before giving up


def retry_while_unreachable(call: F) -> F:
    """Repeat a call until the database answers; the call must be safe to repeat."""

    @functools.wraps(call)
    def repeated(*args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + LONGEST_OUTAGE
        pause = 0.1
        while True:
            try:
                return call(*args, **kwargs)
            except UNREACHABLE as error:
                _raise_if_full(error, LEDGER_FILE)
                if time.monotonic() > deadline or _is_damage(error):
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 10.0)

    return repeated  # type: ignore[return-value]


def _is_damage(error: BaseException) -> bool:
    """Return whether a SQLite file answers, but is damaged or holds no ledger: waiting does not help."""
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    origin = cause.orig if isinstance(cause, DBAPIError) else None
    damage = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(origin, sqlite3.Error) and getattr(origin, "sqlite_errorcode", damage[0]) & 0xFF in damage


@contextmanager
def damage_named(storage: optuna.storages.BaseStorage) -> Iterator[None]:
    """A block that reads what a storage holds, which may be anything; ConfigError of one line if it is damaged."""
    name = url_without_password(str(storage.engine.url)) if isinstance(storage, optuna.storages.RDBStorage) else ""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"storage {name}: {error}") from None
    except (*UNREACHABLE, *MALFORMED, RecursionError) as error:
        if isinstance(error, UNREACHABLE) and not _is_damage(error):
            raise
        raise ConfigError(
            f"storage {name} is damaged, or holds no sweep of this version: {type(error).__name__}: {first_line(error)}"
        ) from None


def _raise_if_full(error: BaseException, file: str) -> None:
    """Raise the error of the system if SQLite found the disk full, which waiting does not mend."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file) from error
        cause = cause.__cause__


def storage_url(text: str | None, folder: Path) -> str:
    """Return the URL of a storage.

    Args:
        text: a URL, a database file, the folder of another sweep, or None: a database file in `folder`
        folder: the folder of the sweep
    """
    if text is None:
        return f"sqlite:///{folder.resolve() / LEDGER_FILE}"
    if "://" in text:
        return text
    path = Path(text).resolve()
    return f"sqlite:///{path / LEDGER_FILE if path.is_dir() else path}"


def url_without_password(url: str) -> str:
    """Return the URL with its password replaced by ***."""
    return make_url(url).render_as_string(hide_password=True)


def open_storage(url: str, must_exist: bool = False) -> optuna.storages.RDBStorage:
    """Open a storage; a SQLite file is created unless `must_exist`. Raise ConfigError where that is impossible."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        parsed = make_url(url)
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(
            f"storage {url!r}: must be a file, or a URL such as postgresql://user@host/database"
        ) from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise ConfigError(f"storage {url_without_password(url)}: must be a file, or a URL of postgresql or sqlite")
    is_file = backend == "sqlite"
    if is_file and parsed.database:
        if must_exist and not Path(parsed.database).is_file():
            raise ConfigError(f"storage {parsed.database}: there is no such file")
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine: dict[str, Any] = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")  # the default driver depends on the version of SQLAlchemy
    try:
        storage = optuna.storages.RDBStorage(parsed.render_as_string(hide_password=False), engine_kwargs=engine)
        if is_file:
            _lock_when_transactions_begin(storage)
        return storage
    except ImportError:
        raise ConfigError(
            f"storage {url_without_password(url)} needs a driver: pip install 'sparsefw[postgres]'"
        ) from None
    except (*UNREACHABLE, RuntimeError, UnicodeDecodeError) as error:
        _raise_if_full(error, parsed.database or LEDGER_FILE)
        raise StorageUnreachable(f"storage {url_without_password(url)} cannot be opened: {first_line(error)}") from None


def _lock_when_transactions_begin(storage: optuna.storages.RDBStorage) -> None:
    """Make SQLite lock the file when a transaction begins, rather than at its first write.

    Optuna reads the state of a trial and then writes it: without this lock, two workers could take the same trial.
    """

    def disable_implicit_transactions(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    def begin_immediately(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # close the connections that were opened without these listeners
    event.listen(storage.engine, "connect", disable_implicit_transactions)
    event.listen(storage.engine, "begin", begin_immediately)
