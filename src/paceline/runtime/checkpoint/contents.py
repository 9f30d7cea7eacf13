"""Contents of a cut, for people: tensors, tables, optimizer state. Reads headers, not the values.

Called by the command line; the values are put together by `assembly`. Never imports torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.cuts.manifest import CutManifest, look_at
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.assembly import (
    ModelTensor,
    Saves,
    buffers_of,
    is_replica,
    is_sharded,
    merged,
    names_of_table,
    names_of_tensor,
    replica_of,
)
from paceline.wire.schema import ModelSchema, Table

_NOT_OPTIMIZER = ("value", "step", "key", "last_used")
"""Arrays of a server that are no optimizer's; those of keys that wait for a row neither."""


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor, or other entry, of the state dict."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table that servers hold."""

    name: str
    in_state_dict: tuple[str, ...]
    num_rows: int
    grows: bool
    dim: int
    dtype: str
    optimizer: str
    num_bytes: int
    """Bytes of the values."""


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of optimizer state, summed."""

    owner: str
    kind: str
    num_arrays: int
    """Number of arrays: one per parameter, or per server."""
    num_bytes: int


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a whole cut."""

    strategy: str
    tensors: tuple[TensorRow, ...]
    tables: tuple[TableRow, ...]
    states: tuple[StateRow, ...]
    num_schedulers: int = 0


def read_contents(manifest: CutManifest, *places: Path) -> Contents:
    """Return what the files of a cut say that they hold; their checksums are not compared.

    Raises:
        PermanentError: a file is missing, or is no such file; names it.
    """
    saves: dict[str, dict[str, Any]] = {}
    for name in manifest.files:
        try:
            saves[name] = look_at(name, cutfile.unpack, *places)
        except PermanentError as error:
            raise PermanentError(f"{places[-1] / name}: {error}") from error
    if is_replica(saves):
        strategy = "fsdp" if is_sharded(saves) else "allreduce"
        return _of_replica(strategy, replica_of(saves, values=False))
    return _of_servers(manifest.schema, saves)


# ---------------------------------------------------------------------------- groups of workers


def _of_replica(strategy: str, state: Mapping[str, Any]) -> Contents:
    return Contents(
        strategy=strategy,
        tensors=tuple(_row(name, value) for name, value in merged(state["modules"]).items()),
        tables=(),
        states=tuple(
            row
            for k, optimizer in enumerate(state["optimizers"])
            for row in _states_of(f"optimizer {k}", optimizer["state"].values())
        ),
        num_schedulers=len(state["schedulers"]),
    )


def _row(name: str, value: Any) -> TensorRow:
    if not isinstance(value, ModelTensor):
        return TensorRow(name=name, dtype=type(value).__name__, shape=(), num_bytes=0)
    array = value.array
    return TensorRow(name=name, dtype=value.dtype, shape=array.shape, num_bytes=array.nbytes)


def _states_of(owner: str, of_params: Iterable[Mapping[str, Any]]) -> Iterator[StateRow]:
    found: dict[str, list[int]] = {}
    for state in of_params:
        for kind, value in state.items():
            found.setdefault(kind, []).extend(held.array.nbytes for held in _tensors(value))
    for kind, sizes in found.items():
        yield StateRow(owner=owner, kind=kind, num_arrays=len(sizes), num_bytes=sum(sizes))


def _tensors(value: Any) -> Iterator[ModelTensor]:
    match value:
        case ModelTensor():
            yield value
        case dict():
            for one in value.values():
                yield from _tensors(one)
        case list() | tuple():
            for one in value:
                yield from _tensors(one)
        case _:
            pass  # numbers and names, which have no size worth a row


# ---------------------------------------------------------------------------- servers


def _of_servers(schema: ModelSchema, saves: Saves) -> Contents:
    dense = (
        TensorRow(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            num_bytes=int(np.prod(tensor.shape, dtype=int)) * np.dtype(tensor.dtype).itemsize,
        )
        for tensor in schema.dense
        for name in names_of_tensor(tensor)
    )
    buffers = (
        _row(name, ModelTensor(dtype, array))
        for name, (dtype, array) in buffers_of(saves).held.items()
    )
    return Contents(
        strategy="ps",
        tensors=(*dense, *buffers),
        tables=tuple(_table_row(schema, table, saves) for table in schema.tables),
        states=tuple(_server_states(schema, saves)),
    )


def _table_row(schema: ModelSchema, table: Table, saves: Saves) -> TableRow:
    name = f"table.{table.name}.value"
    values = [arrays[name] for arrays in saves.values() if name in arrays]
    return TableRow(
        name=table.name,
        in_state_dict=tuple(name for names in names_of_table(table) for name in names),
        num_rows=sum(len(one) for one in values),
        grows=table.num_rows is None,
        dim=table.dim,
        dtype=table.dtype,
        optimizer=schema.groups[table.group].kind,
        num_bytes=sum(one.nbytes for one in values),
    )


def _server_states(schema: ModelSchema, saves: Saves) -> Iterator[StateRow]:
    """Yield the optimizer state per dtype of dense parameters, and per table."""
    owners = {f"dense.{tensor.dtype}.": f"dense {tensor.dtype}" for tensor in schema.dense}
    owners |= {f"table.{table.name}.": f"table {table.name}" for table in schema.tables}
    for prefix, owner in owners.items():
        found: dict[str, list[int]] = {}
        for arrays in saves.values():
            for name, array in arrays.items():
                kind = name.removeprefix(prefix)
                if name.startswith(prefix) and _is_optimizers(kind):
                    found.setdefault(kind, []).append(array.nbytes)
        for kind, sizes in found.items():
            yield StateRow(owner=owner, kind=kind, num_arrays=len(sizes), num_bytes=sum(sizes))


def _is_optimizers(kind: str) -> bool:
    # A dot: of a table whose name begins with this one's.
    return kind not in _NOT_OPTIMIZER and not kind.startswith("waiting_") and "." not in kind
