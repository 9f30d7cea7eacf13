"""A cut put together: the model as the script knows it, by the names of its ``state_dict()``.

For a model without its job. What is read are the arrays of verified files
(`cutfile.read_cut`). Never imports torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.base.errors import PermanentError
from paceline.runtime.data.work import Array
from paceline.runtime.server.scripts import saved_in
from paceline.runtime.state import layout
from paceline.runtime.state.saved import SavedBuffers, buffers_in
from paceline.runtime.state.skeleton import (
    LAYOUT,
    Layout,
    names_of,
    put_together,
    read_layout,
)
from paceline.wire.schema import NUM_BUCKETS, DenseTensor, ModelSchema, Table

Saves = Mapping[str, Mapping[str, Array]]
"""File name -> array name -> array."""


class ModelTensor(NamedTuple):
    """A tensor of the model."""

    dtype: str
    """Torch's name; the array has another dtype where numpy lacks it."""
    array: Array


def is_replica(saves: Saves) -> bool:
    """Tell whether members of a group have made the cut, and not parameter servers."""
    return any(LAYOUT in arrays for arrays in saves.values())


def model_of(schema: ModelSchema, saves: Saves) -> dict[str, Any]:
    """Return what ``job.state_dict()`` would: `ModelTensor`, and whatever else a module keeps.

    The buffers in a cut of servers are those of the worker that was furthest.

    Raises:
        PermanentError: the cut lacks a part of the model.
    """
    if is_replica(saves):
        return merged(replica_of(saves)["modules"])
    buffers = buffers_of(saves)
    held = {name: ModelTensor(dtype, array) for name, (dtype, array) in buffers.held.items()}
    return _served(schema, tuple(saves.values())) | held


def buffers_of(saves: Saves) -> SavedBuffers:
    """The buffers that servers keep with the script's newest state; of members: none.

    Raises:
        PermanentError: the state is damaged.
    """
    kept = [one for arrays in saves.values() for one in saved_in(arrays)]
    if not kept:
        return SavedBuffers({})
    return buffers_in(max(kept, key=lambda one: (one.first, one.last)).state)


def merged(modules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of several modules as one; of one it is that."""
    if len(modules) == 1:
        return dict(modules[0])
    return {f"{k}.{name}": one for k, state in enumerate(modules) for name, one in state.items()}


def replica_of(saves: Saves, *, values: bool = True) -> dict[str, Any]:
    """Return all that members held: modules, optimizers, and so on; tensors as `ModelTensor`.

    Of shards tensors are put together (without ``values`` no more than their shapes are true); what
    is not divided is the first member's.

    Raises:
        PermanentError: it is no state, or a shard of it is missing.
    """
    parts = sorted(_parts(saves), key=lambda part: part[0].part)
    (form, arrays), size = parts[0], parts[0][0].part[1]
    if [one.part for one, _ in parts] != [(number, size) for number in range(size)]:
        raise PermanentError(f"the cut has {len(parts)} of {size} shards of the state")
    names = names_of(form.skeleton)
    missing = [name for name in names if any(name not in held for _, held in parts)]
    if missing or len(names) != len(form.tensors):
        raise PermanentError(f"the cut lacks tensors {missing[:3]} of the state that it describes")
    held = []
    for number, (name, (dtype, shape)) in enumerate(zip(names, form.tensors, strict=True)):
        rows = form.rows[number] if form.rows else None
        if rows is None or size == 1:
            held.append(ModelTensor(dtype, arrays[name].reshape(shape)))
        elif values:
            whole = np.concatenate([of_part[name] for _, of_part in parts])
            held.append(ModelTensor(dtype, whole.reshape((rows, *shape[1:]))))
        else:
            none = np.zeros((), arrays[name].dtype)
            held.append(ModelTensor(dtype, np.broadcast_to(none, (rows, *shape[1:]))))
    state: dict[str, Any] = put_together(form.skeleton, held)
    return state


def is_sharded(saves: Saves) -> bool:
    """Tell whether each member has made a shard of the cut."""
    return any(form.rows for form, _ in _parts(saves))


def _parts(saves: Saves) -> list[tuple[Layout, Mapping[str, Array]]]:
    of_members = (arrays for arrays in saves.values() if LAYOUT in arrays)
    return [(read_layout(arrays[LAYOUT].tobytes()), arrays) for arrays in of_members]


# ---------------------------------------------------------------------------- names


def names_of_tensor(tensor: DenseTensor) -> tuple[str, ...]:
    """Return all names of a dense parameter in the state dict."""
    return tensor.names or (tensor.name,)


def names_of_table(table: Table) -> list[tuple[str, ...]]:
    """Return the state dict's names for the parts of a table, for each module that reads it."""
    parts = ("weight",) if table.num_rows is not None else ("keys", "rows")
    return [
        tuple(f"{module}.{part}" if module else part for part in parts)
        for module in table.modules or (table.name,)
    ]


# ---------------------------------------------------------------------------- servers' shares


def _served(schema: ModelSchema, saves: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    held = [[int(bucket) for bucket in arrays["buckets"]] for arrays in saves]
    missing = set(range(NUM_BUCKETS)).difference(*held)
    if missing:
        raise PermanentError(f"the cut lacks buckets {sorted(missing)} of the model")
    flat = {
        dtype: _flat(schema, dtype, size, zip(saves, held, strict=True))
        for dtype, size in layout.dense_sizes(schema).items()
    }
    model: dict[str, Any] = {}
    # Each name has memory of its own: safetensors refuses tensors that share it.
    for tensor in schema.dense:
        stop = tensor.offset + int(np.prod(tensor.shape, dtype=np.int64))
        values = flat[tensor.dtype][tensor.offset : stop].reshape(tensor.shape)
        for name in names_of_tensor(tensor):
            model[name] = ModelTensor(tensor.dtype, values.copy())
    for table in schema.tables:
        parts = _fixed(table, saves, held) if table.num_rows is not None else _dynamic(table, saves)
        first, *others = names_of_table(table)
        model |= dict(zip(first, parts, strict=True))
        for names in others:
            for name, part in zip(names, parts, strict=True):
                model[name] = ModelTensor(part.dtype, part.array.copy())
    return model


def _flat(
    schema: ModelSchema,
    dtype: str,
    size: int,
    saves: Iterable[tuple[Mapping[str, Array], Sequence[int]]],
) -> Array:
    """The flat vector of a dtype."""
    whole = np.empty(size, dtype)
    everything = range(NUM_BUCKETS)
    for arrays, buckets in saves:
        values = arrays[f"dense.{dtype}.value"]
        pieces = layout.dense_overlaps(size, schema.block_elems, everything, buckets)
        for target, source in pieces:
            whole[target] = values[source]
    return whole


def _fixed(
    table: Table, saves: Sequence[Mapping[str, Array]], held: Sequence[Sequence[int]]
) -> tuple[ModelTensor]:
    assert table.num_rows is not None
    rows = np.empty((table.num_rows, table.dim), table.dtype)
    sizes = layout.bucket_rows(table.num_rows)
    for arrays, buckets in zip(saves, held, strict=True):
        values = arrays[f"table.{table.name}.value"]
        offsets = layout.bucket_offsets(table.num_rows, buckets)
        for bucket in buckets:
            start = offsets[bucket]
            rows[bucket::NUM_BUCKETS] = values[start : start + sizes[bucket]]
    return (ModelTensor(table.dtype, rows),)


def _dynamic(table: Table, saves: Sequence[Mapping[str, Array]]) -> tuple[ModelTensor, ModelTensor]:
    """Keys in ascending order, and their rows; a model's first cut has none."""
    prefix = f"table.{table.name}"
    shares = [arrays for arrays in saves if f"{prefix}.key" in arrays]
    keys = np.concatenate([np.empty(0, np.int64), *(one[f"{prefix}.key"] for one in shares)])
    none = np.empty((0, table.dim), table.dtype)
    rows = np.concatenate([none, *(one[f"{prefix}.value"] for one in shares)])
    order = np.argsort(keys, kind="stable")
    return ModelTensor("int64", keys[order]), ModelTensor(table.dtype, rows[order])
