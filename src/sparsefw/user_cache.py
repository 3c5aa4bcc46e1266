"""The folder of the user in which files are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $SPARSEFW_CACHE, or the folder `sparsefw` in the user's cache folder of this system."""
    chosen = os.environ.get("SPARSEFW_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    # Imported here: compression, which uses this, imports with torch and numpy alone.
    from platformdirs import user_cache_path

    return user_cache_path("sparsefw", appauthor=False).expanduser()
