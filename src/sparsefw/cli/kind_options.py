"""One option for every kind, such as --filters 0.7 and --weights 2:4."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sparsefw.cli.options import parse_number
from sparsefw.kind_words import KIND_WORDS, is_pattern

F = TypeVar("F", bound=Callable[..., Any])
FILES_OF_WEIGHTS = (".safetensors", ".pt", ".pth")


def with_option_per_kind(body: F) -> F:
    """Replace the **keywords of a verb by an option for every kind, each None if it is not given.

    These options follow the first two parameters of the verb.
    """
    signature = inspect.signature(body, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kind_parameters = [
        inspect.Parameter(
            kind,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{kind}", help=f"Fraction to remove of the {units}.")],
        )
        for kind, units in KIND_WORDS.items()
    ]
    combined = [*parameters[:2], *kind_parameters, *parameters[2:]]
    body.__signature__ = signature.replace(parameters=combined)  # type: ignore[attr-defined]
    return body


def parse_amounts(options: Mapping[str, str | None], target: str | None) -> dict[str, float | str]:
    """Return the amounts that were given, as numbers; a pattern such as "2:4" stays a string.

    Raise ValueError if there is neither an amount nor a target.
    """
    given = {kind: text for kind, text in options.items() if text is not None}
    if not given and target is None:
        names = ", ".join(f"--{kind}" for kind in options)
        raise ValueError(f"give the fraction to remove, with one of {names}, or --target params=0.3")
    files = [f"--{kind} {text}" for kind, text in given.items() if Path(text).suffix in FILES_OF_WEIGHTS]
    if files:
        raise ValueError(f"{files[0]}: is the fraction to remove; a file of trained weights is given by --checkpoint")
    return {kind: text if is_pattern(text) else parse_number(text, f"--{kind}") for kind, text in given.items()}
