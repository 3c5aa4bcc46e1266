"""Every method is registered, and its update is compared with numbers that were computed by hand or by another program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from methods.forms import FORMS
from sparsefw import methods
from sparsefw.methods import METHODS
from train.harness import TESTS

# Method -> the test (or class of tests) that states its update.
UPDATES = {
    "sgd": "train/test_methods.py::test_sgd_is_torchs_sgd_bit_for_bit",
    "sparsefw": "optim/test_step.py::test_gradient_rule_by_hand",
    "ssl": "methods/test_filters.py::TestSSL",
    "glt": "methods/test_filters.py::TestGLT",
    "abfp": "methods/test_filters.py::TestABFP",
    "sfp": "methods/test_filters.py::TestSFP",
    "nuc": "methods/test_rank.py::TestNUC",
    "svdenergy": "methods/test_rank.py::TestSVDEnergy",
    "fr": "methods/test_rank.py::TestFR",
    "trp": "methods/test_rank.py::TestTRP",
    "scion": "methods/test_rank.py::TestScion",
    "sam": "methods/test_perturbed.py::TestSAM",
    "cram": "methods/test_perturbed.py::TestCrAM",
    "masked": "methods/test_retrain.py::test_weights_that_are_zero_stay_zero_and_others_move_as_by_sgd",
}


def registered_classes(path: Path) -> list[str]:
    """Return the names of the classes in a file that are decorated by @register."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return [c.name for c in classes if any(isinstance(d, ast.Name) and d.id == "register" for d in c.decorator_list)]


@pytest.mark.parametrize("path", sorted(Path(methods.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_every_method_file_is_imported_by_the_package(path):
    for name in registered_classes(path):
        is_imported = name in methods.__all__
        assert is_imported, f"methods/__init__.py does not import {name} of methods/{path.name}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_test_of_its_update(name):
    is_listed = name in UPDATES
    assert is_listed, f"add the test of the update of {name!r} to UPDATES in tests/methods/test_coverage.py"
    path, _, test = UPDATES[name].partition("::")
    tree = ast.parse((Path(TESTS) / path).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not test or test in names, f"{UPDATES[name]} does not exist"


def test_every_method_goes_through_the_tests_of_all_methods():
    assert {form["name"] for form in FORMS.values()} == set(METHODS)
