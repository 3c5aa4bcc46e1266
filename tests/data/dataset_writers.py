"""Write small data sets in the formats in which their authors and Hugging Face distribute them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Sample = tuple[np.ndarray, Any]  # image (height, width, channels), and the class or label map that a reader must return
Written = dict[str, list[Sample]]  # part -> samples, in the order of a reader

WNIDS = ("n01443537", "n01629819", "n01641577", "n01644900")
# Label id -> class, from the definition of the Cityscapes benchmark; everything else is 255.
CITYSCAPES = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13}
CITYSCAPES |= {27: 14, 28: 15, 31: 16, 32: 17, 33: 18}

FORMATS: dict[str, tuple[str, ...]] = {
    "digits": (),  # comes with the package: nothing to write
    "noise": (),
    "mnist": ("idx", "idx.gz"),
    "fashion-mnist": ("idx", "idx.gz"),
    "cifar10": ("python", "python.tar.gz", "binary", "binary.tar.gz", "parquet"),
    "cifar100": ("python", "python.tar.gz", "binary", "binary.tar.gz", "parquet"),
    "tinyimagenet": ("folder", "parquet"),
    "imagenet": ("folder", "parquet", "webdataset"),
    "cityscapes": ("folder",),
    "camvid": ("parquet",),
    "folder": ("folder",),
}
SIZES = {
    **{"mnist": (28, 28), "fashion-mnist": (28, 28), "cifar10": (32, 32), "cifar100": (32, 32)},
    **{"tinyimagenet": (64, 64), "imagenet": (48, 40), "cityscapes": (32, 64), "camvid": (36, 48), "folder": (40, 48)},
}


def write(
    name: str,
    folder: Path,
    *,
    format: str | None = None,
    images: int = 8,
    size: tuple[int, int] | None = None,
) -> Written:
    """Write a small valid copy of a data set: `images` of `size` in every part, of two classes or more."""
    if not FORMATS[name]:
        return {}
    form = format or FORMATS[name][0]
    assert form in FORMATS[name], f"{name} has the formats {FORMATS[name]}"
    folder.mkdir(parents=True, exist_ok=True)
    return _WRITERS[name](name, folder, form, images, size or SIZES[name])


def picture(i: int, label: int, size: tuple[int, int], channels: int = 3) -> np.ndarray:
    """Return a smooth image, which JPEG hardly changes, different for 31 values of i, with a colour for its class."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    planes = [
        20 + 50 * rows // size[0] + 30 * columns // size[1] + (label * 37 * (c + 1)) % 100 + 10 * c + i % 31
        for c in range(channels)
    ]
    return np.stack(planes, axis=2).clip(0, 255).astype(np.uint8)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


def samples(images: int, classes: int, size: tuple[int, int], channels: int = 3, start: int = 0) -> list[Sample]:
    return [(picture(i, i % classes, size, channels), i % classes) for i in range(start, start + images)]


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# --- CIFAR


def python2_pickle(content: dict[str, Any]) -> bytes:
    """Pickle a dictionary as Python 2 and an old numpy did (protocol 2): strings are bytes, modules have their old names."""

    def value(x: Any) -> bytes:
        if isinstance(x, str):
            return b"T" + struct.pack("<I", len(x)) + x.encode()
        if isinstance(x, bytes):
            return b"T" + struct.pack("<I", len(x)) + x
        if isinstance(x, int):
            return b"J" + struct.pack("<i", x)
        if isinstance(x, list):
            return b"](" + b"".join(map(value, x)) + b"e"
        empty = (
            b"cnumpy.core.multiarray\n_reconstruct\n"
            + b"cnumpy\nndarray\n"
            + value(0)
            + b"\x85"
            + value("b")
            + b"\x87R"
        )
        kind = b"cnumpy\ndtype\n" + value("u1") + value(0) + value(1) + b"\x87R"
        kind += b"(" + value(3) + value("|") + b"NNN" + value(-1) + value(-1) + value(0) + b"tb"
        shape = b"(" + b"".join(value(n) for n in x.shape) + b"t"
        return empty + b"(" + value(1) + shape + kind + b"\x89" + value(x.tobytes()) + b"tb"

    return b"\x80\x02}(" + b"".join(value(key) + value(x) for key, x in content.items()) + b"u."


def _cifar(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    assert size == (32, 32), "the archives of CIFAR have no size field"
    classes = int(name.removeprefix("cifar"))
    written = {"train": samples(images, classes, size), "test": samples(images, classes, size, start=images)}
    names = [f"class{i}" for i in range(classes)]
    if form == "parquet":
        label = "label" if classes == 10 else "fine_label"
        for part, shards in (("train", 2), ("test", 1)):
            rows = [{"img": {"bytes": encoded(x), "path": None}, label: y} for x, y in written[part]]
            write_parquet(folder, part, rows, shards, names, label)
        return written
    kind, _, packed = form.partition(".")
    files = _cifar_python(written, classes, names) if kind == "python" else _cifar_binary(written, classes, names)
    inner = {
        "python": ("cifar-10-batches-py", "cifar-100-python"),
        "binary": ("cifar-10-batches-bin", "cifar-100-binary"),
    }
    top = inner[kind][classes == 100]
    if not packed:
        for file, data in files.items():
            put(folder / top / file, data)
        return written
    with tarfile.open(folder / f"cifar-{classes}-{kind}.tar.gz", "w:gz") as tar:
        for file, data in files.items():
            add_to_tar(tar, f"{top}/{file}", data)
    return written


def _batches(written: Written, classes: int) -> dict[str, list[Sample]]:
    if classes == 100:
        return {"train": written["train"], "test": written["test"]}
    bounds = [len(written["train"]) * i // 5 for i in range(6)]
    batches = {f"data_batch_{i + 1}": written["train"][bounds[i] : bounds[i + 1]] for i in range(5)}
    return {**batches, "test_batch": written["test"]}


def _planes(image: np.ndarray) -> bytes:
    """Return all red, then all green, then all blue values."""
    return b"".join(np.ascontiguousarray(image[:, :, c]).tobytes() for c in range(3))


def _cifar_python(written: Written, classes: int, names: list[str]) -> dict[str, bytes]:
    files = {}
    for file, batch in _batches(written, classes).items():
        data = np.frombuffer(b"".join(_planes(x) for x, _ in batch), np.uint8).reshape(-1, 3072)
        fine, coarse = [y for _, y in batch], [y // 5 for _, y in batch]
        labels = {"labels": fine} if classes == 10 else {"coarse_labels": coarse, "fine_labels": fine}
        files[file] = python2_pickle({"batch_label": file, **labels, "data": data})
    key, file = ("label_names", "batches.meta") if classes == 10 else ("fine_label_names", "meta")
    return {**files, file: python2_pickle({"num_vis": 3072, key: names})}


def _cifar_binary(written: Written, classes: int, names: list[str]) -> dict[str, bytes]:
    files = {}
    for file, batch in _batches(written, classes).items():
        heads = [bytes([y]) if classes == 10 else bytes([y // 5, y]) for _, y in batch]
        files[f"{file}.bin"] = b"".join(head + _planes(x) for head, (x, _) in zip(heads, batch, strict=True))
    file = "batches.meta.txt" if classes == 10 else "fine_label_names.txt"
    return {**files, file: ("\n".join(names) + "\n").encode()}


# --- the others


def write_parquet(
    folder: Path,
    part: str,
    rows: list[dict[str, Any]],
    shards: int,
    names: Sequence[str] | None = None,
    label: str = "label",
) -> None:
    """Write shards part-00000-of-0000n.parquet with row groups of three rows."""
    folder.mkdir(parents=True, exist_ok=True)
    features = {label: {"names": list(names), "_type": "ClassLabel"}} if names else {}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    bounds = [len(rows) * i // shards for i in range(shards + 1)]
    for i in range(shards):
        table = pa.Table.from_pylist(rows[bounds[i] : bounds[i + 1]])
        for column in {"img", "image", "annotation"} & set(table.column_names):
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            table = table.set_column(table.column_names.index(column), column, table[column].cast(kind))
        path = folder / f"{part}-{i:05d}-of-{shards:05d}.parquet"
        pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=3)


def add_to_tar(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _idx(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    written = {"train": samples(images, 10, size, 1), "test": samples(images, 10, size, 1, start=images)}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        pixels = np.stack([x[:, :, 0] for x, _ in written[part]])
        labels = np.array([y for _, y in written[part]], np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            data = idx_bytes(array)
            if form == "idx":
                put(folder / f"{prefix}-{kind}-ubyte", data)
            else:
                put(folder / f"{prefix}-{kind}-ubyte.gz", gzip.compress(data))
    return written


def _by_class(samples: list[Sample], classes: int) -> list[Sample]:
    return [sample for label in range(classes) for sample in samples if sample[1] == label]


def _labelled(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    """Write tinyimagenet or imagenet, with four classes."""
    classes = len(WNIDS)
    written = {"train": samples(images, classes, size), "test": samples(images, classes, size, start=images)}
    tiny = name == "tinyimagenet"
    if form == "parquet":
        count = 200 if tiny else 1000
        names = [f"class{i}" for i in range(count)]
        for part, split in (("train", "train"), ("test", "valid" if tiny else "validation")):
            rows = [{"image": {"bytes": encoded(x), "path": None}, "label": y} for x, y in written[part]]
            write_parquet(folder / "data", split, rows, 2, names)
        return written
    if form == "webdataset":
        for part, split in (("train", "train"), ("test", "validation")):
            for shard in range(2):
                with tarfile.open(folder / f"imagenet1k-{split}-{shard:04d}.tar", "w") as tar:
                    for i, (x, y) in list(enumerate(written[part]))[shard * images // 2 : (shard + 1) * images // 2]:
                        add_to_tar(tar, f"{split}/{i:06d}.cls", str(y).encode())
                        add_to_tar(tar, f"{split}/{i:06d}.jpg", encoded(x, "JPEG"))
                        add_to_tar(tar, f"{split}/{i:06d}.json", b"{}")
        return written
    root = folder / "tiny-imagenet-200" if tiny else folder
    for i, (x, y) in enumerate(written["train"]):
        inner = "images/" if tiny else ""
        put(root / "train" / WNIDS[y] / f"{inner}{WNIDS[y]}_{i:04d}.JPEG", encoded(x, "JPEG"))
    written["train"] = _by_class(written["train"], classes)
    if tiny:
        put(
            root / "wnids.txt", "".join(f"{wnid}\n" for wnid in reversed(WNIDS)).encode()
        )  # unordered in the original, too
        for i, (x, _) in enumerate(written["test"]):
            put(root / "val" / "images" / f"val_{i:04d}.JPEG", encoded(x, "JPEG"))
        lines = [f"val_{i:04d}.JPEG\t{WNIDS[y]}\t0\t0\t62\t62\n" for i, (_, y) in enumerate(written["test"])]
        put(root / "val" / "val_annotations.txt", "".join(lines).encode())
        return written
    for i, (x, y) in enumerate(written["test"]):
        put(root / "val" / WNIDS[y] / f"ILSVRC2012_val_{i:08d}.JPEG", encoded(x, "JPEG"))
    written["test"] = _by_class(written["test"], classes)
    return written


def _folder(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    classes = ("ape", "bear", "cat")
    written = {"train": samples(images, 3, size), "test": samples(images, 3, size, start=images)}
    for part in written:
        for i, (x, y) in enumerate(written[part]):
            put(folder / part / classes[y] / f"{i:04d}.png", encoded(x))
        written[part] = _by_class(written[part], 3)
    return written


def _cityscapes(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    written: Written = {}
    for part, split in (("train", "train"), ("test", "val")):
        written[part] = []
        for i in range(images):
            city = ("aachen", "bochum")[i % 2]
            image, ids = picture(i, 0, size), stripes(i, 34, size)
            image[:, :, 0] = ids * 7  # so that there is something to learn
            scene = f"{split}/{city}/{city}_{i:06d}_000019"
            put(folder / "leftImg8bit" / f"{scene}_leftImg8bit.png", encoded(image))
            put(folder / "gtFine" / f"{scene}_gtFine_labelIds.png", encoded(ids))
            put(folder / "gtFine" / f"{scene}_gtFine_color.png", encoded(image))
            labels = np.vectorize(lambda label: CITYSCAPES.get(int(label), 255))(ids)
            written[part].append((image, labels))
        written[part] = written[part][::2] + written[part][1::2]  # city by city
    return written


def _camvid(name: str, folder: Path, form: str, images: int, size: tuple[int, int]) -> Written:
    written: Written = {}
    for part in ("train", "val", "test"):
        rows, written[part] = [], []
        for i in range(images):
            image, ids = picture(i, 0, size), stripes(i, 12, size)
            image[:, :, 0] = ids * 20
            rows.append(
                {"image": {"bytes": encoded(image), "path": None}, "annotation": {"bytes": encoded(ids), "path": None}}
            )
            written[part].append((image, np.where(ids == 11, 255, ids)))
        write_parquet(folder, part, rows, 1)
    return written


def stripes(i: int, ids: int, size: tuple[int, int]) -> np.ndarray:
    """Return label ids in diagonal stripes of four pixels; all ids if the image is large enough."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (((rows + columns) // 4 + i * 5) % ids).astype(np.uint8)


_WRITERS: dict[str, Callable[[str, Path, str, int, tuple[int, int]], Written]] = {
    **{"mnist": _idx, "fashion-mnist": _idx, "cifar10": _cifar, "cifar100": _cifar},
    **{
        "tinyimagenet": _labelled,
        "imagenet": _labelled,
        "cityscapes": _cityscapes,
        "camvid": _camvid,
        "folder": _folder,
    },
}
