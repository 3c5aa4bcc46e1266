"""Every network of the registry: its size, shapes and record, and that it can be copied, saved and exported."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
from torch import nn

from sparsefw.models import MODELS, build, build_registered

# Trainable weights with default arguments, as the papers or torchvision state them, or as counted by hand.
COUNTS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet_digits": 308_074,
    "wide_resnet": 36_536_884,
    "pspnet_resnet18": 12_770_854,
    "pspnet_resnet50": 48_956_262,
    "pspnet_resnet101": 67_948_390,
    "vgg11_bn": 132_868_840,
    "vgg13_bn": 133_053_736,
    "vgg16_bn": 138_365_992,
    "vgg19_bn": 143_678_248,
    "vit_tiny": 4_027_786,
}
# Arguments that make a network small enough to run here, and an input that it then takes.
SMALL = {
    "resnet18": (dict(classes=10, width=8), (3, 64, 64)),
    "resnet34": (dict(classes=10, stem="cifar", width=4), (3, 16, 16)),
    "resnet50": (dict(classes=10, stem="cifar", width=4), (3, 16, 16)),
    "resnet101": (dict(classes=10, width=2), (3, 64, 64)),
    "resnet_digits": (dict(), (1, 8, 8)),
    "wide_resnet": (dict(depth=10, widen=2, classes=10), (3, 16, 16)),
    "pspnet_resnet18": (dict(width=8), (3, 65, 65)),
    "pspnet_resnet50": (dict(width=4, classes=5, in_channels=4), (4, 48, 64)),
    "pspnet_resnet101": (dict(width=2), (3, 49, 49)),
    "vgg11_bn": (dict(width=4, classes=10), (3, 64, 64)),
    "vgg13_bn": (dict(width=4, classes=10, head="cifar"), (3, 32, 32)),
    "vgg16_bn": (dict(width=4, classes=10, head="cifar", in_channels=1), (1, 32, 32)),
    "vgg19_bn": (dict(width=4, classes=10), (3, 32, 32)),
    "vit_tiny": (dict(image=16, width=24, depth=2), (3, 16, 16)),
}
EVERY = pytest.mark.parametrize("name", MODELS)


def small(name: str) -> tuple[nn.Module, torch.Tensor]:
    arguments, shape = SMALL[name]
    torch.manual_seed(0)
    return build(name, **arguments), torch.randn(2, *shape)


def test_every_model_is_tested():
    for name, info in MODELS.items():
        assert name in COUNTS, f"add the number of weights of {name!r} to COUNTS in tests/models/test_registry.py"
        assert name in SMALL, f"add arguments of a small {name!r} to SMALL in tests/models/test_registry.py"
        assert name == info.name
        assert info.description
        assert info.paper
    assert list(COUNTS) == list(SMALL) == list(MODELS)


@EVERY
def test_size_and_output_at_the_stated_input(name):
    info = MODELS[name]
    with torch.device("meta"):
        model = build(name)
        assert sum(p.numel() for p in model.parameters()) == COUNTS[name]
        y = model.eval()(torch.empty(2, *info.input_shape))
    classes = {"resnet_digits": 10, "wide_resnet": 100, "vit_tiny": 10}.get(name, 1000)
    assert y.shape == (2, *((19, 713, 713) if name.startswith("pspnet") else (classes,)))


@EVERY
def test_learns_something_from_every_weight(name):
    model, x = small(name)
    outputs = model.train()(x)
    sum(y.square().sum() for y in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@EVERY
def test_state_dict_into_a_network_built_from_the_record(name):
    model, x = small(name)
    model.train()(x)  # so that running statistics differ from those of a new network
    record = json.loads(json.dumps(model.built_from))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = build_registered(record)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), other.eval()(x))


@EVERY
def test_record_is_copied_with_the_network_and_kept_out_of_its_state(name):
    model, _ = small(name)
    assert model.built_from == {"name": name, "arguments": SMALL[name][0]}
    assert copy.deepcopy(model).built_from == model.built_from
    assert not any("built_from" in key for key in model.state_dict())


@EVERY
def test_channels_last_gives_the_same(name):
    model, x = small(name)
    model.double().eval()
    with torch.no_grad():
        expected = model(x.double())
        model.to(memory_format=torch.channels_last)
        output = model(x.double().to(memory_format=torch.channels_last))
    torch.testing.assert_close(output, expected)


@EVERY
def test_exports_with_any_batch_size(name):
    model, x = small(name)
    model.eval()
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    many = torch.cat([x, x + 1, x - 1])
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(many), model(many))


@EVERY
def test_nothing_in_the_network_depends_on_what_it_has_seen(name):
    model, x = small(name)

    def attributes() -> dict[str, list[str]]:
        hidden = ("_parameters", "_buffers", "_modules")
        return {
            path: [f"{key}={value!r}" for key, value in vars(m).items() if key not in hidden]
            for path, m in model.named_modules()
        }

    before = attributes()
    model.train()(x)
    assert attributes() == before
