"""Typed records that come from YAML files and command lines: unknown keys and wrong values end in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from sparsefw.kinds import kind_of
from sparsefw.text import did_you_mean


class Section(BaseModel):
    """A part of a configuration: frozen, and nothing in it is ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


# The word for a kind of sparsefw.kinds, such as "filters" or "2:4".
KindName = Annotated[str, AfterValidator(lambda word: kind_of(word).name)]


class ConfigError(ValueError):
    """What is wrong with a configuration, in which field, and what would be right: one line."""


S = TypeVar("S", bound=Section)


def parse(kind: type[S], values: Mapping[str, Any], where: str, **context: Any) -> S:
    """The record that `values` describe; ConfigError naming the first wrong field otherwise. `where` says whose it is."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a table of settings, got {values!r}")
    try:
        return kind.model_validate(dict(values), context=context)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_line(kind, error)}") from None


def _first_line(kind: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if not _is_type_name(part)]
    if first["type"] == "extra_forbidden":  # then the last part is the user's own word, whatever it looks like
        path = [*(str(part) for part in first["loc"][:-1] if not _is_type_name(part)), str(first["loc"][-1])]
    field = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = _fields(kind, path[:-1])
        return f"unknown key {field!r}{did_you_mean(path[-1], known)}" + (
            f"; there are {', '.join(known)}" if known else ""
        )
    if first["type"] == "missing":
        return f"{field} is missing"
    if first["type"] == "value_error":
        message = str(first["ctx"]["error"])
        return f"{field}: {message}" if field and not message.startswith(field) else message
    return f"{field}={first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _is_type_name(part: Any) -> bool:
    """pydantic names the member of a union that it tried, such as 'int' or 'constrained-float': not a key of ours."""
    return isinstance(part, str) and (part in ("int", "float", "str", "bool", "none") or "-" in part or "[" in part)


def _fields(kind: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        field = kind.model_fields.get(name)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)


def nested(key: str, value: Any) -> dict[str, Any]:
    """ "train.lr", 0.1 as {"train": {"lr": 0.1}}."""
    first, dot, rest = key.partition(".")
    return {first: nested(rest, value) if dot else value}


def flat(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Tables in tables as one: {"train": {"lr": 0.1}} as {"train.lr": 0.1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, separator, name + separator) if isinstance(value, Mapping) else {name: value}
    return found
