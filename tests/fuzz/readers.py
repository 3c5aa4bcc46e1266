"""Every reader of bytes from elsewhere: an example that it reads, and how it refuses what it does not."""

from __future__ import annotations

import functools
import io
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from data.dataset_writers import picture, write
from fuzz.mutations import JSON, JSON_LINES, JSON_RAW, YAML, Form
from runfolder.records import DATA, ENVIRONMENT, FACTS, MODEL, REQUEST, RESULT, change_record
from runfolder.test_round_trip import write_whole_run
from sparsefw import compress, load, save_elastic
from sparsefw import save as save_artifact
from sparsefw.atomic_io import file_digest
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact.files import digest_of
from sparsefw.compression.latency import LatencyTable
from sparsefw.config_base import ConfigError
from sparsefw.data import DATASETS
from sparsefw.data.cityscapes import CLASS_OF_ID
from sparsefw.data.decoding import decode_images
from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes
from sparsefw.data.images import decode_labels, decode_rgb
from sparsefw.data.own_images import read_arrays
from sparsefw.models import build, import_torchvision, open_pretrained
from sparsefw.models.pretrained import load_weights
from sparsefw.report import read_run as read_reported_run
from sparsefw.report.charts import run_charts
from sparsefw.runfolder import RunFolderError, RunPaths, read_run
from sparsefw.runfolder.digest import without_digest
from sparsefw.runfolder.read import (
    read_config,
    read_curve,
    read_data,
    read_environment,
    read_epochs,
    read_facts,
    read_model_header,
    read_model_tensors,
    read_result,
    read_retraining,
)
from sparsefw.runfolder.schema import ConfigRecord, DataChange
from sparsefw.runfolder.write import RunWriter, config_yaml, write_retraining
from sparsefw.sweep.grids import load_grid
from sparsefw.sweep.sweep import Sweep
from sparsefw.train.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from sparsefw.train.diagnosis import epochs_of
from sparsefw.train.folder import RunFolder
from sparsefw.train.recipes import load_recipe
from sweep.sweeps import GRID, begin_sweep, finish_trials


@dataclass(frozen=True)
class Reader:
    """One reader.

    name       of the reader, for tests
    example    writes a whole example into an empty folder, and returns the file whose content is exchanged
    read       reads that file, or whatever it belongs to, and uses the result
    errors     with which it refuses a file
    form       how the content is taken apart; None: bytes only
    seal       makes the hashes right that other files, or the file itself, hold of it
    is_sealed  no other content than the example's may be read, because of a hash
    slow       a case takes more than some milliseconds
    reserves   its library reserves memory that it does not use, as much as a file says
    is_whole   the file is read as a whole, so its size is limited; others are mapped, hashed, or read in parts
    """

    name: str
    example: Callable[[Path], Path]
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]
    form: Form | None = None
    seal: Callable[[Path], None] = lambda file: None
    is_sealed: bool = False
    slow: bool = False
    reserves: bool = False
    is_whole: bool = True

    def is_same(self, content: bytes, whole: bytes) -> bool:
        """Return whether two contents say the same, which is what a hash of a table is of."""
        try:
            return content == whole or (self.form is not None and self.form.load(content) == self.form.load(whole))
        except (ValueError, RecursionError):
            return False

    def __str__(self) -> str:
        return self.name


# --- Configurations


def _recipe(folder: Path) -> Path:
    content = load_recipe("digits-resnet-sizes", seed=3).plain()
    content["model"]["weights"] = {"file": "weights.pt", "into": None, "leave_out": ["fc.*"]}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"about": "a recipe", **content}))
    return file


def _grid(folder: Path) -> Path:
    file = folder / "mine.yaml"
    file.write_text(GRID)
    return file


# --- Run folders


def _run(name: str) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        write_whole_run(folder).data(replace(DATA, changes=(DataChange("another part", 3), DataChange("none", None))))
        write_retraining(folder, REQUEST)
        RunPaths(folder).config.write_text(config_yaml(ConfigRecord(load_recipe("digits-resnet-sizes").plain())))
        RunPaths(folder).error.write_text("Traceback\nValueError: a reason\n")
        return _without_digest(folder / name)

    return example


def _without_digest(file: Path) -> Path:
    """Take out the digest, by which any change would be noticed before anything is read."""
    if file.suffix == ".json":
        change_record(file)
    elif file.suffix == ".jsonl":
        lines = [json.dumps(without_digest(json.loads(line))) for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines) + "\n")
    return file


def _of_run(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A reader of one file of a run, and what reads all of them."""

    def read_all(file: Path) -> None:
        folder = file.parent.parent if file.parent.name == "curves" else file.parent
        try:
            read(folder)
        finally:
            str(read_run(folder).problems)
            run = read_reported_run(folder)
            str([run_charts(run) if run.epochs else None, run])

    return read_all


def _run_reader(name: str, read: Callable[[Path], Any], form: Form | None = JSON) -> Reader:
    return Reader(
        f"run: {name}", _run(name), _of_run(read), (RunFolderError, ConfigError), form, is_whole="model" not in name
    )


def _trained_run(folder: Path) -> Path:
    config = load_recipe("digits-resnet-sgd", ["model.arguments.width=4"])
    writer = RunWriter(folder)
    record = ConfigRecord(config.plain())
    writer.begin(record, FACTS, ENVIRONMENT)
    model = build("resnet_digits", width=4)
    identity = RunFolder(folder).identity
    writer.result(RESULT)
    writer.model(model.state_dict(), replace(MODEL, run=identity))
    _seal_model(RunPaths(folder).model)
    return RunPaths(folder).model


def _seal_model(file: Path) -> None:
    path = RunPaths(file.parent).result
    content = without_digest(json.loads(path.read_text()))
    path.write_text(json.dumps({**content, "model": file_digest(file)}))


def _metadata_form(key: str) -> Form:
    """The JSON that a safetensors file holds beside its tensors; the tensors stay."""

    def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
        size = int.from_bytes(content[:8], "little")
        return json.loads(content[8 : 8 + size]), content[8 + size :]

    def load_tree(content: bytes) -> Any:
        header, tensors = parts(content)
        about = json.loads(header["__metadata__"][key])
        return {"about": about, "header": header, "tensors": tensors.hex()}

    def dump_tree(tree: Any) -> bytes:
        try:
            header = dict(tree["header"])
            header["__metadata__"] = {
                **header["__metadata__"],
                key: JSON.dump(tree["about"]).decode(errors="surrogatepass"),
            }
            tensors = bytes.fromhex(tree["tensors"])
        except (KeyError, TypeError, ValueError, AttributeError):
            header, tensors = tree.get("header") if isinstance(tree, dict) else tree, b""
        text = JSON.dump(header)
        return len(text).to_bytes(8, "little") + text + tensors

    return Form(load_tree, dump_tree, JSON_RAW)


# --- Checkpoints and weights


def _checkpoint(folder: Path) -> Path:
    state = {
        "run": "a",
        "step": 3,
        "model": {"w": torch.ones(2)},
        "sums": torch.zeros(1, 3),
        "rates": (0.1, [True, None]),
    }
    return save_checkpoint(folder / "checkpoints", 3, state)


def _tensor_file(suffix: str) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        file = folder / f"weights{suffix}"
        state = torch.nn.Linear(3, 2).state_dict()
        save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
        return file

    return example


def _old_tensor_file(folder: Path) -> Path:
    file = folder / "weights.pth"
    torch.save(torch.nn.Linear(3, 2).state_dict(), file, _use_new_zipfile_serialization=False)
    return file


def _load_weights(file: Path) -> None:
    load_weights(torch.nn.Linear(3, 2), file)


# --- Artifacts


@functools.cache
def _artifact_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "small"
    small = compress(build("resnet_digits", width=4), filters=0.5, weights=0.7, example=torch.zeros(2, 1, 8, 8))
    save_artifact(small, folder)
    return folder


@functools.cache
def _elastic_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "elastic"
    images = [torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))]
    model = build("resnet_digits", width=4)
    save_elastic(model, folder, "filters", [0.25, 0.5], calibration=images, refit=True, evaluate=lambda m: 1.0)
    return folder


def _artifact(source: Callable[[], Path], name: str) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        shutil.copytree(source(), folder / "artifact")
        return folder / "artifact" / name

    return example


def _seal_artifact(file: Path) -> None:
    """Write the hash of every file into the plan, and that of the plan."""
    path = file.parent / "plan.json"
    try:
        header = json.loads(path.read_text())
        for name in header["sha256"]:
            if (file.parent / name).is_file():
                header["sha256"][name] = file_digest(file.parent / name)
        path.write_text(json.dumps({**header, "digest": digest_of(header)}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        pass  # such a plan has no hashes


def _use_artifact(file: Path) -> None:
    small = load(file.parent)
    _ = str(small.plan) + f"{small.dense.macs / max(small.costs.macs, 1):,} {small.costs.bytes:>14,}"


def _use_elastic(*requests: dict[str, Any]) -> Callable[[Path], None]:
    def use(file: Path) -> None:
        for request in requests:
            small = load(file.parent, **request)
            _ = str(small.plan) + f"{small.costs.bytes:>14,}"

    return use


def _artifact_reader(
    name: str, file: str, source: Callable[[], Path], use: Callable[[Path], None], sealed: bool
) -> Reader:
    form = JSON if file.endswith(".json") else None
    seal = (lambda file: None) if sealed else _seal_artifact
    kind = f"{name}: {file}{', as saved' if sealed else ''}"
    return Reader(
        kind,
        _artifact(source, file),
        use,
        (ArtifactError,),
        form,
        seal,
        sealed,
        slow=True,
        is_whole=file == "plan.json",
    )


# --- Data sets


def _image_file(name: str, make: Callable[[], bytes]) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        file = folder / name
        file.write_bytes(make())
        return file

    return example


def _encoded(kind: str, mode: str = "RGB", **options: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(picture(3, 1, (12, 10))).convert(mode).save(buffer, kind, **options)
        return buffer.getvalue()

    return make


def _decode(file: Path) -> None:
    image = decode_rgb(read_bytes(file), str(file))
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3


def _decode_labels(file: Path) -> None:
    labels = decode_labels(read_bytes(file), str(file), CLASS_OF_ID)
    assert labels.dtype == np.uint8
    assert labels.ndim == 2


def _data_file(name: str, form: str, file: str, **options: Any) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        write(name, folder, format=form, images=6, **options)
        return folder / file

    return example


def _data_reader(name: str, form: str, file: str, levels: int, part: str = "test", **options: Any) -> Reader:
    """A reader of a data set, one of whose files is exchanged; levels: of folders between it and the data set."""

    def read(path: Path) -> None:
        folder = path.parents[levels]
        source = DATASETS[name].open(folder, part, folder / "cache")
        source.fingerprint()
        for i in range(len(source)):
            item = source.load(i)
            assert item.image.dtype == np.uint8
        decode_images(source, None, 0, "skip") if name != "cityscapes" else None

    kind = f"data: {name} {form} {Path(file).name}"
    is_whole = form not in ("parquet", "webdataset")
    return Reader(kind, _data_file(name, form, file, **options), read, (DataError,), is_whole=is_whole)


def _decoded_entry(name: str) -> Callable[[Path], Path]:
    def example(folder: Path) -> Path:
        write("folder", folder / "data", images=6, size=(8, 8))
        source = DATASETS["folder"].open(folder / "data", "train", None)
        decode_images(source, folder / "cache", 0, "error")
        (entry,) = (folder / "cache").iterdir()
        return entry / name

    return example


def _read_decoded(file: Path) -> None:
    """Whatever the cache holds, the images are those of the files."""
    data = file.parents[2] / "data"
    source = DATASETS["folder"].open(data, "train", None)
    decoded = decode_images(source, file.parents[1], 0, "error")
    assert np.array_equal(decoded.images[0].transpose(1, 2, 0), source.load(0).image)


def _tar_index(folder: Path) -> Path:
    write("imagenet", folder, format="webdataset", images=6, size=(8, 8))
    DATASETS["imagenet"].open(folder, "train", folder / "cache")
    (file,) = (folder / "cache").iterdir()
    return file


def _read_indexed(file: Path) -> None:
    source = DATASETS["imagenet"].open(file.parents[1], "train", file.parent)
    for i in range(len(source)):
        source.load(i)


def _latency_table(folder: Path) -> Path:
    file = folder / "table.json"
    file.write_text(json.dumps({"Linear 3 2 True on (4, 3) (3, 1) torch.float32": 0.5, "other": 1}))
    return file


def _read_latency_table(file: Path) -> None:
    table = LatencyTable(torch.device("cpu"))
    table.path = file
    assert all(isinstance(value, float) and value > 0 for value in table._read().values())


# --- Sweeps


@functools.cache
def ledger_bytes() -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    sweep = begin_sweep(folder)
    finish_trials(sweep, "SGD", {"0000": 1.0, "0001": ValueError("no")})
    sweep.storage.engine.dispose()
    with sqlite3.connect(folder / "ledger.db") as database:
        database.execute("VACUUM")
    return (folder / "ledger.db").read_bytes()


def _ledger(folder: Path) -> Path:
    file = folder / "ledger.db"
    file.write_bytes(ledger_bytes())
    return file


_ATTRIBUTES = ("study_user_attributes", "trial_user_attributes")


def _ledger_tree(content: bytes) -> Any:
    database = sqlite3.connect(":memory:")
    database.deserialize(content)
    rows = {
        f"{table} {number}": json.loads(value)
        for table in _ATTRIBUTES
        for number, value in database.execute(f"SELECT rowid, value_json FROM {table}")
    }
    database.close()
    return rows


def ledger_with(tree: Any) -> bytes:
    database = sqlite3.connect(":memory:")
    database.deserialize(ledger_bytes())
    for table in _ATTRIBUTES:
        for (number,) in database.execute(f"SELECT rowid FROM {table}").fetchall():
            key = f"{table} {number}"
            if isinstance(tree, dict) and key in tree:
                text = JSON.dump(tree[key]).decode(errors="replace")
                database.execute(f"UPDATE {table} SET value_json = ? WHERE rowid = ?", (text, number))
            else:
                database.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
    database.commit()
    content = database.serialize()
    database.close()
    return content


LEDGER = Form(_ledger_tree, ledger_with, JSON_RAW)


def _join(file: Path) -> None:
    for leftover in file.parent.glob("ledger.db-*"):
        leftover.unlink()
    shutil.rmtree(file.parent / "joined", ignore_errors=True)
    sweep = Sweep.join(f"sqlite:///{file}", None, file.parent / "joined")
    try:
        for row in sweep.plan.rows:
            sweep.chosen(row)
            sweep.seed_jobs(row)
            for job in sweep.configuration_ledger(row).jobs().values():
                sweep.started_folder(row, job)
    finally:
        sweep.storage.engine.dispose()


def _identity(folder: Path) -> Path:
    sweep = begin_sweep(folder)
    sweep.storage.engine.dispose()
    return sweep.folder / "sweep.json"


def _read_identity(file: Path) -> None:
    sweep = Sweep.join(f"sqlite:///{file.parents[1] / 'ledger.db'}", None, file.parent)
    sweep.storage.engine.dispose()


_RUN_READERS = (
    _run_reader("run.json", read_facts),
    _run_reader("environment.json", read_environment),
    _run_reader("data.json", read_data),
    _run_reader("result.json", read_result),
    _run_reader("curves/filters-removed.json", lambda folder: read_curve(folder, "filters", "removed")),
    _run_reader("spectra.json", read_run),
    _run_reader("retrain.json", read_retraining),
    _run_reader("config.yaml", lambda folder: (read_config(folder), RunFolder(folder).config), YAML),
    _run_reader("metrics.jsonl", lambda folder: epochs_of(read_epochs(folder)), JSON_LINES),
    _run_reader("error.txt", read_run, None),
    _run_reader(
        "model.safetensors",
        lambda folder: (read_model_header(folder), read_model_tensors(folder)),
        _metadata_form("sparsefw"),
    ),
)
_DATA_READERS = (
    _data_reader("mnist", "idx", "t10k-images-idx3-ubyte", 0, size=(5, 4)),
    _data_reader("mnist", "idx", "t10k-labels-idx1-ubyte", 0, size=(5, 4)),
    _data_reader("mnist", "idx.gz", "t10k-images-idx3-ubyte.gz", 0, size=(5, 4)),
    _data_reader("cifar10", "python", "cifar-10-batches-py/test_batch", 1),
    _data_reader("cifar10", "python", "cifar-10-batches-py/batches.meta", 1),
    _data_reader("cifar100", "python.tar.gz", "cifar-100-python.tar.gz", 0),
    _data_reader("cifar10", "binary", "cifar-10-batches-bin/test_batch.bin", 1),
    _data_reader("cifar100", "binary", "cifar-100-binary/fine_label_names.txt", 1),
    _data_reader("cifar100", "parquet", "test-00000-of-00001.parquet", 0),
    _data_reader("camvid", "parquet", "test-00000-of-00001.parquet", 0, size=(8, 8)),
    _data_reader("imagenet", "webdataset", "imagenet1k-validation-0000.tar", 0, size=(8, 8)),
    _data_reader("imagenet", "folder", "val/n01641577/ILSVRC2012_val_00000000.JPEG", 2, size=(8, 8)),
    _data_reader("tinyimagenet", "folder", "tiny-imagenet-200/wnids.txt", 1, size=(8, 8)),
    _data_reader("tinyimagenet", "folder", "tiny-imagenet-200/val/val_annotations.txt", 2, size=(8, 8)),
    _data_reader("cityscapes", "folder", "gtFine/val/aachen/aachen_000000_000019_gtFine_labelIds.png", 3, size=(8, 8)),
    Reader("data: cache, about.json", _decoded_entry("about.json"), _read_decoded, (), JSON),
    Reader("data: cache, images.npy", _decoded_entry("images.npy"), _read_decoded, (), is_whole=False),
    Reader("data: cache, index of tars", _tar_index, _read_indexed, (DataError,), is_whole=False),
    *(
        Reader(
            f"image: {kind} {mode}",
            _image_file(f"image.{kind}", _encoded(kind, mode, **options)),
            _decode,
            (DataError,),
        )
        for kind, mode, options in (
            *(("PNG", "RGB", {}), ("PNG", "P", {}), ("PNG", "I;16", {}), ("JPEG", "RGB", {}), ("JPEG", "CMYK", {})),
            *(("WEBP", "RGB", {}), ("BMP", "RGB", {}), ("GIF", "P", {}), ("PPM", "RGB", {})),
            *(
                ("TIFF", "RGB", {}),
                ("TIFF", "RGB", {"compression": "tiff_lzw"}),
                ("TIFF", "RGB", {"compression": "jpeg"}),
            ),
        )
    ),
    Reader("image: labels", _image_file("labels.png", _encoded("PNG", "L")), _decode_labels, (DataError,)),
)


def _own_inputs(folder: Path) -> Path:
    np.save(folder / "inputs.npy", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    return folder / "inputs.npy"


def _pretrained(name: str) -> Callable[[Path], Path]:
    """Return what writes a folder of transformers, whose file of this name is exchanged."""

    def example(folder: Path) -> Path:
        import_torchvision()  # as this package imports it, which works beside every build of torch
        from transformers import ViTConfig, ViTForImageClassification

        sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4)).save_pretrained(folder)
        return folder / name

    return example


READERS = (
    Reader("inputs: npy", _own_inputs, read_arrays, (DataError,), is_whole=False),
    Reader(
        "pretrained: config.json",
        _pretrained("config.json"),
        lambda file: open_pretrained(file.parent),
        (ValueError,),
        JSON,
        slow=True,
    ),
    Reader("recipe", _recipe, lambda file: load_recipe(str(file)), (ConfigError,), YAML),
    Reader("grid", _grid, lambda file: load_grid(str(file)), (ConfigError,), YAML),
    *_RUN_READERS,
    Reader(
        "run: its network",
        _trained_run,
        lambda file: RunFolder(file.parent).load_model(),
        (RunFolderError, ConfigError),
        _metadata_form("sparsefw"),
        _seal_model,
        is_whole=False,
    ),
    Reader("checkpoint", _checkpoint, load_checkpoint, (ConfigError,), _metadata_form("state"), is_whole=False),
    Reader(
        "checkpoint, as saved",
        _checkpoint,
        lambda file: newest_checkpoint(file.parent)[0] is None and _refuse(file),
        (ConfigError,),
        is_sealed=True,
        is_whole=False,
    ),
    *(
        Reader(
            f"weights: {name}", example, _load_weights, (ValueError,), reserves=name != "safetensors", is_whole=False
        )
        for name, example in (
            ("safetensors", _tensor_file(".safetensors")),
            ("pt", _tensor_file(".pt")),
            ("pth of old", _old_tensor_file),
        )
    ),
    *(
        _artifact_reader("artifact", name, _artifact_folder, _use_artifact, sealed)
        for name in ("plan.json", "certificate.json", "model.safetensors")
        for sealed in (False, True)
    ),
    *(
        _artifact_reader("elastic", name, _elastic_folder, _use_elastic(*requests), sealed)
        for name, *requests in (
            (
                "plan.json",
                {"filters": 0.5},
                {"filters": 0.4},
                {"target": "params=0.6"},
                {"filters": 0.25, "refit": True},
            ),
            ("model.safetensors", {"filters": 0.4}),
            ("refit-0.25.safetensors", {"filters": 0.25, "refit": True}),
        )
        for sealed in (False, True)
    ),
    *_DATA_READERS,
    Reader("latency table", _latency_table, _read_latency_table, (), JSON),
    Reader(
        "sweep: ledger",
        _ledger,
        _join,
        (ConfigError,),
        Form(_ledger_tree, ledger_with, JSON_RAW),
        slow=True,
        is_whole=False,
    ),
    Reader("sweep: identity", _identity, _read_identity, (ConfigError,), JSON, slow=True),
)


def _refuse(file: Path) -> None:
    raise ConfigError(f"{file} is damaged")
