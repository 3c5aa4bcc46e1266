"""Which run a file belongs to: the identity of a run is a hash of what may not change between its start and a resume."""

from __future__ import annotations

import hashlib
import json
import re

from sparsefw.config_base import flatten
from sparsefw.runfolder.schema import ConfigRecord

# Settings that may change between a start and a resume: where and how fast a run is trained, and how it is evaluated.
MAY_CHANGE = re.compile(r"engine\.(?!accumulate$)|track|curve\.")


def identity_of(config: ConfigRecord) -> str:
    """Return a hash of the configuration, the seed included, without the settings that may change between start and resume.

    It binds checkpoints, the network, the result and the lines of epochs to their run.
    """
    settings = flatten(config.values).items()
    kept = {key: value for key, value in settings if value is not None and not MAY_CHANGE.match(key)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def is_of(owner: str | None, recorded: str | None) -> bool:
    """Return whether what a record names as its run or network is that one; earlier versions recorded neither.

    >>> is_of("ab", "ab"), is_of("ab", None), is_of("ab", "cd"), is_of(None, "cd")
    (True, True, False, False)
    """
    return recorded is None or recorded == owner
