"""Artifacts: a compressed model on disk, without pickle.

plan.json            the edits of every layer, the name of the dense architecture, hashes of the other files
model.safetensors    the weights and all buffers; sparse ones as a bit mask and values
                       .probe.*   what the network computes on random inputs, which is checked when it is loaded
certificate.json     parity of masked, removed and exported model, costs, accuracy, bytes of the other files, versions, hardware,
                     hash of the source weights
model.onnx           on request
model.pt2            on request: a torch.export program; torch may unpickle what is in it, `load` does not read it
model.xml            on request: for OpenVINO, with its weights in model.bin
model.pte            on request: for ExecuTorch
model.int8.onnx      on request: the network in int8; for ExecuTorch, model.int8.pte
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.atomic_io import naming
from sparsefw.compression.artifact.export.formats import FORMATS
from sparsefw.compression.artifact.files import (
    ArtifactError,
    check_hashes,
    digest_of,
    hash_tensors,
    read_json,
    read_packed,
    replaced_folder,
    sha256,
    write_json,
    write_tensors,
)
from sparsefw.compression.artifact.packing import OWN, buffers_outside_of_state, first_names, pack, unique_tensors
from sparsefw.compression.artifact.plan import Plan
from sparsefw.compression.artifact.probe import Probe, check, note_of, probe_of
from sparsefw.compression.compressed import Compressed
from sparsefw.compression.cost import Costs
from sparsefw.compression.metric import as_number
from sparsefw.compression.quantised import Quantised
from sparsefw.compression.structure.layers import is_channels_last
from sparsefw.environment import environment
from sparsefw.models import BUILD_ERRORS, MODELS, build_for, build_skeleton, is_rebuilt_by_name, record_of
from sparsefw.scalars import is_int
from sparsefw.text import first_line, listed

ONE_SIZE_FORMAT = "sparsefw-artifact"
SCHEMA = 2
LARGEST_COST = 2**63  # of a certificate that is believed
Constructor = Callable[[], nn.Module]


def save(
    small: Compressed,
    folder: str | os.PathLike[str],
    *,
    onnx: bool = False,
    program: bool = False,
    openvino: bool = False,
    executorch: bool = False,
    int8: Quantised | Sequence[Quantised] = (),
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a compressed model into a folder.

    Args:
        small: The result of compress.
        folder: Where to write. An artifact that is already there is replaced as a whole, or stays whole.
        onnx: Also write model.onnx, checked in onnxruntime.
        program: Also write model.pt2, a torch.export program, which torch may unpickle: load one only where you trust its
            origin.
        openvino: Also write model.xml and model.bin, checked in OpenVINO.
        executorch: Also write model.pte, checked in ExecuTorch.
        int8: Also write what `quantise` made of this network, one result or several.
        metrics: Measured values for the certificate, such as {"dense": 94.1, "compressed": 93.8}.
    """
    if not isinstance(small, Compressed) or small.source is None:
        given = "the result of load" if isinstance(small, Compressed) else f"a {type(small).__name__}"
        raise ValueError(f"save takes the result of compress, not {given}")
    numbers = _numbers(metrics)
    quantised = _of_this_network(small, int8)
    wanted = {"onnx": onnx, "program": program, "openvino": openvino, "executorch": executorch}
    state = state_of(small.model)
    probe = probe_of(small.model, small.example)
    plan = replace(small.plan, untouched=(*small.plan.untouched, *note_of(probe)))
    with replaced_folder(Path(folder).resolve(), is_artifact) as aside:
        certificate = _certificate(small, numbers)
        outputs = probe.outputs(small.model) if isinstance(probe, Probe) else {}
        write_tensors(aside / "model.safetensors", {**pack(unique_tensors(small.model)), **outputs})
        for exported in (FORMATS[option] for option, is_wanted in wanted.items() if is_wanted):
            gap = exported.write(small.model, small.example, aside / exported.file)
            if gap is not None:
                certificate["parity"][exported.runtime] = gap
        for one in quantised:
            with naming(aside / one.file):
                (aside / one.file).write_bytes(one.content)
        certificate["int8"] = {one.backend: one.to_json() for one in quantised}
        certificate["files"] = file_sizes(aside)
        write_json(aside / "certificate.json", certificate)
        header = {
            "format": ONE_SIZE_FORMAT,
            "schema": SCHEMA,
            "model": built_from(small.source),
            "state": state,
            "probe": probe.to_json() if isinstance(probe, Probe) else None,
            "plan": plan.to_json(),
            "sha256": {path.name: sha256(path) for path in sorted(aside.iterdir())},
        }
        write_json(aside / "plan.json", {**header, "digest": digest_of(header)})


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file of networks in the folder of an artifact."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.suffix != ".json"}


def _of_this_network(small: Compressed, int8: Quantised | Sequence[Quantised]) -> Sequence[Quantised]:
    """Return the quantised networks; ValueError unless they were made of this network, each for another runtime."""
    given = (int8,) if isinstance(int8, Quantised) else tuple(int8)
    for one in given:
        if not isinstance(one, Quantised) or one.whole is not small.model:
            raise ValueError("int8= takes the result of quantise(small, ...), made of the network that is saved")
    if len({one.file for one in given}) < len(given):
        raise ValueError("int8= has two networks for one runtime; give one")
    return given


def load_artifact(folder: Path, header: Mapping[str, Any], constructor: Constructor | None) -> Compressed:
    check_hashes(folder, header.get("sha256"), ["model.safetensors", "certificate.json"])
    plan = read_plan(folder, header.get("plan"))
    tensors = read_packed(folder / "model.safetensors")
    model = rebuilt(folder, header.get("model"), constructor, plan, tensors, header.get("state"))
    check(folder, model, header.get("probe"), tensors)
    return loaded(folder, model, plan, read_json(folder / "certificate.json"))


def loaded(folder: Path, model: nn.Module, plan: Plan, certificate: Any) -> Compressed:
    """Return a model read back, with the costs in its certificate."""
    try:
        dense = Costs(**certificate["costs"]["dense"])
        small = Costs(**certificate["costs"]["compressed"])
        if not all(
            is_int(value) and 0 <= value < LARGEST_COST for size in (dense, small) for value in asdict(size).values()
        ):
            raise TypeError
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{folder / 'certificate.json'} states no costs: counts of parameters, MACs and bytes"
        ) from None
    return Compressed(model, plan, dense, small, certificate=certificate)


def is_artifact(folder: Path) -> bool:
    """Return whether everything in the folder is part of an artifact."""
    try:
        header = read_json(folder / "plan.json")
        written = {"plan.json", *header["sha256"]}
        return header["format"].startswith("sparsefw-") and {path.name for path in folder.iterdir()} <= written
    except (ArtifactError, AttributeError, KeyError, TypeError):
        return False


def built_from(model: nn.Module) -> dict[str, Any] | None:
    """Return the record from which the dense architecture is built by name; None for a network of other code."""
    record = getattr(model, "built_from", None) or record_of(model)
    return record if isinstance(record, dict) and is_rebuilt_by_name(str(record.get("name"))) else None


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return the state of a module apart from its tensors."""
    extra = [key for key in model.state_dict() if key.endswith("_extra_state")]
    if extra:
        raise ArtifactError(f"{extra[0]} is not a tensor: such a model cannot be saved without pickle")
    return {
        "frozen": [n for n, p in model.named_parameters() if not p.requires_grad],
        "channels_last": any(is_channels_last(p) for p in model.parameters()),
        "training": model.training,
        "otherwise": [n for n, m in model.named_modules() if m.training != model.training],
        "buffers": list(buffers_outside_of_state(model)),
        "versions": {n: m._version for n, m in model.named_modules() if m._version not in (None, nn.Module._version)},
    }


def read_plan(folder: Path, data: Any) -> Plan:
    try:
        return Plan.from_json(data)
    except ValueError as error:
        raise ArtifactError(f"{folder / 'plan.json'}: {error}") from None


def rebuilt(
    folder: Path, record: Any, constructor: Constructor | None, plan: Plan, tensors: Mapping[str, Tensor], state: Any
) -> nn.Module:
    """Return the network of a record, or of the constructor, in the shapes of the plan, with these tensors and this state.

    Where the tensors do not fit the network that a file names, that is seen before it takes memory.
    """

    def finish(dense: nn.Module) -> nn.Module:
        with fitting(folder):
            plan.reshape(dense)
        fill(folder, dense, tensors, state)
        return dense

    if constructor is not None:
        return finish(_constructed(constructor))
    if record is None:
        raise ArtifactError(
            f"{folder} does not say how its network is built: load(folder, constructor), with a function that builds the dense "
            "one; networks of transformers, and those made by sparsefw.models.build('timm:NAME') and the like, need none"
        )
    with _building(folder):
        skeleton = build_skeleton(record)
    if skeleton is not None:
        finish(skeleton)
        if record["name"] in MODELS:  # all that they compute with are tensors of their state
            return skeleton
    with _building(folder):  # other libraries compute with what they build
        dense = build_for(record, tensors)
    return finish(dense)


def _constructed(constructor: Constructor) -> nn.Module:
    if isinstance(constructor, nn.Module) or not callable(constructor):
        raise ArtifactError(
            f"the constructor must be a function that builds the dense network, not a {type(constructor).__name__}"
        )
    model = constructor()
    if not isinstance(model, nn.Module):
        raise ArtifactError(f"the constructor gave a {type(model).__name__}, not a torch.nn.Module")
    return model


@contextlib.contextmanager
def _building(folder: Path) -> Iterator[None]:
    """A block that builds a network by its record; what goes wrong there becomes an ArtifactError of one line."""
    try:
        yield
    except BUILD_ERRORS as error:
        raise ArtifactError(f"{folder / 'plan.json'}: {first_line(error)}") from None


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """A block that applies a plan to the network of a constructor; what goes wrong there becomes an ArtifactError of one line."""
    try:
        yield
    except ArtifactError:
        raise
    except BUILD_ERRORS as error:
        raise ArtifactError(
            f"{folder / 'plan.json'} does not fit the network that it is applied to, which must be the dense one: "
            f"{first_line(error)}"
        ) from None


def fill(folder: Path, model: nn.Module, tensors: Mapping[str, Tensor], state: Any) -> None:
    """Set all tensors of the model, strictly, and the rest of its state; tied tensors are stored once."""
    tensors = {name: t for name, t in tensors.items() if not name.startswith(OWN)}
    names = first_names(model)
    known = state.get("buffers") if isinstance(state, dict) else None
    registered = [name for name in tensors if name not in names and isinstance(known, list) and name in known]
    missing = sorted(first for name, first in names.items() if not {name, first} & set(tensors))
    surplus = sorted(set(tensors) - set(names) - set(registered))
    if missing or surplus:
        raise ArtifactError(
            f"{folder}: the weights do not fit the network: {listed(missing) or 'none'} missing, {listed(surplus) or 'none'} "
            "too many"
        )
    state = _checked_state(folder, model, state)
    values = {name: tensors[name if name in tensors else first] for name, first in names.items()}
    values |= {name: tensors[name] for name in registered}  # by code other than the constructor
    outside = [*buffers_outside_of_state(model), *registered]
    saved = OrderedDict((name, value) for name, value in values.items() if name not in outside)
    versions = dict.fromkeys(dict(model.named_modules()), nn.Module._version) | dict(state.get("versions", {}))
    saved._metadata = {name: {"version": version} for name, version in versions.items()}  # type: ignore[attr-defined]
    try:
        model.load_state_dict(saved, strict=True, assign=True)
        for name in outside:
            _set_buffer(model, name, values[name])
    except (RuntimeError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder}: the weights do not fit the network: {str(error).splitlines()[-1].strip()}"
        ) from None
    retie(model, {name: first for name, first in names.items() if name not in tensors})
    for name, p in model.named_parameters():
        p.requires_grad_(name not in state.get("frozen", ()))
    if state.get("channels_last"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    training = bool(state.get("training", False))
    model.train(training)
    for name in state.get("otherwise", ()):
        model.get_submodule(name).training = not training


def _set_buffer(model: nn.Module, name: str, value: Tensor) -> None:
    """Set a buffer that is not persistent; register it if the constructor does not."""
    owner, _, local = name.rpartition(".")
    module = model.get_submodule(owner)
    if local in module._buffers:
        module._buffers[local] = value
        return
    if vars(module).get(local, ...) is None:  # a place for it
        delattr(module, local)
    module.register_buffer(local, value, persistent=False)


def _checked_state(folder: Path, model: nn.Module, state: Any) -> Mapping[str, Any]:
    """Return the state in a plan; ArtifactError unless it is that of this network."""
    modules = dict(model.named_modules())
    known: dict[str, Callable[[str], bool]] = {
        "frozen": dict(model.named_parameters()).__contains__,
        "otherwise": modules.__contains__,
        "buffers": lambda name: name.rpartition(".")[0] in modules,
    }
    is_ours = isinstance(state, dict) and all(
        isinstance(state.get(key, []), list)
        and all(isinstance(name, str) and is_known(name) for name in state.get(key, []))
        for key, is_known in known.items()
    )
    versions = state.get("versions", {}) if is_ours else None
    if not isinstance(versions, dict) or not all(
        n in modules and isinstance(version, (int, str)) for n, version in versions.items()
    ):
        raise ArtifactError(f"{folder / 'plan.json'}: its state must list parameters and modules of the network")
    return dict(state)


def retie(model: nn.Module, names: Mapping[str, str]) -> None:
    """Make tensors that were one before loading one again."""
    for name, first in names.items():
        if name != first:
            owner, _, local = name.rpartition(".")
            source_owner, _, source = first.rpartition(".")
            setattr(model.get_submodule(owner), local, getattr(model.get_submodule(source_owner), source))


def _numbers(metrics: Mapping[str, float] | None) -> dict[str, float]:
    numbers = {}
    for name, value in (metrics or {}).items():
        number = as_number(value)
        if number is None or not math.isfinite(number):
            raise ValueError(f"metrics[{name!r}] = {value!r}: must be a finite number")
        numbers[str(name)] = number
    return numbers


def _certificate(small: Compressed, metrics: Mapping[str, float]) -> dict[str, Any]:
    assert small.source is not None
    parity = small.parity if math.isfinite(small.parity) else None  # None: outputs that cannot be compared
    return {
        "parity": {"masked_removed": parity},
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "latency": {"dense": asdict(small.latency.dense), "compressed": asdict(small.latency.compressed)},
        "metrics": dict(metrics),
        "source_sha256": hash_tensors(unique_tensors(small.source)),
        **environment(),
    }
