"""The one layout of every data set that ``paceline data`` writes, and its writer.

``DIR/train/part-*.parquet`` and ``DIR/test/part-*.parquet``: ``label`` int8, numeric columns
float32, categorical columns int64 codes in [0, cardinality). ``DIR/meta.json`` comes last: a
directory without it is not finished.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paceline.base.errors import ConfigError

ROW_GROUP_ROWS = 65_536
PART_ROWS = 16 * ROW_GROUP_ROWS

Columns = Mapping[str, NDArray[np.generic]]


class DataSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One of train and test; the AUCs are the ceiling of generated data, else None."""

    rows: int
    positives: int
    bayes_auc: float | None = None
    """AUC of the true probabilities against the labels of these rows: no model beats it by luck."""
    expected_bayes_auc: float | None = None
    """AUC in expectation over labels, from the probabilities alone."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``meta.json``."""

    name: str
    source: str
    """Source of the rows, and how they were split, for people."""
    format: str = "parquet"
    label: str = "label"
    numeric: tuple[str, ...]
    categorical: dict[str, int]
    """Column name to cardinality."""
    splits: dict[str, DataSplit]
    rows: int
    positives: int
    seed: int | None = None
    skew: float | None = None
    bayes_auc: float | None = None
    """The ceiling to hold a model against: that of the test rows."""


def new_directory(out: Path) -> Path:
    """Create ``out`` with its splits.

    Raises:
        ConfigError: it exists and holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"--out: {out} exists and is not an empty directory; name another one or remove it"
        )
    for split in ("train", "test"):
        (out / split).mkdir(parents=True, exist_ok=True)
    return out


def write_meta(out: Path, meta: Meta) -> None:
    """Write ``meta.json``: from now on the directory counts as complete."""
    text = msgspec.json.format(msgspec.json.encode(meta), indent=2)
    (out / "meta.json").write_bytes(text + b"\n")


def read_meta(directory: Path) -> Meta:
    """Read what `write_meta` wrote.

    Raises:
        ConfigError: there is none, or it is no such file.
    """
    path = directory / "meta.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Meta)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} holds no finished data set (no meta.json); make one with "
            f"`paceline data make-ctr --rows 500000 --out {directory}`"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not the meta.json of `paceline data`: {error}") from error


class ParquetParts:
    """Writes columns, given in pieces of any length, as parts of whole row groups."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pending: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_part = 0
        self._num_parts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush(at_least=1)
        self._end_part()

    def add(self, columns: Columns) -> None:
        """Append rows; all columns have the same length."""
        self._pending.append(pa.table({name: pa.array(data) for name, data in columns.items()}))
        self._flush(at_least=ROW_GROUP_ROWS)

    def _flush(self, *, at_least: int) -> None:
        while sum(table.num_rows for table in self._pending) >= at_least:
            joined = pa.concat_tables(self._pending)
            self._write(joined.slice(0, ROW_GROUP_ROWS))
            self._pending = [joined.slice(ROW_GROUP_ROWS)]

    def _write(self, group: pa.Table) -> None:
        if self._writer is None:
            path = self._directory / f"part-{self._num_parts:05d}.parquet"
            self._writer = pq.ParquetWriter(path, group.schema)
            self._num_parts += 1
        self._writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        self._rows_in_part += group.num_rows
        if self._rows_in_part >= PART_ROWS:
            self._end_part()

    def _end_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._rows_in_part = None, 0
