"""Text files as datasets of rows: lines of delimited columns."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError
from paceline.base.optional import extra_for
from paceline.runtime.data.lines import LineFiles, Paths
from paceline.runtime.data.sources.text_lines import LineRecords

with extra_for("`pl.CsvRows`"):
    import pyarrow as pa
    import pyarrow.csv

    from paceline.runtime.data.columns import arrow_schema, to_batch


class CsvRows(LineRecords):
    """Each line of the files is a row; a batch is a ``Batch`` with one tensor per column.

    Fields may be quoted, but a row is always one line. An empty field is NaN in a column of
    floats and an error in a column of integers.

    Args:
        paths: a path, a pattern with ``*``, or a list of these.
        columns: name -> float32, float64, int32, int64, bool or str. With a header these may be
            some of the file's columns, in any order; without one, all of them in the file's order.
        delimiter: one character.
        header: whether the first line of each file names the columns.
        index_dir: where the counts of lines are kept; by default ``$PACELINE_HOME/index``.

    Raises:
        ConfigError: no such file or column; when reading, a row that does not fit (the message
            names file, line, what was expected and what was found).
    """

    reads_in_thread = True
    """True: no code of the user is called."""

    def __init__(
        self,
        paths: Paths,
        columns: Mapping[str, str],
        *,
        delimiter: str = ",",
        header: bool = True,
        index_dir: Path | None = None,
    ) -> None:
        self._types = arrow_schema(columns)
        if len(delimiter.encode()) != 1:
            raise ConfigError(f"the delimiter is {delimiter!r}; give one ASCII character")
        super().__init__(LineFiles(paths, num_header_lines=int(header), index_dir=index_dir))
        self._delimiter = delimiter
        self._names = self._read_header() if header else list(columns)

    def __getitem__(self, index: int) -> Any:
        batch = self.__getitems__([index])
        return type(batch)(*(column[0] for column in batch))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        lines = self._lines.read(indices)
        try:
            return self._parse(lines)
        except (pa.ArrowInvalid, ValueError) as error:
            raise self._explain(indices, lines, error) from error

    def first_rows(self, count: int) -> Any:
        """A batch of the first rows, at most ``count``: at once, however long the files are."""
        known, _ = self._lines.wait_known(count)
        return self.__getitems__(range(min(count, known)))

    def _parse(self, lines: Sequence[bytes]) -> Any:
        data = b"\n".join(lines) + b"\n"
        table = pa.csv.read_csv(
            pa.py_buffer(data),
            pa.csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(data) + 1
            ),
            pa.csv.ParseOptions(delimiter=self._delimiter, ignore_empty_lines=False),
            pa.csv.ConvertOptions(column_types=self._types, include_columns=list(self._types)),
        )
        if table.num_rows != len(lines):
            raise ValueError('a quote (") is opened and not closed')
        return to_batch(table)

    def _explain(
        self, indices: Sequence[int], lines: Sequence[bytes], error: Exception
    ) -> ConfigError:
        """The error of the first bad row; the parser's own does not say where it was."""
        for index, line in zip(indices, lines, strict=True):
            num_fields = len(self._fields(line))
            if num_fields != len(self._names):
                return ConfigError(
                    f"{self._lines.where(index)}: {num_fields} columns, expected "
                    f"{len(self._names)} ({', '.join(self._names)}): {_shortened(line)}"
                )
            try:
                self._parse([line])
            except (pa.ArrowInvalid, ValueError) as found:
                return ConfigError(f"{self._lines.where(index)}: {found}: {_shortened(line)}")
        # Each row is fine alone: an open quote has swallowed the row after it.
        odd = [i for i, line in zip(indices, lines, strict=True) if line.count(b'"') % 2]
        return ConfigError(f"{self._lines.where((odd or list(indices))[0])}: {error}")

    def _fields(self, line: bytes) -> list[str]:
        text = line.decode("utf-8-sig", errors="replace")
        return next(csv.reader([text], delimiter=self._delimiter), [])

    def _read_header(self) -> list[str]:
        expected: list[str] = []
        for path in self._lines.paths:
            with path.open("rb") as file:
                names = self._fields(file.readline(1 << 20).rstrip(b"\r\n"))
            missing = [name for name in self._types if name not in names]
            if missing:
                raise ConfigError(
                    f"{path}, line 1: no column {missing[0]!r}; the header names "
                    f"{', '.join(names) or 'nothing'} (header=False if the file has none)"
                )
            if expected and names != expected:
                raise ConfigError(
                    f"{path}, line 1: the header differs from that of {self._lines.paths[0]}: "
                    f"got {', '.join(names)}, expected {', '.join(expected)}"
                )
            expected = names
        return expected


def _shortened(line: bytes) -> str:
    text = line.decode(errors="replace")
    return text if len(text) <= 80 else text[:77] + "..."
