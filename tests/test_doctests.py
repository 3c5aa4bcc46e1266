"""The examples in docstrings give the results that they state."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import sparsefw

# Packages that not every installation has: a module that needs one of them is not searched where it is missing.
OPTIONAL = {
    "optuna", "psycopg", "sqlalchemy", "onnx", "onnxscript", "onnxruntime", "openvino", "executorch", "torchao", "timm",
    "torchvision", "triton", "lightning", "transformers", "accelerate",
}  # fmt: skip
# Importing these starts the program or needs a GPU.
EXCLUDED = ("sparsefw.__main__", "sparsefw.optim.fused")


def modules_with_examples() -> list[str]:
    """Return the names of all modules of the package whose docstrings have examples."""
    names = []
    for info in pkgutil.walk_packages(sparsefw.__path__, "sparsefw."):
        if info.name.startswith(EXCLUDED):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            continue
        if any(test.examples for test in doctest.DocTestFinder(exclude_empty=True).find(module)):
            names.append(info.name)
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted
    assert not results.failed, f"{name}: see the captured output"
