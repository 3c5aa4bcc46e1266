"""Labels: apart from each other, and close to their lines."""

from __future__ import annotations

from sparsefw.plotting.labels import place_apart


def test_labels_are_placed_apart_and_close_to_the_wanted_positions():
    assert place_apart([5.0, 1.0], [1.0, 1.0], 0.0, 10.0) == [5.0, 1.0]
    assert place_apart([5.0, 5.0, 5.0], [2.0, 2.0, 2.0], 0.0, 10.0) == [3.0, 5.0, 7.0]
    assert place_apart([0.0, 0.0], [1.0, 3.0], 0.0, 10.0) == [0.5, 2.5]
    assert place_apart([10.0, 9.9], [1.0, 1.0], 0.0, 10.0) == [9.5, 8.5]
    assert place_apart([], [], 0.0, 1.0) == []
