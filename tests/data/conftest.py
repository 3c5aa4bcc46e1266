"""Every test has its own cache folder, and finds no data set through the environment."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """Return the folder that $SPARSEFW_CACHE names."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPARSEFW_CACHE", str(folder))
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)
    return folder
