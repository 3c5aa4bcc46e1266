"""Code of the user's own, which configurations and files name as "package.module:Attribute". It is imported only with trust."""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType

_NAME = re.compile(r"\w+(\.\w+)*:\w+")


def names_code(name: str) -> bool:
    """Return whether a name stands for code to import, rather than for something that comes with this package.

    >>> names_code("mine:Decay"), names_code("ssl")
    (True, False)
    """
    return ":" in name


def require_trust(field: str, name: str, trust: bool) -> None:
    """Raise ValueError, which says what would run, unless the user trusts the code of this name.

    field: where the name is written, such as "model.name".
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{field}={name!r}: code must be named as package.module:Attribute")
    if not trust:
        module, _, attribute = name.partition(":")
        raise ValueError(
            f"{field}={name!r} would import the Python module {module!r} and run its {attribute!r}; "
            "add --trust (in Python: trust=True) if you trust this code"
        )


def import_code(field: str, name: str, trust: bool) -> ModuleType:
    """Import the module of "package.module:Attribute", which runs the module; ValueError unless the user trusts it."""
    require_trust(field, name, trust)
    module = name.partition(":")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{field}={name!r}: module {module!r} cannot be imported: {error}") from error
        raise ValueError(f"{field}={name!r}: there is no module {module!r}") from None


def search_current_folder() -> None:
    """Let modules in the current folder be imported, after all that are installed.

    Only with trust: otherwise a file there could stand in for a package that is not installed, such as timm.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
