"""What is derived from data sets is kept in a folder of the test's own, never in the user's."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """The folder that $SPARSEFW_CACHE names; no data set is found through the environment."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPARSEFW_CACHE", str(folder))
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)
    return folder
