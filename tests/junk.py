"""What a file may hold instead of what it should: for tests of everything that reads files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

JUNK = (None, 0, -1, 1.5, math.inf, 10**400, "", "x", True, [], [1], {}, {"a": 1}, [[]], {"a": {}})
DEEP = "[" * 100_000
NOT_JSON = (b"", b"{", b"\x00", b"\xff\xfe\x9d", b"null", b"[]", b'"x"', b"3", bytes(range(256)), DEEP.encode())


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value within a value, outermost first."""
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*above, key))


def variants(content: Any) -> Iterator[Any]:
    """The content with every value exchanged for junk, and with every value left out."""
    for place in [place for place in places(content) if place]:
        for junk in (*JUNK, ...):
            changed = json.loads(json.dumps(content))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if junk is ...:
                del inner[place[-1]]
            else:
                inner[place[-1]] = junk
            yield changed
