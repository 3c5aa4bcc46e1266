"""Artifacts: a small model on disk without pickle.

plan.json            what was done to which layer, the name of the dense architecture, hashes of the files beside it
model.safetensors    the weights; sparse ones as a bit mask and values
certificate.json     parity of masked, removed and ONNX model, costs, accuracy, versions, hardware, hash of the source weights
model.onnx           on request
model.pt2            on request: a torch.export program
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.artifact.export import export_onnx, export_program
from sparsefw.compression.artifact.files import (
    ArtifactError,
    check_hashes,
    digest_of,
    hash_tensors,
    read_json,
    read_tensors,
    replaced_folder,
    sha256,
    write_json,
    write_tensors,
)
from sparsefw.compression.artifact.packing import pack, unique_tensors, unpack
from sparsefw.compression.artifact.plan import Plan
from sparsefw.compression.compressing import Compressed
from sparsefw.compression.cost import Costs
from sparsefw.compression.latency import measure, repeated
from sparsefw.compression.recovery.calibration import run
from sparsefw.compression.settings import as_number
from sparsefw.compression.structure.layers import evaluating, is_channels_last
from sparsefw.environment import environment
from sparsefw.models import build_registered
from sparsefw.text import first_line

FORMAT, SCHEMA = "sparsefw-artifact", 1
Constructor = Callable[[], nn.Module]


def save(
    small: Compressed,
    folder: str | os.PathLike[str],
    *,
    onnx: bool = False,
    program: bool = False,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write a compressed model; an artifact that is already there is replaced as a whole, or stays whole.

    metrics       what was measured, such as {"dense": 94.1, "compressed": 93.8}; goes into the certificate
    onnx, program also write model.onnx (checked in onnxruntime), model.pt2
    """
    if not isinstance(small, Compressed) or small.source is None:
        given = "what load returns" if isinstance(small, Compressed) else f"a {type(small).__name__}"
        raise ValueError(f"save takes what compress returns, not {given}")
    numbers, state = _numbers(metrics), state_of(small.model)
    with replaced_folder(Path(folder).resolve(), is_artifact) as aside:
        certificate = _certificate(small, numbers)
        write_tensors(aside / "model.safetensors", pack(unique_tensors(small.model)))
        if onnx:
            certificate["parity"]["onnxruntime"] = export_onnx(small.model, small.example, aside / "model.onnx")
        if program:
            export_program(small.model, small.example, aside / "model.pt2")
        write_json(aside / "certificate.json", certificate)
        plan = {"format": FORMAT, "schema": SCHEMA, "model": built_from(small.source), "state": state}
        hashes = {path.name: sha256(path) for path in sorted(aside.iterdir())}
        header = {**plan, "plan": small.plan.to_json(), "sha256": hashes}
        write_json(aside / "plan.json", {**header, "digest": digest_of(header)})


def load_artifact(folder: Path, header: Mapping[str, Any], constructor: Constructor | None) -> Compressed:
    check_hashes(folder, header.get("sha256"), ["model.safetensors", "certificate.json"])
    plan = read_plan(folder, header.get("plan"))
    model = dense_architecture(folder, header.get("model"), constructor)
    reshape(folder, plan, model)
    fill(folder, model, unpack(read_tensors(folder / "model.safetensors")), header.get("state"))
    return loaded(folder, model, plan, read_json(folder / "certificate.json"))


def loaded(folder: Path, model: nn.Module, plan: Plan, certificate: Any) -> Compressed:
    """A model read back, with the costs that its certificate states."""
    try:
        dense, small = (Costs(**certificate["costs"][which]) for which in ("dense", "compressed"))
    except (KeyError, TypeError):
        raise ArtifactError(f"{folder}: its certificate states no costs") from None
    return Compressed(model, plan, dense, small, certificate=certificate)


def is_artifact(folder: Path) -> bool:
    """Whether everything in the folder was written here."""
    try:
        header = read_json(folder / "plan.json")
        written = {"plan.json", *header["sha256"]}
        return header["format"].startswith("sparsefw-") and {path.name for path in folder.iterdir()} <= written
    except (ArtifactError, AttributeError, KeyError, TypeError):
        return False


def built_from(model: nn.Module) -> dict[str, Any] | None:
    """The registry's name for the dense architecture; None for a network of the user's own."""
    record = getattr(model, "built_from", None)
    return record if isinstance(record, dict) and ":" not in str(record.get("name")) else None


def state_of(model: nn.Module) -> dict[str, Any]:
    """What a module is besides its tensors."""
    extra = [key for key in model.state_dict() if key.endswith("_extra_state")]
    if extra:
        raise ArtifactError(f"{extra[0]} is no tensor: such a model cannot be saved without pickle")
    return {
        "frozen": [n for n, p in model.named_parameters() if not p.requires_grad],
        "channels_last": any(is_channels_last(p) for p in model.parameters()),
        "training": model.training,
        "otherwise": [n for n, m in model.named_modules() if m.training != model.training],
    }


def read_plan(folder: Path, data: Any) -> Plan:
    try:
        return Plan.from_json(data)
    except ValueError as error:
        raise ArtifactError(f"{folder / 'plan.json'}: {error}") from None


def dense_architecture(folder: Path, record: Any, constructor: Constructor | None) -> nn.Module:
    """The dense network, without weights where it comes from the registry. Nothing else is ever resolved from a file."""
    if constructor is not None:
        if isinstance(constructor, nn.Module) or not callable(constructor):
            raise ArtifactError(
                f"the constructor must be a function that builds the dense network, not a {type(constructor).__name__}"
            )
        model = constructor()
        if not isinstance(model, nn.Module):
            raise ArtifactError(f"the constructor gave a {type(model).__name__}, not a torch.nn.Module")
        return model
    if record is None:
        raise ArtifactError(
            f"{folder} holds a network that is not in this package's registry: "
            "load(folder, constructor), with a function that builds the dense one"
        )
    try:
        with torch.device("meta"):
            return build_registered(record)
    except ValueError as error:
        raise ArtifactError(f"{folder / 'plan.json'}: {error}") from None


def reshape(folder: Path, plan: Plan, model: nn.Module) -> None:
    try:
        plan.reshape(model)
    except (AttributeError, IndexError, RuntimeError, AssertionError, KeyError, TypeError, StopIteration) as error:
        raise ArtifactError(
            f"{folder / 'plan.json'} does not fit the network that it is applied to, which must be the dense one: "
            f"{first_line(error)}"
        ) from None


def fill(folder: Path, model: nn.Module, tensors: dict[str, Tensor], state: Any) -> None:
    """All tensors of the model from the file, strictly; tied tensors are stored once."""
    names = unique_names(model)
    missing = sorted(set(names.values()) - set(tensors))
    surplus = sorted(set(tensors) - set(names.values()))
    if missing or surplus:
        raise ArtifactError(
            f"{folder}: the weights do not fit the network: {_some(missing)} missing, {_some(surplus)} too many"
        )
    try:
        model.load_state_dict({name: tensors[first] for name, first in names.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise ArtifactError(
            f"{folder}: the weights do not fit the network: {str(error).splitlines()[-1].strip()}"
        ) from None
    retie(model, names)
    state = state if isinstance(state, dict) else {}
    frozen = set(state.get("frozen", ()))
    for name, p in model.named_parameters():
        p.requires_grad_(name not in frozen)
    if state.get("channels_last"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    training = bool(state.get("training", False))
    model.train(training)
    for name in state.get("otherwise", ()):
        model.get_submodule(name).training = not training


def unique_names(model: nn.Module) -> dict[str, str]:
    """Every name in the state dict -> the first name of the same tensor."""
    first: dict[Tensor, str] = {}
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(tensors[name], name) if name in tensors else name for name in model.state_dict()}


def retie(model: nn.Module, names: Mapping[str, str]) -> None:
    """Tensors that were one before loading are one again."""
    for name, first in names.items():
        if name != first:
            owner, _, local = name.rpartition(".")
            source_owner, _, source = first.rpartition(".")
            setattr(model.get_submodule(owner), local, getattr(model.get_submodule(source_owner), source))


def _some(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _numbers(metrics: Mapping[str, float] | None) -> dict[str, float]:
    numbers = {}
    for name, value in (metrics or {}).items():
        number = as_number(value)
        if number is None or not math.isfinite(number):
            raise ValueError(f"metrics[{name!r}] = {value!r}: must be a finite number")
        numbers[str(name)] = number
    return numbers


def _single(model: nn.Module, example: Any) -> Any:
    """One item of the example; the example itself where its first axis is not a batch, and the model refuses to be given less."""
    one = repeated(example, 1)
    try:
        with evaluating(model):
            run(model, one)
    except ValueError:
        return example
    return one


def _certificate(small: Compressed, metrics: Mapping[str, float]) -> dict[str, Any]:
    single = _single(small.model, small.example)
    assert small.source is not None
    return {
        "parity": {
            "masked_removed": small.parity if math.isfinite(small.parity) else None
        },  # None: outputs that cannot be compared
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "latency": {
            "dense": asdict(measure(copy.deepcopy(small.source), single, seconds=0.3)),
            "compressed": asdict(measure(small.model, single, seconds=0.3)),
        },
        "metrics": dict(metrics),
        "source_sha256": hash_tensors(unique_tensors(small.source)),
        **environment(),
    }
