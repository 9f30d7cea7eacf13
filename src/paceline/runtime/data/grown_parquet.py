"""A Parquet file of a stream: its records count when the file is complete."""

import itertools
from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError
from paceline.base.optional import extra_for

with extra_for("a stream of Parquet files"):
    import pyarrow as pa
    import pyarrow.parquet as pq


class GrownParquet:
    """One Parquet file of a stream: there as a whole, or not yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts: list[int] | None = None

    def end(self, finished: bool) -> int | None:
        if self._starts is None:
            try:
                metadata = pq.read_metadata(self._path)
            except (FileNotFoundError, pa.ArrowInvalid) as error:
                if not finished:
                    return None  # still being written: its footer comes last
                raise ConfigError(f"{self._path} cannot be read as Parquet: {error}") from error
            rows = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
            self._starts = [0, *itertools.accumulate(rows)]
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[Any]:
        assert self._starts is not None
        groups = [
            group
            for group, (low, high) in enumerate(itertools.pairwise(self._starts))
            if low < stop and start < high
        ]
        if not groups:
            return []
        with pq.ParquetFile(self._path) as parquet:
            table = parquet.read_row_groups(groups, use_threads=False)
        rows: list[Any] = table.slice(start - self._starts[groups[0]], stop - start).to_pylist()
        return rows
