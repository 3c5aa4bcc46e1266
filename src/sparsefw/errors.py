"""Exceptions that end a training early although the program works as intended, and errors of the disk."""

from __future__ import annotations

import errno

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """The user or the system asked the training to stop; a checkpoint was written."""


class Diverged(Exception):  # noqa: N818  (the program works as intended)
    """The loss or the weights of a training became infinite or NaN."""


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of the system behind `error` if it says that the disk is full or broken, else None.

    >>> disk_error(OSError(errno.ENOSPC, "No space left on device", "a")), disk_error(ValueError("k=0"))
    (OSError(28, 'No space left on device'), None)
    """
    while error is not None and not (isinstance(error, OSError) and error.errno in _OF_THE_DISK):
        error = error.__cause__
    return error
