"""The base of all typed configurations: unknown keys and wrong values are refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from sparsefw.kinds import kind_of
from sparsefw.text import did_you_mean


class Section(BaseModel):
    """A table of a configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


# The name of a kind of sparsefw.kinds, such as "filters" or "2:4".
KindName = Annotated[str, AfterValidator(lambda word: kind_of(word).name)]


class ConfigError(ValueError):
    """A mistake in a configuration, in one line: the field, its value, and which values are accepted."""


S = TypeVar("S", bound=Section)


def parse(section: type[S], values: Mapping[str, Any], owner: str, **context: Any) -> S:
    """Build a section from a table of values.

    Args:
        section: the class to build.
        values: the table, as read from YAML or the command line.
        owner: whose table it is, for messages, such as "recipe digits-resnet-sgd".
        context: passed on to the validators.

    Raises:
        ConfigError: a key is unknown or missing, or a value is wrong; the message names the first such field.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{owner}: must be a table of settings, got {values!r}")
    try:
        return section.model_validate(dict(values), context=context)
    except ValidationError as error:
        raise ConfigError(f"{owner}: {_first_mistake(section, error)}") from None


def _first_mistake(section: type[BaseModel], error: ValidationError) -> str:
    mistakes = error.errors(include_url=False)
    mistake = mistakes[0]
    if mistake["type"].startswith("int_"):  # of "int | float": a fraction is right too
        same_field = (other for other in mistakes if _keys(other["loc"]) == _keys(mistake["loc"]))
        mistake = next((other for other in same_field if other["type"].startswith("float_")), mistake)
    if mistake["type"] == "extra_forbidden":
        return _unknown_key(section, mistake["loc"])
    field = ".".join(_keys(mistake["loc"]))
    if mistake["type"] == "missing":
        return f"{field} is missing"
    if mistake["type"] == "value_error":
        message = str(mistake["ctx"]["error"])
        return f"{field}: {message}" if field and not message.startswith(field) else message
    return f"{field}={mistake['input']!r}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def _unknown_key(section: type[BaseModel], location: tuple[int | str, ...]) -> str:
    parents = _keys(location[:-1])
    key = str(location[-1])  # written by the user, even where it looks like the name of a type
    known = _fields(section, parents)
    accepted = f"; there are {', '.join(known)}" if known else ""
    return f"unknown key {'.'.join([*parents, key])!r}{did_you_mean(key, known)}{accepted}"


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """Return a pydantic location without the members of unions that it tried, such as 'int' or 'constrained-float'."""
    return [str(part) for part in location if not _is_type_name(part)]


def _is_type_name(part: int | str) -> bool:
    return isinstance(part, str) and (part in ("int", "float", "str", "bool", "none") or "-" in part or "[" in part)


def _fields(section: type[BaseModel], path: list[str]) -> list[str]:
    """Return the names of the fields of the table at `path`, or none where no section describes it."""
    for name in path:
        field = section.model_fields.get(name)
        members = get_args(field.annotation) if field else ()  # of "SizesConfig | None"
        inner = next((part for part in members if part is not type(None)), field.annotation if field else None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        section = inner
    return list(section.model_fields)


def nest(key: str, value: Any) -> dict[str, Any]:
    """Return tables within tables that hold one value.

    >>> nest("train.lr", 0.1)
    {'train': {'lr': 0.1}}
    """
    first, dot, rest = key.partition(".")
    return {first: nest(rest, value) if dot else value}


def flatten(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Return tables within tables as one table.

    >>> flatten({"train": {"lr": 0.1}, "seed": 0})
    {'train.lr': 0.1, 'seed': 0}
    """
    table: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        table |= flatten(value, separator, name + separator) if isinstance(value, Mapping) else {name: value}
    return table
