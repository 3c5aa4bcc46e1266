"""Randomness without state: whatever is drawn is a function of a seed and a step, so that a resumed run draws the same."""

from __future__ import annotations

import numpy as np


def generator(purpose: str, *key: int) -> np.random.Generator:
    """Return the random generator of a purpose and some integers, independent of those of all others."""
    # With the length of the key: SeedSequence pads with zeros, so that (5, 2) and (5, 2, 0) would be the same.
    seed = np.random.SeedSequence((len(key), *key, *purpose.encode()))
    return np.random.Generator(np.random.Philox(seed))
