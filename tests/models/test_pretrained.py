"""load_weights: weights of classifiers for classifiers and for backbones, and one line for everything else."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from compression.zoo import awake
from sparsefw.models import LoadReport, build, import_torchvision, load_weights

try:
    torchvision = import_torchvision()
except ModuleNotFoundError:
    torchvision = None
needs_torchvision = pytest.mark.skipif(torchvision is None, reason="torchvision is not installed")
SMALL = dict(width=4, classes=6)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(model: nn.Module) -> nn.Module:
    """Return a network in which no tensor is as initialised, including norms, their statistics and their counters."""
    for name, buffer in awake(model).named_buffers():
        if name.endswith("num_batches_tracked"):
            buffer.fill_(3)
    return model.eval()


def refusal(model: nn.Module, source, **arguments) -> str:
    """Return the message that refuses the weights; the model must be unchanged."""
    before = state(model)
    with pytest.raises(ValueError) as caught:
        load_weights(model, source, **arguments)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return str(caught.value)


@needs_torchvision
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet34", "resnet50", pytest.param("resnet101", marks=pytest.mark.slow)]
)
def test_torchvision_classifiers(name, tmp_path):
    theirs, ours = trained(torchvision.models.get_model(name)), build(name).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    report = load_weights(ours, tmp_path / "weights.safetensors")
    assert report.loaded == tuple(theirs.state_dict())
    assert (report.left_out, report.initialised) == ((), ())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs(x)
        assert expected.isfinite().all()
        assert torch.equal(ours(x), expected)


@needs_torchvision
@pytest.mark.parametrize(("name", "plan"), [("vgg11_bn", "A"), ("vgg13_bn", "B"), ("vgg16_bn", "D"), ("vgg19_bn", "E")])
def test_features_of_torchvision_vgg(name, plan):
    """Without the linear layers, which are large; that names and shapes of all layers agree is tested on the whole."""
    vgg = torchvision.models.vgg
    theirs = trained(vgg.make_layers(vgg.cfgs[plan], batch_norm=True))
    ours = build(name, classes=3, head="cifar").eval()
    report = load_weights(ours, theirs.state_dict(), into="features")
    assert report.initialised == ("classifier.weight", "classifier.bias")
    assert report.left_out == ()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(ours.features(x), theirs(x))


@needs_torchvision
def test_a_classifier_as_the_dilated_backbone():
    """At the positions that the strided classifier keeps, the backbone's features are the classifier's."""
    classifier, net = trained(torchvision.models.resnet50()).double(), build("pspnet_resnet50").double().eval()
    before = state(net)
    report = load_weights(net, classifier.state_dict(), into="backbone")
    assert [(item.name, item.shape) for item in report.left_out] == [("fc.weight", (1000, 2048)), ("fc.bias", (1000,))]
    assert {item.reason for item in report.left_out} == {"the classifier's last layer, which backbone does not have"}
    assert report.loaded == tuple(name for name in net.state_dict() if name.startswith("backbone."))
    assert {name.split(".")[0] for name in report.initialised} == {"pyramid", "head", "auxiliary"}
    assert all(torch.equal(before[name], net.state_dict()[name]) for name in report.initialised)
    x = torch.randn(1, 3, 97, 97, dtype=torch.float64)
    with torch.no_grad():
        strided = classifier.maxpool(classifier.relu(classifier.bn1(classifier.conv1(x))))
        dense = net.backbone.stem(x)
        for i, stage in enumerate(net.backbone.stages()):
            strided, dense = classifier.get_submodule(f"layer{i + 1}")(strided), stage(dense)
    assert (strided.shape[-2:], dense.shape[-2:]) == ((4, 4), (13, 13))
    assert strided.abs().max() > 0.01
    torch.testing.assert_close(dense[..., ::4, ::4], strided)


def test_our_own_classifier_as_a_backbone():
    classifier, net = trained(build("resnet18", **SMALL)), build("pspnet_resnet18", width=4)
    report = load_weights(net, classifier.state_dict(), into="backbone")
    assert len(report.loaded) == len(classifier.state_dict()) - 2
    assert torch.equal(net.backbone.layer4[1].bn2.running_var, classifier.layer4[1].bn2.running_var)
    whole = build("pspnet_resnet18", width=4)
    assert load_weights(whole, net.state_dict()).initialised == ()
    # Left out as asked, or for want of a place: in the report once.
    assert len(load_weights(net, classifier.state_dict(), into="backbone", leave_out=["fc.weight"]).left_out) == 2


def test_another_number_of_classes():
    old, new = trained(build("resnet18", **SMALL)), build("resnet18", width=4, classes=9)
    assert refusal(new, old.state_dict()) == (
        "the state dict: fc.weight has the shape (6, 32), in the model (9, 32) (1 more do not fit); "
        "leave_out=['fc.*'] would leave it out"
    )
    fc = new.fc.weight.clone()
    report = load_weights(new, old.state_dict(), leave_out=["fc.*"])
    assert torch.equal(new.fc.weight, fc)
    assert torch.equal(new.layer4[1].conv2.weight, old.layer4[1].conv2.weight)
    assert report.initialised == ("fc.weight", "fc.bias")
    assert str(report).splitlines() == [
        "the state dict: loaded 120 of 122 tensors",
        "left out: fc.weight (6, 32): as asked by leave_out",
        "left out: fc.bias (6,): as asked by leave_out",
        "as initialised: fc.weight, fc.bias",
    ]


def test_leave_out_is_of_names_that_exist():
    model = build("resnet18", **SMALL)
    weights = state(model)
    assert refusal(model, weights, leave_out=["head.*"]) == (
        "leave_out: nothing is named 'head.*'; the names begin with conv1.weight"
    )
    assert refusal(model, weights, leave_out="fc.*") == "leave_out must be a list of names such as ['fc.*'], got 'fc.*'"
    assert refusal(model, weights, leave_out=["*"]) == "the state dict: there is nothing to load"


def test_parts_that_do_not_exist():
    model = build("pspnet_resnet18", width=4)
    for into in ("bakbone", "", "backbone.layer9", "backbone.conv1.weight"):
        assert refusal(model, state(model), into=into) == (
            f"into must be a part of the model, such as backbone, pyramid, head, auxiliary, got {into!r}"
        )


def test_weights_of_another_network(tmp_path):
    line = refusal(build("resnet50", **SMALL), build("resnet18", **SMALL).state_dict())
    assert line.startswith(
        "the state dict: layer1.0.conv1.weight has the shape (4, 4, 3, 3), in the model (4, 4, 1, 1) ("
    )
    assert refusal(build("vit_tiny", depth=1), build("resnet18", **SMALL).state_dict()).startswith(
        "the state dict: positions is missing; the model has it with the shape (1, 64, 192) ("
    )
    line = refusal(build("pspnet_resnet50", width=4), build("resnet18", **SMALL).state_dict(), into="backbone")
    assert line.startswith("the state dict: layer1.0.conv1.weight has the shape (4, 4, 3, 3), in the model")
    line = refusal(build("resnet18", stem="cifar", **SMALL), build("resnet18", **SMALL).state_dict())
    assert line == (
        "the state dict: conv1.weight has the shape (4, 3, 7, 7), in the model (4, 3, 3, 3); "
        "leave_out=['conv1.*'] would leave it out"
    )


def test_a_classifier_for_a_network_with_a_backbone():
    line = refusal(build("pspnet_resnet18", width=4), build("resnet18", **SMALL).state_dict())
    assert line.startswith("the state dict: backbone.conv1.weight is missing; the model has it with the shape")
    assert line.endswith("; into='backbone' would load the weights there")


def test_missing_and_unknown_names():
    model = build("resnet18", **SMALL)
    weights = state(model)
    del weights["layer2.0.conv1.weight"]
    assert refusal(model, weights).startswith(
        "the state dict: layer2.0.conv1.weight is missing; the model has it with the shape (8, 4, 3, 3)"
    )
    net = build("pspnet_resnet18", width=4)
    assert refusal(net, weights, into="backbone").startswith("the state dict: layer2.0.conv1.weight is missing")
    weights = {**state(model), "extra.weight": torch.ones(3)}
    assert refusal(model, weights).startswith(
        "the state dict: extra.weight has the shape (3,); the model has no such parameter"
    )
    vit = build("vit_tiny", depth=1, width=12)
    assert refusal(vit, {**state(vit), "positions": torch.ones(1, 4, 12)}) == (
        "the state dict: positions has the shape (1, 4, 12), in the model (1, 64, 12); "
        "leave_out=['positions'] would leave it out"
    )
    # Only fc is what a backbone may lack.
    assert "extra.weight has the shape" in refusal(net, weights, into="backbone")


def test_files_without_the_counters_of_norms():
    """As torchvision's first weights of ResNets are: the counters stay, and are listed."""
    old, new = trained(build("resnet18", **SMALL)), build("resnet18", **SMALL)
    counters = [name for name in old.state_dict() if name.endswith("num_batches_tracked")]
    report = load_weights(new, {name: w for name, w in old.state_dict().items() if name not in counters})
    assert report.initialised == tuple(counters)
    assert len(report.loaded) + len(counters) == len(old.state_dict())


def test_types_and_devices():
    old, new = trained(build("resnet_digits")), build("resnet_digits")
    load_weights(new, {name: w.half() if w.is_floating_point() else w for name, w in old.state_dict().items()})
    assert new.conv1.weight.dtype == torch.float32
    assert torch.equal(new.conv1.weight, old.conv1.weight.half().float())
    assert new.conv1.weight.requires_grad
    weights = {**old.state_dict(), "conv1.weight": torch.ones(32, 1, 3, 3, dtype=torch.int8)}
    assert "conv1.weight has the type torch.int8, in the model torch.float32" in refusal(new, weights)
    with torch.device("meta"):
        hollow = build("resnet_digits")
    assert "conv1.weight has no values: it is on the meta device where it comes" in refusal(new, hollow.state_dict())
    with pytest.raises(ValueError, match="it is on the meta device of the model"):
        load_weights(hollow, old.state_dict())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_files_whole_and_damaged(suffix, tmp_path):
    path = tmp_path / f"weights{suffix}"
    old, new = trained(build("resnet_digits")), build("resnet_digits").eval()
    (save_file if suffix == ".safetensors" else torch.save)(old.state_dict(), path)
    report = load_weights(new, str(path))
    assert isinstance(report, LoadReport)
    assert report.source == str(path)
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(new(x), old(x))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not weights at all", whole[:100]):
        path.write_bytes(damaged)
        assert refusal(new, path).startswith(f"{path}: is damaged, or ")
    path.unlink()
    assert refusal(new, path) == f"{path}: there is no such file"


class Trap:
    """Runs code if it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("trapped"),))


def test_no_file_runs_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, path = build("resnet_digits"), tmp_path / "weights.pt"
    torch.save({**model.state_dict(), "extra": Trap()}, path)
    assert "holds more than tensors, which is never read" in refusal(model, path)
    torch.save(model, path)
    assert "holds more than tensors, which is never read" in refusal(model, path)
    assert not Path("trapped").exists()
    # Not even with another name.
    path.rename(tmp_path / "weights.safetensors")
    assert "is damaged, or no safetensors file" in refusal(model, tmp_path / "weights.safetensors")


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_the_network_of_a_checkpoint_is_found(tmp_path, key):
    model, other = build("resnet_digits"), build("resnet_digits")
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, key: model.state_dict(), "optimizer": {"state": {}}}, path)
    assert load_weights(other, path).source == f"{path}, its {key}"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    torch.save({"state_dict": model.state_dict(), "model": model.state_dict()}, path)
    assert "must hold names and tensors only" in refusal(other, path)


def test_what_is_not_a_state_dict(tmp_path):
    model = build("resnet_digits")
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "net": model.state_dict()}, path)
    assert refusal(model, path) == (
        f"{path}: must hold names and tensors only, got int as 'epoch'; of a checkpoint, give the state dict in it"
    )
    torch.save([torch.ones(3)], path)
    assert refusal(model, path) == f"{path}: must be a dictionary of names and tensors, got list"
    assert refusal(model, {}) == "the state dict: must be a dictionary of names and tensors, got an empty dict"
    assert refusal(model, collections.OrderedDict(a=model.state_dict())).startswith(
        "the state dict: must hold names and tensors only, got OrderedDict as 'a'"
    )
    assert refusal(model, tmp_path / "weights.bin") == (
        f"{tmp_path / 'weights.bin'}: weights must be in a .safetensors, .pt or .pth file"
    )


def test_a_folder_in_place_of_weights_is_named_once(tmp_path):
    (tmp_path / "w.pth").mkdir()
    reason = "it is a folder, a pipe or a device, not a file"
    assert refusal(nn.Linear(2, 1), tmp_path / "w.pth") == f"{tmp_path / 'w.pth'}: cannot be read: {reason}"
