"""One option for every kind: --filters 0.7, --weights 2:4."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from sparsefw.cli.options import parse_number
from sparsefw.kind_words import KIND_WORDS

F = TypeVar("F", bound=Callable[..., Any])


def with_option_per_kind(body: F) -> F:
    """Turn the function's **keywords into an option for every kind, each None where it is not given.

    They are listed behind the first two options.
    """
    signature = inspect.signature(body, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kinds = [
        inspect.Parameter(
            word,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{word}", help=f"Fraction to remove of the {what}.")],
        )
        for word, what in KIND_WORDS.items()
    ]
    body.__signature__ = signature.replace(parameters=[*own[:2], *kinds, *own[2:]])  # type: ignore[attr-defined]
    return body


def given_amounts(options: Mapping[str, str | None], target: str | None) -> dict[str, str]:
    """Keep the amounts that were given; ValueError where there is neither one nor a target."""
    given = {word: value for word, value in options.items() if value is not None}
    if not given and target is None:
        words = ", ".join(f"--{word}" for word in options)
        raise ValueError(f"how much? give one of {words}, the fraction to remove, or --target params=0.3")
    return given


def parse_amounts(given: Mapping[str, str]) -> dict[str, float | str]:
    """Turn "0.7" into a number; a pattern such as "2:4" stays a word."""
    return {word: value if ":" in value else parse_number(value, f"--{word}") for word, value in given.items()}
