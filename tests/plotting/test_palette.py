"""Looks: no two methods are mixed up."""

from __future__ import annotations

from sparsefw.plotting.palette import VERMILLION, looks_of


def test_sgd_is_vermillion_and_thirty_others_can_be_told_place_apart():
    found = looks_of([f"m{i}" for i in range(20)] + ["SGD"] + [f"m{i}" for i in range(20, 30)])
    assert found["SGD"].colour == VERMILLION
    assert VERMILLION not in {look.colour for method, look in found.items() if method != "SGD"}
    assert len(set(found.values())) == 31
