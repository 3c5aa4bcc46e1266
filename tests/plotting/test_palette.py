"""Line styles: no two methods share one."""

from __future__ import annotations

from sparsefw.plotting.palette import LINE_COLOURS, VERMILLION, line_styles


def test_sgd_is_vermillion_and_thirty_others_differ():
    others = {f"m{i}": "own" for i in range(30)}
    styles = line_styles({**others, "plain SGD": "sgd"})
    assert styles["plain SGD"].colour == VERMILLION
    assert VERMILLION not in {style.colour for method, style in styles.items() if method != "plain SGD"}
    assert len(set(styles.values())) == 31


def test_methods_are_known_by_their_registered_names():
    """SparseFW has the first colour whatever its label; of two labels of SGD, one is vermillion."""
    styles = line_styles({"b": "ssl", "a": "sparsefw", "c": "sgd", "SGD": "sgd"})
    assert styles["a"].colour == LINE_COLOURS[0]
    assert styles["c"].colour == VERMILLION != styles["SGD"].colour
