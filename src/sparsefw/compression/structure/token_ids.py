"""Token ids: an example in which all are equal would hide differences, as attention then looks the same whatever it weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.channels import tensors_of
from sparsefw.compression.structure.layers import call, call_on_copy, cloned, evaluating, hooks
from sparsefw.text import listed


class Varied(NamedTuple):
    """An example whose token ids differ, and a note on what of it still hides differences; None if nothing does."""

    example: Any
    note: Reason | None


def with_varied_ids(model: nn.Module, example: Any) -> Varied:
    """Return the example with random ids where all of an item are equal, if the network runs on them with finite outputs.

    Ids are whole numbers that an embedding reads as they are given; masks, lengths and labels stay.
    """
    candidates = [t for t in tree_leaves(example) if _is_whole(t)]
    counts = _embeddings_read(model, example) if any(_hides(t) for t in candidates) else {}
    equal = {place: count for place, count in counts.items() if _is_constant(_leaf(example, place))}
    varied = _drawn(example, equal)
    runs = bool(equal) and _runs(model, varied)
    hidden = [] if runs else [f"token ids {_name(example, place)} are all equal" for place in equal]
    for place, leaf in enumerate(tree_leaves(example)):
        if place in counts and leaf.ndim > 1 and leaf.shape[-1] == 1:
            hidden.append(f"token ids {_name(example, place)} are one per item")
        elif _is_empty_mask(leaf):
            hidden.append(f"mask {_name(example, place)} is False everywhere")
    note = because(Cause.EXAMPLE_HIDES, what=listed(hidden)) if hidden else None
    return Varied(varied if runs else example, note)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64) and value.layout is torch.strided


def _hides(ids: Tensor) -> bool:
    return _is_constant(ids) or (ids.ndim > 1 and ids.shape[-1] == 1)


def _is_constant(ids: Tensor) -> bool:
    """Return whether the ids of every item, along the last axis, are equal; a single one is no choice."""
    return ids.ndim > 0 and ids.shape[-1] > 1 and ids.numel() > 0 and bool((ids == ids[..., :1]).all())


def _is_empty_mask(value: Any) -> bool:
    is_mask = isinstance(value, Tensor) and value.dtype == torch.bool and value.layout is torch.strided
    return is_mask and value.numel() > 1 and not bool(value.any())


def _embeddings_read(model: nn.Module, example: Any) -> dict[int, int]:
    """Map the places of ids in the example to the length of the shortest embedding that reads them."""
    inputs = cloned(example)
    places = {
        leaf.untyped_storage().data_ptr(): place for place, leaf in enumerate(tree_leaves(inputs)) if _is_whole(leaf)
    }
    counts: dict[int, int] = {}

    def make(_: str, module: nn.Module) -> Sequence[Any]:
        def note(embedding: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            for ids in (*args, *kwargs.values()):
                place = places.get(ids.untyped_storage().data_ptr()) if _is_whole(ids) else None
                if place is not None:
                    length = int(embedding.num_embeddings)  # type: ignore[arg-type]
                    counts[place] = min(length, counts.get(place, length))

        is_embedding = isinstance(module, nn.Embedding)
        return (module.register_forward_pre_hook(note, with_kwargs=True),) if is_embedding else ()

    try:
        with evaluating(model), hooks(model, make):
            call(model, inputs)
    except Exception:  # whoever runs the model next says in one line what is wrong
        return {}
    return counts


def _drawn(example: Any, counts: Mapping[int, int]) -> Any:
    """Return the example with random whole numbers at these places, each below its count."""
    generator = torch.Generator().manual_seed(0)
    leaves, form = tree_flatten(example)
    for place, count in counts.items():
        ids = leaves[place]
        leaves[place] = torch.randint(count, ids.shape, generator=generator).to(ids)
    return tree_unflatten(leaves, form)


def _runs(model: nn.Module, example: Any) -> bool:
    """Return whether the network runs on an example with finite outputs."""
    try:
        with evaluating(model):
            outputs = tensors_of(call_on_copy(model, example))
    except Exception:  # of the model's own code
        return False
    return all(bool(t.isfinite().all()) for t in outputs)


def _leaf(example: Any, place: int) -> Tensor:
    leaf: Tensor = tree_leaves(example)[place]
    return leaf


def _name(example: Any, place: int) -> str:
    """Return how the user finds a tensor in the example."""
    return f"example{keystr(tree_flatten_with_path(example)[0][place][0])}"
