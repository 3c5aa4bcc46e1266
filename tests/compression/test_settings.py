"""compress, curve and save_elastic share one record of settings, written as keyword arguments."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace
from typing import get_type_hints

import pytest

from compression.networks import ROWS, mlp
from sparsefw import compress, curve, save_elastic
from sparsefw.compression.amounts import KindAmounts
from sparsefw.compression.settings import Settings, SettingsKeywords
from sparsefw.kinds import KINDS

FUNCTIONS = [compress, curve, save_elastic]


def call(function, folder, **keywords):
    keywords = {"calibration": ROWS, **keywords}
    if function is compress:
        return compress(mlp(), neurons=0.5, **keywords)
    if function is curve:
        return curve(mlp(), "neurons", [0.5], evaluate=lambda net: 1.0, **keywords)
    return save_elastic(mlp(), folder / "elastic", "neurons", [0.5], **keywords)


def test_keywords_for_editors_are_the_fields_of_the_record():
    """calibration is spelled out in every signature, because curve and save_elastic need it."""
    hints = get_type_hints(Settings)
    assert get_type_hints(SettingsKeywords) == {name: hint for name, hint in hints.items() if name != "calibration"}
    assert list(KindAmounts.__annotations__) == list(KINDS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_list_every_setting_with_its_default(function):
    parameters = inspect.signature(function).parameters
    defaults = replace(Settings(), form="masked") if function is curve else Settings()
    for field in fields(Settings):
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        if field.name != "calibration":
            assert parameters[field.name].default == getattr(defaults, field.name)
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    assert (parameters["calibration"].default is None) == (function is compress)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("typo, meant", [("roundto", "round_to"), ("exampel", "example"), ("evaluat", "evaluate")])
def test_a_mistyped_keyword_is_refused_in_one_line(function, typo, meant, tmp_path):
    with pytest.raises(TypeError, match=rf"^unknown argument '{typo}'; did you mean '{meant}'\?$"):
        call(function, tmp_path, **{typo: 4})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "name, value, line",
    [
        ("form", "deleted", "form='deleted': there are removed, masked"),
        ("score", "l3", "score='l3': there are l1, l2, bn, activation"),
        ("allocation", "fair", "allocation='fair': there are uniform, global, energy, worst, sensitivity"),
        ("refit", 1, r'refit=1: must be True, False or "auto"'),
        ("round_to", 0, "round_to=0: must be a whole number of at least 1"),
        ("exclude", 3, r"include and exclude take names with \* and \?, or a list of them, got 3"),
        ("progress", 3, r"progress must be True, False or a function of \(done, total, layer name\), got 3"),
    ],
)
def test_a_wrong_value_is_refused_by_all_in_the_same_words(function, name, value, line, tmp_path):
    with pytest.raises(ValueError, match=f"^{line}$"):
        call(function, tmp_path, **{name: value})


def test_the_record_is_frozen_and_reads_patterns_once():
    settings = Settings(include=(name for name in ("a*", "b")))
    assert [settings.selection.takes(name) for name in ("ab", "b", "c")] == [True, True, False]
    with pytest.raises(FrozenInstanceError):
        settings.form = "masked"
