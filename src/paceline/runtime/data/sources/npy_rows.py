"""Arrays in .npy files as a dataset: rows by number, from memory maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from paceline.base.errors import ConfigError, PermanentError
from paceline.runtime.data.batch import batch_type
from paceline.runtime.data.lines import Paths, expand_paths
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE
from paceline.runtime.data.source import OfFiles
from paceline.runtime.data.walks import IntArray


class _Column(NamedTuple):
    """The files of one column."""

    paths: list[Path]
    sizes: list[int]
    """Bytes of each file."""
    starts: IntArray
    """Number of the first row of each file, and of all rows."""
    shape: tuple[int, ...]
    """Shape of a row."""
    dtype: np.dtype[Any]


class NpyRows(OfFiles):
    """Rows of arrays that ``numpy.save`` wrote; a batch is a ``Batch`` with one tensor per column.

    ``NpyRows(x="x-*.npy", y="y-*.npy")``: the files of a column are joined along their first
    dimension. Columns may be cut into files in different ways, if they have as many rows. Files are
    mapped into memory, so only the rows of a batch are read, and all processes of a machine share
    what they have read.

    Args:
        columns: by name, a path, a pattern with ``*``, or a list of these.

    Raises:
        ConfigError: no column, no such file, one that is no array or whose numbers torch does not
            know, files of a column with different rows, columns of different lengths.
        PermanentError: when reading, a file has another size than when the job began.
    """

    reads_in_thread = True
    """True: no code of the user is called."""
    shard_size_hint = DEFAULT_SHARD_SIZE
    """Neighbouring rows are on the same pages of a file."""

    def __init__(self, **columns: Paths) -> None:
        self._columns = {name: _column_of(name, paths) for name, paths in columns.items()}
        lengths = {name: int(column.starts[-1]) for name, column in self._columns.items()}
        if len({*lengths.values()}) != 1 or not all(lengths.values()):
            raise ConfigError(
                "NpyRows needs at least one column, all with the same number of rows; got "
                + (", ".join(f"{name}: {length}" for name, length in lengths.items()) or "none")
            )
        self._type = batch_type(tuple(columns))
        self._maps: dict[Path, npt.NDArray[Any]] = {}

    @property
    def files(self) -> Sequence[Path]:
        return [path for column in self._columns.values() for path in column.paths]

    def __len__(self) -> int:
        return int(next(iter(self._columns.values())).starts[-1])

    def __getitem__(self, index: int) -> Any:
        batch = self.__getitems__([index])
        return type(batch)(*(column[0] for column in batch))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        rows = np.asarray(indices, np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"record {rows.max()} of {len(self)} in {self.files[0]}")
        return self._type(*(self._read(column, rows) for column in self._columns.values()))

    def _read(self, column: _Column, rows: IntArray) -> torch.Tensor:
        found = np.empty((rows.size, *column.shape), column.dtype)
        files = np.searchsorted(column.starts, rows, side="right") - 1
        for file in np.unique(files).tolist():
            here = np.flatnonzero(files == file)
            mapped = self._map(column.paths[file], column.sizes[file])
            found[here] = mapped[rows[here] - column.starts[file]]
        return torch.from_numpy(found)

    def _map(self, path: Path, size: int) -> npt.NDArray[Any]:
        # To read a map beyond the end of a file that was cut kills the process, without a word.
        now = path.stat().st_size
        if now != size:
            raise PermanentError(
                f"{path} has {now:,} bytes, and had {size:,} when the job began; files that a job "
                "reads must not change"
            )
        if path not in self._maps:
            self._maps[path] = np.lib.format.open_memmap(path, mode="r")
        return self._maps[path]

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._columns = state["_columns"]
        self._type, self._maps = batch_type(tuple(self._columns)), {}


def _column_of(name: str, paths: Paths) -> _Column:
    found = expand_paths(paths)
    headers = [_header(path) for path in found]
    first, dtype = headers[0]
    for path, (shape, its) in zip(found, headers, strict=True):
        if (shape[1:], its) != (first[1:], dtype):
            raise ConfigError(
                f"column {name!r}: {path} has rows of {its} with shape {shape[1:]}, and {found[0]} "
                f"has rows of {dtype} with shape {first[1:]}; give files that are alike"
            )
    starts = np.cumsum([0, *(shape[0] for shape, _ in headers)])
    return _Column(found, [path.stat().st_size for path in found], starts, first[1:], dtype)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape of a file's array, and the dtype of its rows in the order of bytes of this machine.

    Raises:
        ConfigError: it is no array of numbers that torch knows.
    """
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
        dtype = mapped.dtype.newbyteorder("=")
        torch.from_numpy(np.empty(0, dtype))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as an array of numbers: {error}; write it with numpy.save"
        ) from error
    if not mapped.ndim:
        raise ConfigError(f"{path} has a single number; give an array with a row for each record")
    return mapped.shape, dtype
