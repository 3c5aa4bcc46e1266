"""Hostile contents as strategies of hypothesis: trees such as JSON with values exchanged, and files with bytes exchanged."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from hypothesis import strategies as st

from fuzz.canary import CODE
from junk import JUNK, NOT_JSON, places

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Raw(str):
    """Text that takes the place of a value as it is, so that it need not be one."""


@dataclass(frozen=True)
class Form:
    """How the content of a file is taken apart, and put together again.

    raw   text that may stand where a value stands
    """

    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]
    raw: tuple[str, ...] = ()


NAMES = (
    *(
        "../../../etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "..",
        ".",
        "a/b",
        "a\\b",
        "C:\\x",
        "~",
        "$(touch x)",
        "; rm x",
        "-rf",
    ),
    *(CODE, "os:system", "posix.system", "builtins:eval", "sgd", "filters", "2:4", "0:0", "noise"),
    *(
        "",
        " ",
        "\n",
        "a\nb",
        "a\rb",
        "\u2028",
        "\x1b[2J",
        "\x00",
        "\u202e",
        "\U0001f600",
        "ß" * 300,
        "x" * 5000,
        "\ud800",
    ),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 10**6, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**18, -(10**18), 10**400),
    *(-0.0, 0.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan),
)
SCALARS = st.sampled_from((None, True, False, *NUMBERS, *NAMES)) | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.sampled_from(JUNK) | SCALARS | st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8
)  # fmt: skip
JSON_RAW = (
    *("[" * 5000 + "]" * 5000, '{"a":' * 2000 + "1" + "}" * 2000, "[" * 100_000),
    *('{"a": 1, "a": {}}', "NaN", "-Infinity", "1e999", "1" * 5000, "1" * 400, "'x'", "", "\x00", "[1,]", '"\\ud800"'),
)
YAML_RAW = (
    *(
        "*a",
        "&a [*a]",
        "{<<: {a: 1}}",
        "{<<: 1}",
        "{? [1] : 2}",
        "{? {a: 1} : 2}",
        "{a: 1, a: 2}",
        "!!python/name:os.system x",
    ),
    *(f"!!python/object/apply:os.system ['touch {CODE}']", "!!int x", "!!int ''", "!!float x", "!!bool x", "!!null x"),
    *(
        "!!timestamp x",
        "2001-99-99",
        "2001-12-14t21:59:43.10-05:00",
        "!!binary '?'",
        "!!binary aGk=",
        "!!set {a, b}",
        "!!omap [1]",
    ),
    *(
        "!!pairs [1]",
        "!x y",
        "! x",
        "1" * 5000,
        "1" * 400,
        "0x10",
        "1_000",
        "12:30:45",
        "1e5",
        ".nan",
        "=",
        "'",
        "[" * 4000,
    ),
    *(
        "{a: " * 500 + "1" + "}" * 500,
        "%TAG",
        "---",
        "...",
        "\x00",
        "\t",
        "@x",
        "`x",
        "|\n x",
        "{[]: 1}",
        "{1: 2, x: 3}",
    ),
)


def _json_bytes(tree: Any) -> bytes:
    raws: list[str] = []
    text = json.dumps(_marked(tree, raws), default=str)
    for number, raw in enumerate(raws):
        text = text.replace(json.dumps(_mark(number)), raw)
    return text.encode(errors="surrogatepass")


def _yaml_bytes(tree: Any) -> bytes:
    raws: list[str] = []
    text = yaml.safe_dump(_marked(tree, raws), sort_keys=False, allow_unicode=True, width=10**6)
    for number, raw in enumerate(raws):
        text = text.replace(_mark(number), raw)
    return text.encode(errors="surrogatepass")


def _mark(number: int) -> str:
    return f"raw-{number}-raw"


def _marked(tree: Any, raws: list[str]) -> Any:
    """Return a tree with a mark in the place of every raw text, which is appended to `raws`."""
    if isinstance(tree, Raw):
        raws.append(str(tree))
        return _mark(len(raws) - 1)
    if isinstance(tree, dict):
        return {key: _marked(value, raws) for key, value in tree.items()}
    return [_marked(value, raws) for value in tree] if isinstance(tree, list) else tree


JSON = Form(json.loads, _json_bytes, JSON_RAW)
YAML = Form(yaml.safe_load, _yaml_bytes, YAML_RAW)
JSON_LINES = Form(
    lambda content: [json.loads(line) for line in content.splitlines()],
    lambda lines: b"\n".join(map(_json_bytes, lines)) if isinstance(lines, list) else _json_bytes(lines),
    JSON_RAW,
)


@st.composite
def changed_trees(draw: Draw, content: bytes, form: Form) -> bytes:
    """Contents with some values exchanged, left out, repeated or renamed."""
    tree = [form.load(content)]
    for _ in range(draw(st.integers(1, 3))):
        above = [place for place in places(tree) if place]
        place = above[draw(st.integers(0, len(above) - 1))]
        _change(draw, tree, place, form)
    return form.dump(tree[0])


def _change(draw: Draw, tree: Any, place: tuple[Any, ...], form: Form) -> None:
    inner = tree
    for key in place[:-1]:
        inner = inner[key]
    key = place[-1]
    kinds = ["value", "value", "raw", "another", "left out", "renamed", "wrapped"]
    match draw(st.sampled_from(kinds if len(place) > 1 else kinds[:4])):
        case "raw" if form.raw:
            inner[key] = Raw(draw(st.sampled_from(form.raw)))
        case "another":  # a value of the same file, in another place
            others = list(places(tree))
            other: Any = tree
            for step in others[draw(st.integers(0, len(others) - 1))]:
                other = other[step]
            inner[key] = copy.deepcopy(other)
        case "left out":
            del inner[key]
        case "renamed" if isinstance(inner, dict):
            inner[draw(st.sampled_from(NAMES[:-1]) | st.text(max_size=5))] = inner.pop(key)
        case "wrapped":
            inner[key] = draw(st.sampled_from(([inner[key]], {"a": inner[key]}, [inner[key]] * 3)))
        case _:
            inner[key] = copy.deepcopy(draw(VALUES))


EXTREMES = tuple(
    number.to_bytes(size, order, signed=False)
    for size in (2, 4, 8)
    for order in ("little", "big")
    for number in (0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)
)


@st.composite
def changed_bytes(draw: Draw, content: bytes) -> bytes:
    """Contents that are cut off, with bytes exchanged, inserted, left out or repeated."""
    data = bytearray(content)

    def somewhere() -> int:
        return draw(st.integers(0, max(0, len(data) - 1)))

    for _ in range(draw(st.integers(1, 4))):
        at = somewhere()
        match draw(
            st.sampled_from(("bit", "byte", "extreme", "cut", "insert", "leave out", "repeat", "splice", "header"))
        ):
            case "bit" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "byte" if data:
                data[at] = draw(st.integers(0, 255))
            case "extreme":
                extreme = draw(st.sampled_from(EXTREMES))
                data[at : at + len(extreme)] = extreme
            case "header":  # formats say in their first bytes how much follows
                extreme = draw(st.sampled_from(EXTREMES))
                start = draw(st.integers(0, 64))
                data[start : start + len(extreme)] = extreme
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "leave out":
                del data[at : at + draw(st.integers(1, 64))]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 20))
            case "splice":
                start = somewhere()
                length = draw(st.integers(1, 64))
                data[at : at + length] = data[start : start + length]
            case _:
                pass
    return bytes(data)


def hostile(content: bytes, form: Form | None) -> st.SearchStrategy[bytes]:
    """Contents that someone may have put in the place of this one."""
    anything = st.one_of(
        changed_bytes(content), changed_bytes(content), st.sampled_from(NOT_JSON), st.binary(max_size=64)
    )
    return anything if form is None else st.one_of(changed_trees(content, form), changed_trees(content, form), anything)
