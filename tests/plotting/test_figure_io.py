"""Figures as files: what is written, and that nothing is said about it."""

from __future__ import annotations

import warnings

import pytest
from matplotlib.text import Text

from sparsefw.plotting.figure_io import new_figure, save_figure
from sparsefw.plotting.labels import text_size


def test_letters_that_the_font_lacks_are_no_matter_for_warnings(tmp_path):
    figure = new_figure(2, 1)
    figure.text(0.5, 0.5, "日本")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text_size(figure, "日本")[0] > 0
        _, svg = save_figure(figure, tmp_path / "a")
    assert "日本" in svg.read_text()


def test_other_warnings_of_drawing_are_shown(tmp_path):
    class Noisy(Text):
        def draw(self, renderer):
            warnings.warn("something else", UserWarning, stacklevel=1)

    figure = new_figure(2, 1)
    figure.add_artist(Noisy())
    with pytest.warns(UserWarning, match="something else"):
        save_figure(figure, tmp_path / "a")
