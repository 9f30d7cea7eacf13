"""Conversion of Arrow columns to batches of tensors, which all files of rows have in common."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from paceline.base.errors import ConfigError
from paceline.base.optional import extra_for
from paceline.runtime.data.batch import batch_type

with extra_for("a dataset of columns"):
    import pyarrow as pa

ARROW_TYPES = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "str": pa.string(),
}


def arrow_schema(columns: Mapping[str, str]) -> dict[str, pa.DataType]:
    """The Arrow types of columns given as ``name -> type name``.

    Raises:
        ConfigError: no column, an unknown type, or a name that cannot be an attribute.
    """
    if not columns:
        raise ConfigError("no columns were named; give at least one as {name: type}")
    for name, type_name in columns.items():
        if type_name not in ARROW_TYPES:
            raise ConfigError(
                f"column {name!r} has the type {type_name!r}; use one of {', '.join(ARROW_TYPES)}"
            )
    batch_type(tuple(columns))
    return {name: ARROW_TYPES[type_name] for name, type_name in columns.items()}


def to_batch(table: pa.Table) -> Any:
    """``Batch`` with one tensor per column (a list for strings); the tensors own their memory.

    An empty value is NaN in a column of floats.

    Raises:
        ValueError: a column of another type has an empty value; the message names it.
    """
    columns = {name: _to_tensor(name, table.column(name)) for name in table.column_names}
    return batch_type(tuple(columns))(**columns)


def _to_tensor(name: str, column: pa.ChunkedArray) -> Any:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.to_pylist()
    if column.null_count and not pa.types.is_floating(column.type):
        raise ValueError(f"column {name!r} of type {column.type} has an empty value")
    if pa.types.is_fixed_size_list(column.type):
        values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return torch.from_numpy(np.array(values)).reshape(len(column), column.type.list_size)
    return torch.from_numpy(np.array(column.to_numpy()))
