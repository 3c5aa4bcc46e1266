"""Axes: labels where they fit, and ratios close to all of it pulled apart."""

from __future__ import annotations

import pytest

from sparsefw.plotting.axes import place_by_what_is_left, short_count, values_with_room


def test_labels_that_do_not_fit_are_left_out():
    assert values_with_room([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0], 0.5) == [1, 2, 3, 4]
    assert values_with_room([1, 2, 3, 4], [0.0, 0.2, 2.0, 2.3], 0.5) == [1, 4]
    assert values_with_room([1, 2, 3], [0.0, 0.1, 0.2], 0.5) == [3]
    assert values_with_room([1], [0.0], 0.5) == [1]


def test_ratios_are_placed_by_the_logarithm_of_what_is_left():
    assert [place_by_what_is_left(x) for x in (90.0, 99.0, 100.0)] == pytest.approx([1, 2, 4])


def test_counts_are_written_in_three_digits():
    assert [short_count(x) for x in (0.5, 999, 28_047, 1_237_744, 2e9)] == ["0.5", "999", "28 k", "1.24 M", "2 B"]
