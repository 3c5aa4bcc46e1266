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
_COMMENT = "# sha256 of the lines above: "


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
    """Return a text with a comment that holds its digest as the last line."""
    return f"{text}{_COMMENT}{_hash(text)}\n"


def is_intact_text(text: str) -> bool:
    """Return whether a text with a digest as its last line is what was written.

    >>> is_intact_text(with_digest_line("lr: 0.1\\n")), is_intact_text(with_digest_line("lr: 0.1\\n").replace("1", "3", 1))
    (True, False)
    """
    above, comment, digest = text.rpartition(_COMMENT)
    return not comment or digest.strip() == _hash(above)


def _digest(content: Mapping[str, Any]) -> str:
    return _hash(json.dumps(content, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
