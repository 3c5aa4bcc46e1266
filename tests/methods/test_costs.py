"""The measured cost of a step: every form of every method has one."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from sparsefw.bench import ROWS
from sparsefw.methods import METHODS, Method
from sparsefw.methods.costs import MissingCostError, measured_costs, step_costs


@pytest.mark.parametrize(
    "form", [name for name, row in ROWS.items() if row.sizes is None]
)  # an objective, not a method
def test_every_form_of_every_method_has_a_measured_cost(form):
    is_measured = form in measured_costs()["rows"]
    assert is_measured, f"costs.json has no cost of {form}: write the output of `sparsefw bench methods --json` there"


def test_no_cost_is_that_of_a_form_that_is_gone():
    assert set(measured_costs()["rows"]) <= set(ROWS)


@pytest.mark.parametrize("name", METHODS)
def test_costs_are_in_steps_of_sgd(name):
    costs = step_costs(METHODS[name])
    assert list(costs) == [form or name for form in METHODS[name].forms]
    assert all(cost > 0.5 for cost in costs.values())
    assert name != "sgd" or costs == {"sgd": 1.0}


class Unmeasured(Method):
    """For tests."""

    title: ClassVar[str] = "Unmeasured"
    paper: ClassVar[str] = "none"
    name: Literal["unmeasured"] = "unmeasured"


def test_a_missing_cost_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(Unmeasured, "__module__", "sparsefw.methods.unmeasured")
    with pytest.raises(MissingCostError, match=r"^method 'unmeasured': no measured cost of unmeasured; write [^\n]*$"):
        step_costs(Unmeasured)


def test_methods_of_users_have_no_measured_cost():
    assert step_costs(Unmeasured) == {}
