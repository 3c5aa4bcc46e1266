"""Networks of a run: started from weights, fitted to the data, built again, and opened on another machine."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from data.dataset_writers import write
from runfolder.records import config_without_digest
from sparsefw.config_base import ConfigError
from sparsefw.models import build
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

SMALL = ["train.epochs=1", "data.batch_size=4", "data.validation=0", "engine.workers=0", "model.arguments.width=8"]


def test_a_classifier_becomes_the_backbone_of_a_pspnet(tmp_path):
    """As the paper's Cityscapes set-up starts. With a learning rate of next to nothing it stays what was loaded."""
    write("cityscapes", tmp_path / "data", images=8)
    classifier = build("resnet18", classes=7, width=8)
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    weights = [f"model.weights.file={tmp_path / 'classifier.safetensors'}", "model.weights.into=backbone"]
    changes = [
        *SMALL,
        *weights,
        "model.name=pspnet_resnet18",
        "data.size=[33,33]",
        "train.lr=1e-12",
        "train.weight_decay=0",
    ]
    fit(load_recipe("cityscapes-pspnet-sgd", changes), tmp_path / "run", tmp_path / "data", quiet=True)
    model, _ = RunFolder(tmp_path / "run").load_model()
    for name, p in classifier.named_parameters():
        if not name.startswith("fc."):
            torch.testing.assert_close(model.backbone.get_parameter(name), p, rtol=0, atol=1e-6)


def test_weights_of_other_classes_are_left_out_when_asked(tmp_path):
    save_file(build("resnet_digits", width=8, classes=3).state_dict(), tmp_path / "w.safetensors")
    changes = ["train.epochs=1", "model.arguments.width=8", f"model.weights.file={tmp_path / 'w.safetensors'}"]
    with pytest.raises(ValueError, match=r"fc\.weight has the shape"):
        fit(load_recipe("digits-resnet-sgd", changes), tmp_path / "run", quiet=True)
    fit(load_recipe("digits-resnet-sgd", [*changes, "model.weights.leave_out=[fc.*]"]), tmp_path / "run", quiet=True)


def test_a_network_that_does_not_fit_the_data_is_refused_in_one_line(tmp_path):
    for change, words in [
        (
            "model.arguments.classes=7",
            r"gives \(2, 7\) for inputs .*; the data, of 10 classes, need \(2, 10\)",
        ),
        ("model.arguments.in_channels=3", r"does not fit inputs of shape \(2, 1, 8, 8\)"),
        ("model.name=pspnet_resnet18", r"gives \(2, 10, 8, 8\)"),
    ]:
        with pytest.raises(ConfigError, match=words) as caught:
            fit(load_recipe("digits-resnet-sgd", ["model.arguments.width=8", change]), tmp_path / "run", quiet=True)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_what_is_constrained_and_what_is_not_is_written_down(tmp_path):
    fit(
        load_recipe("digits-resnet-filters", ["train.epochs=1", "model.arguments.width=8"]),
        tmp_path / "run",
        quiet=True,
    )
    rows = {line.split()[0]: line for line in (tmp_path / "run" / "regions.txt").read_text().splitlines()}
    assert "GroupKSupportBall" in rows["conv1.weight"]
    assert "2 of 8" in rows["conv1.weight"]
    assert "fc.weight" in rows["free,"]
    assert rows["not"] == "not to be removed: fc: the model's output"
    assert rows["weights"].startswith(
        "weights are renewed 0.285 times in 19 steps (renewals=8 is more than"
    )  # 0.03 * 19 / 2
    assert rows["regions"] == "regions are sized from the weights as given"


@pytest.mark.parametrize("change", ["engine.cuda_graph=true", "engine.precision=fp16", "engine.sync_batchnorm=true"])
def test_a_run_of_a_gpu_is_compressed_on_a_cpu(tmp_path, change):
    folder = tmp_path / "run"
    fit(load_recipe("digits-resnet-filters", ["train.epochs=1", "model.arguments.width=8"]), folder, quiet=True)
    key, value = change.removeprefix("engine.").split("=")
    text = config_without_digest(folder / "config.yaml")
    lines = [f"  {key}: {value}" if line.startswith(f"  {key}:") else line for line in text.splitlines()]
    (folder / "config.yaml").write_text("\n".join(lines))
    trained = TrainedRun.open(folder, device="cpu")
    assert change.split("=")[1] in str(getattr(trained.config.engine, key)).lower()
    assert trained.curve("filters", [0.5], refit=False, progress=False).points[0].plain >= 0
