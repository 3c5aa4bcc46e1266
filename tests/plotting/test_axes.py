"""Axes: which ticks are labelled, and the scale of ratios close to 100 %."""

from __future__ import annotations

import pytest

from sparsefw.plotting.axes import kept_coordinate, short_count, values_with_room


def test_labels_that_do_not_fit_are_left_out():
    assert values_with_room([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0], 0.5) == [1, 2, 3, 4]
    assert values_with_room([1, 2, 3, 4], [0.0, 0.2, 2.0, 2.3], 0.5) == [1, 4]
    assert values_with_room([1, 2, 3], [0.0, 0.1, 0.2], 0.5) == [3]
    assert values_with_room([1], [0.0], 0.5) == [1]


def test_the_kept_scale_is_logarithmic_in_the_kept_percentage():
    assert [kept_coordinate(x) for x in (90.0, 99.0, 100.0)] == pytest.approx([1, 2, 4])


def test_counts_are_written_in_three_digits():
    assert [short_count(x) for x in (0.5, 999, 28_047, 1_237_744, 2e9)] == ["0.5", "999", "28 k", "1.24 M", "2 B"]
