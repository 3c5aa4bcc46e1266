"""Numbers and files that make no sense are refused in one line, which names them and says what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from data.dataset_writers import write
from sparsefw import constrain
from sparsefw.cli import app
from sparsefw.models import build
from sparsefw.train import fit, load_recipe

SMALL = ("train.epochs=1", "model.arguments.width=4", "data.batch_size=200", "engine.device=cpu")
SETS = [word for change in SMALL for word in ("--set", change)]


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(load_recipe("digits-resnet-sgd", SMALL), folder, quiet=True)
    return folder


@pytest.mark.parametrize("images", ["0", "-1", "-5000", "1"])
@pytest.mark.parametrize("words", [("curve",), ("compress", "--filters", "0.5")], ids=["curve", "compress"])
def test_calibration_images(run, words, images):
    assert f"calibration={images}: must be at least 2 images" in refused(*words, str(run), "--calibration", images)
    assert not (run / "small").exists()


@pytest.mark.parametrize("w", ["1e-30", "0", "-1", "1e30", ".inf", ".nan"])
@pytest.mark.parametrize("setting", ["method.w", "method.w_start"])
def test_sizes_of_regions(tmp_path, w, setting):
    """With w=1e-30 a training would run to its end with weights that float32 cannot tell from 0."""
    words = ["train", "digits-resnet-filters-paper", *SETS, "--set", f"{setting}={w}", "--out", str(tmp_path / "run")]
    message = refused(*words)
    assert setting.removeprefix("method.") + "=" in message
    assert "input should be" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("w", [1e-30, 1e30])
def test_sizes_of_regions_in_a_program(w):
    with pytest.raises(ValueError, match=r"w must be between 0.0001 and 10000, got .*; it is in units of the default"):
        constrain(build("resnet_digits", width=4), "filters", k=0.2, w=w, report=None)


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "pt"])
@pytest.mark.parametrize("content", [b"", bytes(range(256)), b"[]", b"{"], ids=["empty", "binary", "list", "text"])
def test_files_of_weights(tmp_path, suffix, content):
    file = tmp_path / f"weights.{suffix}"
    file.write_bytes(content)
    words = ["train", "digits-resnet-sgd", *SETS, "--set", f"model.weights.file={file}", "--out", str(tmp_path / "run")]
    message = refused(*words)
    assert f"{file}: is damaged" in message
    assert "weights_only" not in message  # torch advises to run what the file holds
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "form", "file"),
    [
        ("cifar10", "parquet", "train*"),
        ("cifar10", "parquet", "test*"),
        ("cifar10", "python", "data_batch_2"),
        ("cifar10", "binary", "test_batch.bin"),
        ("mnist", "idx", "train-images*"),
        ("mnist", "idx.gz", "t10k-labels*"),
    ],
)
def test_files_of_data_without_content(tmp_path, monkeypatch, name, form, file):
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "cache"))
    write(name, tmp_path / "data", format=form, images=24)
    empty = next(path for path in sorted((tmp_path / "data").rglob(file)) if path.is_file())
    empty.write_bytes(b"")
    words = ["train", "digits-resnet-sgd", *SETS, "--set", f"data.name={name}", "--set", "data.batch_size=4"]
    assert str(empty) in refused(*words, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"))


def test_images_with_nan_are_refused_where_floats_can_be(tmp_path):
    """Files hold whole numbers: a float image is refused as such. Tensors of calibration may hold anything."""
    import numpy as np
    from PIL import Image

    from sparsefw import compress
    from sparsefw.data import DataError, open_part

    write("folder", tmp_path, images=12)
    first = sorted((tmp_path / "train").rglob("*.*"))[0]
    first.unlink()
    Image.fromarray(np.full((8, 8), np.nan, np.float32)).save(first.with_suffix(".tif"))
    with pytest.raises(DataError, match=r"\.tif has pixels of mode F; expected integers of 8 or 16 bits"):
        open_part("folder", tmp_path, "train").load(0)
    images = torch.randn(8, 1, 8, 8)
    images[3, 0, 2, 2] = torch.nan
    with pytest.raises(ValueError, match="calibration contains NaN or inf"):
        compress(build("resnet_digits", width=4), filters=0.5, calibration=[images])
