"""Text files as datasets of free lines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError
from paceline.runtime.data.lines import LineFiles, Paths
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE
from paceline.runtime.data.source import OfFiles


class LineRecords(OfFiles):
    """Base of all datasets of lines: their length, known at once or waited for."""

    shard_size_hint = DEFAULT_SHARD_SIZE
    """Neighbouring lines are read together."""

    def __init__(self, lines: LineFiles) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return self.wait_len()

    @property
    def files(self) -> Sequence[Path]:
        return self._lines.paths

    def num_known(self) -> tuple[int, bool]:
        """Records that can be read without waiting, and whether these are all. Never blocks."""
        return self._lines.num_known()

    def wait_known(self, count: int) -> tuple[int, bool]:
        """Block until ``count`` records can be read or all are counted; then as ``num_known``."""
        return self._lines.wait_known(count)

    def wait_len(self) -> int:
        """Block until all lines are counted; the number of records."""
        return self._lines.wait_known()[0]

    def progress_bytes(self) -> tuple[int, int]:
        """Bytes whose lines are counted, bytes in all."""
        return self._lines.progress_bytes()

    def close(self) -> None:
        """Stop the counting of lines, if it goes on."""
        self._lines.close()


class TextLines(LineRecords):
    """Each line of the files is a record: a ``str`` without its line end (LF or CR LF).

    An empty line is an empty record. Bytes are read as UTF-8.

    Args:
        paths: a path, a pattern with ``*``, or a list of these.
        parse: applied to each line; what it returns is the sample.
        index_dir: where the counts of lines are kept; by default ``$PACELINE_HOME/index``.

    Raises:
        ConfigError: no such file; when reading, a line is not UTF-8.
    """

    def __init__(
        self,
        paths: Paths,
        parse: Callable[[str], Any] | None = None,
        *,
        index_dir: Path | None = None,
    ) -> None:
        super().__init__(LineFiles(paths, index_dir=index_dir))
        self.parse = parse

    @property
    def reads_in_thread(self) -> bool:
        """Whether no function of the user's parses lines."""
        return self.parse is None

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        lines = self._lines.read(indices)
        return [self._decode(i, line) for i, line in zip(indices, lines, strict=True)]

    def first_rows(self, count: int) -> list[Any]:
        """The first records, at most ``count``: at once, however long the files are."""
        known, _ = self._lines.wait_known(count)
        return self.__getitems__(range(min(count, known)))

    def _decode(self, index: int, line: bytes) -> Any:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self._lines.where(index)}: not UTF-8: {error}; convert the file"
            ) from error
        if self.parse is None:
            return text
        try:
            return self.parse(text)
        except Exception as error:
            error.add_note(f"while parsing {self._lines.where(index)}")
            raise
