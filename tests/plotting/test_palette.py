"""Line styles: no two methods share one."""

from __future__ import annotations

from sparsefw.plotting.palette import VERMILLION, line_styles


def test_sgd_is_vermillion_and_thirty_others_differ():
    styles = line_styles([f"m{i}" for i in range(20)] + ["SGD"] + [f"m{i}" for i in range(20, 30)])
    assert styles["SGD"].colour == VERMILLION
    assert VERMILLION not in {style.colour for method, style in styles.items() if method != "SGD"}
    assert len(set(styles.values())) == 31
