"""An upper bound of the memory that a block may take."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

# What libraries say where they get no memory, also inside the message of a reader that takes it for damage.
NO_MEMORY = re.compile(
    r"MemoryError|[Uu]nable to allocate|can't allocate|malloc|bad_alloc|out of memory", re.IGNORECASE
)


@contextlib.contextmanager
def at_most(extra: int) -> Iterator[None]:
    """A block in which this process gets at most so many bytes of address space more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
