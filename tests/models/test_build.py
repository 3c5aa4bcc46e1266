"""build and build_registered: accepted names, and one line for every wrong one."""

from __future__ import annotations

import copy
import inspect
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from sparsefw import own_code
from sparsefw.models import MODELS, build, build_named, build_registered, external, model_factory

try:
    external.import_torchvision()
    import timm

    vision = True
except ModuleNotFoundError:
    vision = False
needs_vision = pytest.mark.skipif(not vision, reason="timm or torchvision is not installed")


def error_line(call, *arguments, **keywords) -> str:
    with pytest.raises(ValueError) as caught:
        call(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_name():
    assert (
        error_line(build, "resnet19")
        == "unknown model 'resnet19'; did you mean 'resnet18'?; see `sparsefw list models`"
    )
    assert error_line(build, "%") == "unknown model '%'; see `sparsefw list models`"


def test_unknown_argument_names_the_accepted_ones():
    assert error_line(build, "resnet18", num_classes=10) == (
        "model 'resnet18' has no argument 'num_classes'; accepted: classes, stem, in_channels, width, dilated_stages"
    )
    assert "has no argument 'block'" in error_line(build, "resnet18", block="BasicBlock")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (dict(stem="mnist"), "stem must be one of imagenet, cifar, got 'mnist'"),
        (dict(stem=["cifar"]), "stem must be one of imagenet, cifar, got ['cifar']"),
        (dict(width=0), "width must be a whole number of at least 1, got 0"),
        (dict(width="64"), "width must be a whole number of at least 1, got '64'"),
        (dict(classes=True), "classes must be a whole number of at least 1, got True"),
        (dict(classes=1.5), "classes must be a whole number of at least 1, got 1.5"),
        (dict(in_channels=None), "in_channels must be a whole number of at least 1, got None"),
        (dict(dilated_stages=-1), "dilated_stages must be a whole number of at least 0, got -1"),
        (dict(dilated_stages=4), "dilated_stages must be less than the number of stages, 4, got 4"),
    ],
)
def test_wrong_value(arguments, line):
    assert error_line(build, "resnet18", **arguments) == line


@pytest.mark.parametrize("value", [nn.ReLU(), {1, 2}, float("nan"), torch.ones(1)])
def test_arguments_are_plain_values(value):
    assert "arguments must be plain values" in error_line(build, "resnet18", classes=value)
    assert "arguments must be plain values" in error_line(build, "own_models:build", anything=value)


@pytest.fixture
def own(monkeypatch):
    """A module of the user's: a network, declared functions that make a network and something else, and an undeclared one."""
    module = ModuleType("own_models")

    class Scaled(nn.Linear):
        def __init__(self, sizes: list[int]) -> None:
            super().__init__(*sizes)
            self.sizes = sizes

    def number() -> int:
        return 3

    def linear(width: int = 2) -> nn.Module:
        return nn.Linear(width, width)

    def hidden() -> nn.Module:
        raise AssertionError("it was called")

    module.Scaled = Scaled
    module.number = model_factory(number)
    module.linear = model_factory(linear)
    module.hidden = hidden
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


def build_trusted(name: str, **arguments) -> nn.Module:
    return build_named(name, arguments, trust=True)


def test_classes_and_declared_functions_of_the_caller(own):
    model = build_trusted("own_models:Scaled", sizes=(2, 3))
    assert isinstance(model, own.Scaled)
    # Built from what the record says, which has no tuples.
    assert model.built_from == {"name": "own_models:Scaled", "arguments": {"sizes": [2, 3]}}
    assert model.sizes == [2, 3]
    assert copy.deepcopy(model).built_from == model.built_from
    assert build_trusted("own_models:linear", width=5).in_features == 5


def test_code_of_the_caller_that_does_not_exist_or_makes_no_network(own):
    assert (
        error_line(build_trusted, "own_models:net") == "model.name='own_models:net': module 'own_models' has no 'net'"
    )
    assert error_line(build_trusted, "not.there:net") == "model.name='not.there:net': there is no module 'not.there'"
    assert error_line(build_trusted, "own_models:number") == (
        "model.name='own_models:number': returned a int, not a torch.nn.Module"
    )
    assert error_line(build_trusted, "own_models:Scaled") == (
        "model 'own_models:Scaled' needs the argument 'sizes'; accepted: sizes"
    )
    assert error_line(build_trusted, "own_models:number", x=1) == (
        "model 'own_models:number' has no argument 'x'; accepted: none"
    )


@pytest.mark.parametrize("name", ["os:system", "own_models:hidden", "os:path", "builtins:exec"])
def test_trusted_code_that_is_not_declared_is_not_called(own, name):
    line = error_line(build_trusted, name)
    assert line.startswith(f"model.name={name!r}: {name.partition(':')[2]!r} was not called; it must be")
    assert line.endswith("a function under @sparsefw.models.model_factory")


@pytest.mark.parametrize("name", ["os:system", "own_models:Scaled", "nowhere:net"])
def test_code_is_imported_only_with_trust(own, name, monkeypatch):
    monkeypatch.setattr(own_code.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    for call in (build, lambda name: build_named(name, {})):
        module, _, attribute = name.partition(":")
        assert error_line(call, name) == (
            f"model.name={name!r} would import the Python module {module!r} and run its {attribute!r}; "
            "add --trust (in Python: trust=True) if you trust this code"
        )
    assert "as package.module:Attribute" in error_line(build_named, "../up:x", {}, trust=True)


def test_arguments_in_a_file_cannot_grant_trust(own):
    """A record has any arguments, so trust is none of them."""
    assert "add --trust" in error_line(build_named, "own_models:Scaled", {"trust": True, "sizes": [1, 1]})
    assert "has no argument 'trust'" in error_line(build, "resnet_digits", trust=True)


def test_a_module_that_fails_to_import_something_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import something_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert error_line(build_trusted, "needs_more:net").endswith(
        "module 'needs_more' cannot be imported: No module named 'something_that_is_missing'"
    )


@pytest.mark.parametrize(
    "name",
    ["timm", "torchvision", "hub:resnet18", "timm.models:resnet18", "own_models:Scaled", "os:system", "resnet19"],
)
def test_files_reach_the_registry_only(name, own, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("something was resolved")

    for function in ("build_from_timm", "build_from_torchvision"):
        monkeypatch.setattr(external, function, refuse)
    monkeypatch.setattr(own_code, "import_code", refuse)
    assert error_line(build_registered, {"name": name, "arguments": {}}).startswith(f"unknown model {name!r}")


@pytest.mark.parametrize(
    "record",
    [
        "resnet_digits",
        {"name": "resnet_digits"},
        {"name": "resnet_digits", "arguments": {}, "module": "os"},
        {"name": ["resnet_digits"], "arguments": {}},
        {"name": "resnet_digits", "arguments": [10]},
    ],
)
def test_records_of_another_form(record):
    assert error_line(build_registered, record).startswith("the record of a model must have")


def test_records_are_checked_as_arguments_are():
    record = {"name": "resnet_digits", "arguments": {"classes": 7}}
    model = build_registered(record)
    assert model.built_from == record
    assert model.fc.out_features == 7
    assert "accepted: classes" in error_line(build_registered, {"name": "resnet_digits", "arguments": {"depth": 3}})
    assert "width must be" in error_line(build_registered, {"name": "resnet_digits", "arguments": {"width": -3}})
    record["arguments"]["classes"] = 8
    assert model.built_from["arguments"] == {"classes": 7}, "the record of a network is its own"


@needs_vision
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
@pytest.mark.parametrize("key", ["weights", "pretrained", "checkpoint_path", "pretrained_cfg", "weights_backbone"])
def test_files_that_name_other_libraries_cannot_make_them_read_or_download(name, key):
    record = {"name": name, "arguments": {key: "DEFAULT"}}
    assert f"the argument {key!r} is refused" in error_line(build_registered, record)


@needs_vision
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("timm:resnet10t", {"num_classes": 5, "drop_rate": 0.1, "global_pool": "max"}),
        ("torchvision:squeezenet1_1", {"num_classes": 5}),
        ("torchvision:lraspp_mobilenet_v3_large", {"num_classes": 5}),  # would download its backbone by default
    ],
)
def test_external_networks(name, arguments, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    with torch.device("meta"):
        model = build(name, **arguments)
    assert model.built_from == {"name": name, "arguments": arguments}


@needs_vision
@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("timm:resnet18x", {}, "unknown model 'timm:resnet18x'; did you mean 'timm:resnet18'?"),
        ("timm:hf-hub:someone/something", {}, "unknown model 'timm:hf-hub:someone/something'"),
        ("torchvision:resnet19", {}, "unknown model 'torchvision:resnet19'; did you mean 'torchvision:resnet"),
        ("timm:resnet18", {"classes": 3}, "model 'timm:resnet18': "),
        ("torchvision:resnet18", {"classes": 3}, "model 'torchvision:resnet18': "),
        ("timm:resnet18.a:b", {}, "unknown model 'timm:resnet18.a:b'"),
    ],
)
def test_hub_errors(name, arguments, line):
    assert error_line(build, name, **arguments).startswith(line)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("timm:resnet18", "pretrained", True),
        ("timm:resnet18", "pretrained", False),
        ("timm:resnet18", "checkpoint_path", "weights.pth"),
        ("timm:resnet18", "pretrained_cfg", {"url": "https://example.org/weights.pth"}),
        ("timm:resnet18", "pretrained_cfg_overlay", {"file": "weights.pth"}),
        ("timm:resnet18", "pretrained_strict", False),
        ("timm:resnet18", "cache_dir", "/tmp"),
        ("timm:resnet18", "scriptable", True),
        ("timm:resnet18", "features_only", True),
        ("torchvision:resnet18", "weights", "DEFAULT"),
        ("torchvision:resnet18", "pretrained", True),
        ("torchvision:fcn_resnet50", "weights_backbone", "IMAGENET1K_V1"),
        ("torchvision:fcn_resnet50", "pretrained_backbone", True),
        ("torchvision:resnet18", "norm_layer", "os.system"),
    ],
)
def test_arguments_that_load_files_are_refused(name, argument, value, monkeypatch):
    monkeypatch.setattr(external, "_require_installed", lambda *_: pytest.fail("the library was asked"))
    line = error_line(build, name, num_classes=3, **{argument: value})
    assert line.startswith(f"model {name!r}: the argument {argument!r} is refused; accepted: num_classes, ")
    assert line.endswith("nothing is downloaded, model.weights.file loads weights")


@pytest.mark.parametrize(
    "value",
    [
        "file:///etc/passwd",
        "https://example.org/x",
        "hf-hub:a/b",
        "../x",
        "a.pth",
        {"url": "x"},
        ["a", ["/x"]],
        [{"a": 1}],
    ],
)
@pytest.mark.parametrize(("name", "argument"), [("timm:resnet18", "global_pool"), ("torchvision:resnet18", "groups")])
def test_values_of_arguments_name_no_file(name, argument, value, monkeypatch):
    monkeypatch.setattr(external, "_require_installed", lambda *_: pytest.fail("the library was asked"))
    assert error_line(build, name, **{argument: value}) == (
        f"model {name!r}: {argument}={value!r} is refused; it must be a number, a word, or a list of these"
    )


@pytest.mark.parametrize(
    ("name", "argument", "value", "line"),
    [
        ("torchvision:vgg16", "num_classes", 300_000, "num_classes has a number above 25,000"),
        ("timm:resnet18", "channels", [64, [-(10**9)]], "channels has a number above 25,000"),
        ("timm:resnet18", "mlp_ratio", 1e300, "mlp_ratio has a number above 25,000"),
        ("timm:vit_tiny_patch16_224", "depth", 20_000, "depth asks for more than 1,000 blocks"),
        ("timm:resnet18", "layers", [300, 300, 300, 300], "layers asks for more than 1,000 blocks"),
        ("torchvision:swin_t", "depths", [1001], "depths asks for more than 1,000 blocks"),
        ("torchvision:vit_b_16", "num_layers", 1001, "num_layers asks for more than 1,000 blocks"),
        ("torchvision:densenet121", "block_config", [1001], "block_config asks for more than 1,000 blocks"),
    ],
)
def test_numbers_of_arguments_are_bounded(name, argument, value, line, monkeypatch):
    monkeypatch.setattr(external, "_require_installed", lambda *_: pytest.fail("the library was asked"))
    assert error_line(build, name, **{argument: value}) == f"model {name!r}: {line}"


@needs_vision
def test_accepted_arguments_load_nothing():
    """No argument that timm's or torchvision's own loading takes is accepted, under any name that it has today."""
    from timm.models import build_model_with_cfg

    loading = {*inspect.signature(timm.create_model).parameters, *inspect.signature(build_model_with_cfg).parameters}
    assert not loading & set(external.TIMM_ARGUMENTS)
    assert not any("pretrain" in name or "weights_" in name for name in external.TORCHVISION_ARGUMENTS)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_hub_without_the_package(package, monkeypatch):
    if package == "timm":
        monkeypatch.setattr(external, "import_torchvision", lambda: None)
    monkeypatch.setitem(sys.modules, package, None)
    assert error_line(build, f"{package}:resnet18") == (
        f"model '{package}:resnet18' needs {package}: pip install 'sparsefw[vision]'"
    )


class Importer:
    """Stands for importlib: raises the given errors in turn, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def import_module(self, name: str) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return name


def test_torchvision_without_its_operators(monkeypatch):
    """Schemas are declared if and only if the plain import fails for want of them."""
    declared = []

    class Library:
        def __init__(self, namespace: str, kind: str) -> None:
            self.namespace = namespace

        def define(self, schema: str) -> None:
            declared.append(f"{self.namespace}::{schema.partition('(')[0]}")

    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(external, "_SCHEMAS", [])
    monkeypatch.setattr(external, "importlib", Importer())
    assert external.import_torchvision() == "torchvision"
    monkeypatch.setattr(external, "importlib", Importer(RuntimeError("another fault")))
    with pytest.raises(RuntimeError, match="another fault"):
        external.import_torchvision()
    assert declared == external._SCHEMAS == []
    monkeypatch.setattr(external, "importlib", Importer(RuntimeError("operator torchvision::nms does not exist")))
    assert external.import_torchvision() == "torchvision"
    assert declared == ["torchvision::nms", "torchvision::qnms"]
    assert len(external._SCHEMAS) == 1, "the library must be kept, or its schemas vanish with it"


def test_registry_has_no_name_that_looks_like_another_source():
    assert not any(":" in name for name in MODELS)
