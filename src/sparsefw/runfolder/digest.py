"""Digests in the text files of a run folder. A flipped bit may turn a figure into another: with a digest, that is noticed.

A file without a digest counts as intact: earlier versions wrote none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparsefw.atomic_io import json_ready

KEY = "sha256"
_COMMENT = "# sha256 of the lines below: "  # above, since a text may be cut off anywhere


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with its digest as the last entry."""
    ready = json_ready(dict(content))
    return {**ready, KEY: _digest(ready)}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Return whether the content of a JSON file is what was written.

    >>> written = with_digest({"accuracy": 46.35})
    >>> is_intact(written), is_intact({**written, "accuracy": 46.75})
    (True, False)
    """
    return KEY not in content or content[KEY] == _digest(without_digest(content))


def without_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file as it was before `with_digest`."""
    return {key: value for key, value in content.items() if key != KEY}


def with_digest_line(text: str) -> str:
    """Return a text below a comment that holds its digest."""
    return f"{_COMMENT}{_hash(text)}\n{text}"


def is_intact_text(text: str) -> bool:
    """Return whether a text below a comment with its digest is what was written.

    >>> written = with_digest_line("lr: 0.1\\nepochs: 5\\n")
    >>> is_intact_text(written), is_intact_text(written.replace(": 5", ": 4")), is_intact_text(written[:-10])
    (True, False, False)
    """
    first, _, below = text.partition("\n")
    return not first.startswith(_COMMENT) or first.removeprefix(_COMMENT) == _hash(below)


def _digest(content: Mapping[str, Any]) -> str:
    return _hash(json.dumps(content, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
