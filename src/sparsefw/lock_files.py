"""Lock files: their locks show other processes of the same machine which of them are alive."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def open_lock(path: Path, create: bool = True) -> IO[str]:
    """Open a lock file without emptying it; OSError where a link, a pipe or a device has its name."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a lock file", str(path))
    return os.fdopen(handle, "r+")
