"""Exceptions that end a training early although the program works as intended."""

from __future__ import annotations


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """The user or the system asked the training to stop; a checkpoint was written."""


class Diverged(Exception):  # noqa: N818  (the program works as intended)
    """The loss or the weights of a training became infinite or NaN."""
