"""Parquet files as a dataset: rows by number, decoded one row group at a time."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.base.errors import ConfigError
from paceline.base.optional import extra_for
from paceline.runtime.data.batch import batch_type
from paceline.runtime.data.lines import Paths, expand_paths
from paceline.runtime.data.source import OfFiles

with extra_for("`pl.ParquetRows`"):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from paceline.runtime.data.columns import to_batch

_CACHED_ROW_GROUPS = 4


class ParquetRows(OfFiles):
    """Each row of the files is a record; a batch is a ``Batch`` with one tensor per column.

    A row group is decoded as a whole and the last four are kept. So shards should not be much
    shorter than row groups: ``shard_size_hint`` rows is a good shard size.

    Args:
        paths: a path, a pattern with ``*``, or a list of these.
        columns: the columns to read; None for all.

    Raises:
        ConfigError: no such file or column, files with different columns, a column that is
            neither numeric, boolean, string nor a list of fixed length; when reading, an empty
            value in a column that is not of floats.
    """

    reads_in_thread = True
    """True: no code of the user is called."""

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        self.paths = expand_paths(paths)
        self._columns = list(columns) if columns is not None else None
        schemas, starts = [], [0]
        self._groups: list[tuple[int, int]] = []
        for number, path in enumerate(self.paths):
            metadata = _read_metadata(path)
            schemas.append(self._select(path, metadata.schema.to_arrow_schema()))
            for group in range(metadata.num_row_groups):
                self._groups.append((number, group))
                starts.append(starts[-1] + metadata.row_group(group).num_rows)
        self._starts = np.array(starts, np.int64)
        _check_equal(self.paths, schemas)
        self._columns = schemas[0].names
        self._reset()

    def _reset(self) -> None:
        self._row_group = lru_cache(_CACHED_ROW_GROUPS)(self._read_row_group)

    @property
    def shard_size_hint(self) -> int:
        """Rows in the longest row group."""
        return int(np.diff(self._starts, prepend=0).max()) or 1

    @property
    def files(self) -> Sequence[Path]:
        return self.paths

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        batch = self.__getitems__([index])
        return type(batch)(*(column[0] for column in batch))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        rows = np.asarray(indices, np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"record {rows.max()} of {len(self)} in {self.paths[0]}")
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        parts, places = [], []
        for group in np.unique(groups).tolist():
            here = np.flatnonzero(groups == group)
            parts.append(self._row_group(group).take(rows[here] - self._starts[group]))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        try:
            return to_batch(pa.concat_tables(parts).take(back))
        except ValueError as error:
            names = ", ".join(str(self.paths[self._groups[g][0]]) for g in np.unique(groups))
            raise ConfigError(f"{names}, records {rows.min()} to {rows.max()}: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_row_group"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _read_row_group(self, number: int) -> pa.Table:
        file, group = self._groups[number]
        with pq.ParquetFile(self.paths[file]) as parquet:
            return parquet.read_row_group(group, columns=self._columns, use_threads=False)

    def _select(self, path: Path, schema: pa.Schema) -> pa.Schema:
        names = schema.names if self._columns is None else self._columns
        missing = [name for name in names if name not in schema.names]
        if missing or not names:
            raise ConfigError(
                f"{path}: no column {missing[0]!r}; it has {', '.join(schema.names)}"
                if missing
                else f"{path}: no columns were named; give at least one"
            )
        batch_type(tuple(names))
        fields = [schema.field(name) for name in names]
        for field in fields:
            if not _is_usable(field.type):
                raise ConfigError(
                    f"{path}: column {field.name!r} of type {field.type} cannot become a tensor; "
                    "name the columns to read, or convert it"
                )
        return pa.schema([pa.field(field.name, field.type) for field in fields])


def _read_metadata(path: Path) -> Any:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error


def _check_equal(paths: Sequence[Path], schemas: Sequence[pa.Schema]) -> None:
    for path, schema in zip(paths, schemas, strict=True):
        if schema != schemas[0]:
            raise ConfigError(
                f"{path} has other columns than {paths[0]}: got {_shown(schema)}, "
                f"expected {_shown(schemas[0])}"
            )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _is_usable(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    checks = (
        pa.types.is_floating,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
    )
    return any(check(kind) for check in checks)
