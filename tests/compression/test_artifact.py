"""Artifacts: a loaded model equals the saved one, nothing is unpickled, and no fault destroys the previous artifact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import onnx
import pytest
import torch
from torch import Tensor, nn

from compression.networks import ROWS, mlp
from fuzz.memory import at_most
from sparsefw import atomic_io, compress, load, save, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact import files
from sparsefw.compression.artifact import folder as artifact
from sparsefw.compression.artifact.files import replaced_folder
from sparsefw.models import build
from vision import require_vision

KINDS = [
    dict(filters=0.5),
    dict(filters=0.7, form="masked"),
    dict(rank=0.6),
    dict(weights=0.9),
    dict(weights="2:4"),
    dict(filters=0.4, rank=0.5, weights=0.5),
]


class Own(nn.Module):
    """A network that is in no registry, with a tied weight, a frozen layer and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.encode, self.decode = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.decode.weight = self.encode.weight
        self.first.weight.requires_grad_(False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.second(torch.relu(self.first(x)))
        return self.head(self.decode(self.encode(x)).mean(1))


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_round_trip(how, small_resnet, batches, tmp_path):
    small = compress(small_resnet, calibration=batches, **how)
    save(small, tmp_path / "a")
    again = load(tmp_path / "a")
    assert torch.equal(again.model(batches[0]), small.model(batches[0]))
    assert again.plan == small.plan
    for (name, mine), (other, theirs) in zip(
        again.model.named_parameters(), small.model.named_parameters(), strict=True
    ):
        assert (name, mine.requires_grad, mine.dtype) == (other, theirs.requires_grad, theirs.dtype)
    assert again.model.training == small.model.training


def test_a_network_outside_of_the_registry_needs_a_constructor(tmp_path):
    torch.manual_seed(0)
    model, x = Own().eval(), torch.randn(5, 7, 8)
    small = compress(model, filters=0.5, calibration=[x])
    save(small, tmp_path / "a")
    with pytest.raises(ArtifactError, match="load\\(folder, constructor\\)"):
        load(tmp_path / "a")
    again = load(tmp_path / "a", Own)
    torch.testing.assert_close(again.model(x), small.model(x))
    assert again.model.decode.weight is again.model.encode.weight
    assert not again.model.first.weight.requires_grad
    assert again.model.attention.num_heads == 2
    assert again.model.second.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torchvision:squeezenet1_1", {"num_classes": 5}),
        ("timm:test_resnet", {"num_classes": 5}),
        (
            "timm:vit_small_patch16_rope_224",
            {"num_classes": 5, "img_size": 64, "depth": 1, "embed_dim": 48, "num_heads": 2},
        ),
    ],
)
def test_networks_of_other_libraries_are_built_again_without_downloads(name, arguments, tmp_path, monkeypatch):
    require_vision(name)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download was tried")

    for download in ("load_state_dict_from_url", "download_url_to_file"):
        monkeypatch.setattr(torch.hub, download, refuse)
    x = torch.randn(2, 3, 64, 64)
    model = build(name, **arguments).eval()
    small = compress(model, rank=0.5, example=x)
    save(small, tmp_path / "a")
    save_elastic(model, tmp_path / "e", "rank", [0.5], calibration=[x], refit=False)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "a").model(x), small.model(x))
        assert load(tmp_path / "e", rank=0.5).model.eval()(x).shape == (2, 5)


def test_other_constructor_is_refused(small_resnet, batches, tmp_path):
    save(compress(small_resnet, filters=0.5, calibration=batches), tmp_path / "a")
    with pytest.raises(ArtifactError, match="does not fit"):
        load(tmp_path / "a", Own)
    with pytest.raises(ArtifactError, match="not a torch"):
        load(tmp_path / "a", dict)


def test_channels_last_and_training_mode_survive(small_resnet, batches, tmp_path):
    model = small_resnet.to(memory_format=torch.channels_last).train()
    small = compress(model, rank=0.5, calibration=batches)
    save(small, tmp_path / "a")
    again = load(tmp_path / "a").model
    assert again.training
    weight = again.layer1[0].conv1[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_file_shrinks(small_resnet, batches, tmp_path):
    sizes = {}
    for ratio in (0.0, 0.5, 0.9):
        for kind in ("filters", "rank", "weights"):
            save(compress(small_resnet, calibration=batches, refit=False, **{kind: ratio}), tmp_path / "a")
            sizes[kind, ratio] = (tmp_path / "a" / "model.safetensors").stat().st_size
    for kind in ("filters", "rank", "weights"):
        assert sizes[kind, 0.9] < sizes[kind, 0.5] < sizes[kind, 0.0]


def test_certificate(small_resnet, batches, tmp_path):
    small = compress(small_resnet, filters=0.5, calibration=batches)
    save(small, tmp_path / "a", onnx=True, program=True, metrics={"dense": 99.0, "compressed": 98.0})
    certificate = load(tmp_path / "a").certificate
    assert certificate["parity"]["masked_removed"] < 1e-5
    assert certificate["parity"]["onnxruntime"] < 1e-4
    assert certificate["costs"]["compressed"]["parameters"] == sum(p.numel() for p in small.model.parameters())
    assert certificate["metrics"] == {"dense": 99.0, "compressed": 98.0}
    assert certificate["latency"]["dense"]["median"] > 0
    assert certificate["versions"]["torch"] == torch.__version__
    graph = onnx.load(tmp_path / "a" / "model.onnx").graph
    assert [axis.type.tensor_type.shape.dim[0].dim_param for axis in (*graph.input, *graph.output)] == [
        "batch",
        "batch",
    ]
    program = torch.export.load(tmp_path / "a" / "model.pt2").module()
    torch.testing.assert_close(program(batches[0]), small.model(batches[0]))
    other = compress(small_resnet, filters=0.5, calibration=batches)
    save(other, tmp_path / "b")
    assert load(tmp_path / "b").certificate["source_sha256"] == certificate["source_sha256"]


@pytest.mark.parametrize("name", ["model.safetensors", "certificate.json", "plan.json"])
@pytest.mark.parametrize("fault", ["truncated", "edited", "missing", "foreign"])
def test_damaged_file_gives_one_line(name, fault, small_resnet, batches, tmp_path):
    save(compress(small_resnet, weights=0.5, calibration=batches, refit=False), tmp_path / "a")
    path = tmp_path / "a" / name
    content = path.read_bytes()
    if fault == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif fault == "edited":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif fault == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\x80\x04PK something else")
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "a")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "a") in str(error.value)


def edited(folder, change):
    """plan.json rewritten by somebody who also knows how hashes work."""
    path = folder / "plan.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps({**data, "digest": files.digest_of(data)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="pickle"), "not a sparsefw artifact"),
        (lambda d: d.update(schema=99), "schema 99"),
        (lambda d: d.update(model={"name": "os:system", "arguments": {}}), "os:system"),
        (lambda d: d.update(model={"name": "timm:../resnet18", "arguments": {}}), "timm:../resnet18"),
        (lambda d: d.update(model={"name": "torchvision:alexnet", "arguments": {"weights": "DEFAULT"}}), "weights"),
        (lambda d: d.update(model={"name": "resnet_digits", "arguments": {"colour": 3}}), "colour"),
        (
            lambda d: d.update(model={"name": "resnet_digits", "arguments": {"width": 8, "classes": 10**6}}),
            "do not fit",
        ),
        (lambda d: d["plan"]["edits"].append({"edit": "eval", "layer": "fc"}), "unknown edit"),
        (lambda d: d["plan"]["edits"].append({"edit": "split", "layer": "nowhere", "rank": 2}), "does not fit"),
        (
            lambda d: d["plan"]["edits"].append({"edit": "keep", "layer": "fc", "side": "in", "kept": [999]}),
            "does not fit",
        ),
        (
            lambda d: d["plan"]["edits"].append({"edit": "keep", "layer": "fc", "side": "in", "kept": "abc"}),
            "not a plan|does not fit",
        ),
        (
            lambda d: d["plan"]["edits"].append({"edit": "keep", "layer": "fc", "side": "top", "kept": [1]}),
            "does not fit",
        ),
        (lambda d: d["plan"].pop("edits"), "not a plan"),
        (lambda d: d.pop("sha256"), "no file hashes"),
        (lambda d: d["sha256"].pop("model.safetensors"), "damaged or was edited"),
    ],
    ids=range(15),
)
def test_edited_plan_gives_one_line(change, message, small_resnet, batches, tmp_path):
    save(compress(small_resnet, filters=0.5, calibration=batches, refit=False), tmp_path / "a")
    edited(tmp_path / "a", change)
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path / "a")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torchvision:vgg16", {"num_classes": 25_000}),
        ("timm:resnet18", {"channels": [4096, 64, 64, 64]}),
        ("timm:vit_tiny_patch16_224", {"depth": 1000, "embed_dim": 3, "num_heads": 1}),
    ],
)
def test_a_large_network_beside_few_weights_is_never_built(
    name, arguments, small_resnet, batches, tmp_path, monkeypatch
):
    require_vision(name)
    save(compress(small_resnet, filters=0.5, calibration=batches, refit=False), tmp_path / "a")
    edited(tmp_path / "a", lambda d: d.update(model={"name": name, "arguments": arguments}))
    edited(tmp_path / "a", lambda d: d["plan"].update(edits=[]))
    monkeypatch.setattr(artifact, "build_for", lambda *_: pytest.fail("memory was taken"))
    with at_most(1 << 28), pytest.raises(ArtifactError, match="the weights do not fit the network"):
        load(tmp_path / "a")


def test_a_probe_of_more_numbers_than_an_image_has_is_refused(small_resnet, batches, tmp_path):
    save(compress(small_resnet, filters=0.5, calibration=batches, refit=False), tmp_path / "a")
    edited(tmp_path / "a", lambda d: d["probe"]["input"].update(shape=[1, 1, 7000, 7000]))
    with at_most(1 << 28), pytest.raises(ArtifactError, match="inputs of more than 7,000,000 numbers"):
        load(tmp_path / "a")


def test_weights_of_another_network_are_refused(small_resnet, batches, tmp_path):
    save(compress(small_resnet, filters=0.5, calibration=batches, refit=False), tmp_path / "a")
    save(compress(small_resnet, filters=0.6, calibration=batches, refit=False), tmp_path / "b")
    os.replace(tmp_path / "b" / "model.safetensors", tmp_path / "a" / "model.safetensors")
    with pytest.raises(ArtifactError, match="damaged or was edited"):
        load(tmp_path / "a")


def test_missing_folder(tmp_path):
    with pytest.raises(ArtifactError, match="not an artifact"):
        load(tmp_path / "nowhere")


def test_foreign_folder_is_never_replaced(small_resnet, batches, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    small = compress(small_resnet, filters=0.5, calibration=batches, refit=False)
    with pytest.raises(ArtifactError, match="not an artifact"):
        save(small, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="not an artifact"):
        save(small, tmp_path / "file")


def test_a_users_files_beside_an_artifact_are_never_deleted(small_resnet, batches, tmp_path):
    small = compress(small_resnet, filters=0.5, calibration=batches, refit=False)
    save(small, tmp_path / "a", program=True)
    save(small, tmp_path / "a")  # what was written here may go
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="files of your own"):
        save(small, tmp_path / "a")
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"


def test_ordinary_mistakes_get_one_line(small_resnet, batches, tmp_path):
    small = compress(small_resnet, filters=0.5, calibration=batches, refit=False)
    with pytest.raises(ValueError, match="save takes the result of compress, not a ResNet"):
        save(small.model, tmp_path / "a")
    save(small, tmp_path / "a")
    for wrong in (small_resnet, "net:Net"):
        with pytest.raises(ArtifactError, match="must be a function that builds the dense network"):
            load(tmp_path / "a", wrong)
    assert str(load(tmp_path / "a")).startswith("removed: 50 % of the filters\n")


def test_unwritable_folder(small_resnet, batches, tmp_path):
    small = compress(small_resnet, filters=0.5, calibration=batches, refit=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot write"):
        save(small, tmp_path / "file" / "a")


def test_failure_while_writing_leaves_the_previous_artifact(small_resnet, batches, tmp_path, monkeypatch):
    small = compress(small_resnet, filters=0.5, calibration=batches, refit=False)
    save(small, tmp_path / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact, "write_json", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        save(small, tmp_path / "a")
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_really_full_disk(small_resnet, batches, tmp_path):
    """A file-size limit makes the write itself fail, as a full disk does."""
    code = textwrap.dedent(f"""
        import resource, signal, torch
        from sparsefw import compress, save
        from sparsefw.models import build
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        small = compress(build("resnet_digits"), rank=0.1, example=torch.zeros(2, 1, 8, 8))
        save(small, {str(tmp_path / "a")!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save(small, {str(tmp_path / "a")!r})
        except Exception as error:
            print(type(error).__name__, str(error))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ArtifactError" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1
    load(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_killed_at_any_moment_the_artifact_is_whole(tmp_path):
    """kill -9 while a process saves over and over: what is there always loads."""
    code = textwrap.dedent(f"""
        import torch
        from sparsefw import compress, save
        from sparsefw.models import build
        small = compress(build("resnet_digits"), rank=0.1, example=torch.zeros(2, 1, 8, 8))
        while True:
            save(small, {str(tmp_path / "a")!r})
            print("saved", flush=True)
    """)
    for attempt in range(6):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "saved\n"
            time.sleep(0.05 + 0.13 * attempt)
            process.send_signal(signal.SIGKILL)
        load(tmp_path / "a")


def test_reading_while_another_process_saves(small_resnet, batches, tmp_path, monkeypatch):
    """Between the plan and the weights another artifact takes the folder's place: that one is read, as a whole."""
    first, second = (compress(small_resnet, filters=f, calibration=batches, refit=False) for f in (0.5, 0.75))
    save(first, tmp_path / "a")
    check, saved = artifact.check_hashes, []

    def interrupted(*args):
        if not saved:
            saved.append(save(second, tmp_path / "a"))
        check(*args)

    monkeypatch.setattr(artifact, "check_hashes", interrupted)
    found = load(tmp_path / "a")
    assert found.plan == second.plan
    torch.testing.assert_close(found.model(batches[0]), second.model(batches[0]))


def test_without_atomic_exchange_the_swap_still_works(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_io, "_exchange", lambda a, b: False)  # such as on NFS
    for content in ("one", "two"):
        with replaced_folder(tmp_path / "a", lambda _: True) as aside:
            (aside / "f").write_text(content)
    assert (tmp_path / "a" / "f").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_folder_may_have_a_long_name(tmp_path):
    folder = tmp_path / ("n" * 250)
    save(compress(mlp(), rank=0.5, example=ROWS[0]), folder)
    assert (folder / "plan.json").exists()


def test_outputs_that_are_whole_numbers(tmp_path):
    class Class(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).argmax(1)

    save(compress(Class(), rank=0.5, example=ROWS[0]), tmp_path / "a", onnx=True)
    parity = load(tmp_path / "a", Class).certificate["parity"]
    assert parity == {
        "masked_removed": pytest.approx(0, abs=1e-12),
        "onnxruntime": 0.0,
    }  # the first by what argmax sees
