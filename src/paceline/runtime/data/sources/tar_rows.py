"""Tar files as a dataset: records by number, each of some files that follow each other."""

import os
import re
import tarfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.base.errors import ConfigError, PermanentError
from paceline.runtime.data.lines import Paths, expand_paths
from paceline.runtime.data.source import OfFiles

KEY = "__key__"
"""The name of a record in itself."""
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
"""Pattern of names: the key that files of one record share, and the field that each is in it."""
_PIECE = 1 << 20
"""Bytes of a file that are looked at at once."""


class _Part(NamedTuple):
    """One file in a tar file."""

    key: str
    field: str
    start: int
    size: int


class TarRows(OfFiles):
    """Records of tar files, as webdataset has them: each of files that are alike up to a first dot.

    ``a/7.jpg`` and ``a/7.cls``, one after the other, are a record of the key ``a/7``, with the
    fields ``jpg`` and ``cls``. Files without a dot belong to no record. Every worker reads the
    headers once, to know where each record lies.

    Args:
        paths: a path, a pattern with ``*``, or a list of these; not compressed.
        parse: makes a record of its fields, ``bytes`` by name, and ``__key__``; None: that dict is
            the record. It may draw random numbers, see ``docs/howto/data-detail.md``.

    Raises:
        ConfigError: no such file, one that is no whole tar file, or none that has a record.
    """

    def __init__(self, paths: Paths, parse: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.paths, self.parse = expand_paths(paths), parse
        self._names: list[str] = []
        """Names of fields, by their numbers."""
        self._keys: list[str] = []
        """Keys of records, in their order."""
        #: Where the files of records begin and what each has, and the first file of each record.
        starts, sizes, fields, firsts = (array("q") for _ in range(4))
        records = [0]
        known: dict[str, int] = {}
        for path in self.paths:
            key = None
            for part in _parts_of(path):
                if part.key != key:
                    key = part.key
                    self._keys.append(key)
                    firsts.append(len(starts))
                starts.append(part.start)
                sizes.append(part.size)
                fields.append(known.setdefault(part.field, len(known)))
            records.append(len(self._keys))
        if not self._keys:
            more = f" and in {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
            raise ConfigError(
                f"there is no record in {self.paths[0]}{more}; name files by record and field, "
                "such as 000017.jpg and 000017.cls"
            )
        firsts.append(len(starts))
        self._names = [*known]
        self._starts, self._sizes, self._fields, self._firsts = (
            np.frombuffer(one, np.int64) for one in (starts, sizes, fields, firsts)
        )
        self._records = np.array(records, np.int64)

    @property
    def reads_in_thread(self) -> bool:
        """Whether no function of the user's makes records."""
        return self.parse is None

    @property
    def shard_size_hint(self) -> int:
        """Records in the file that has most."""
        return int(np.diff(self._records).max())

    @property
    def files(self) -> Sequence[Path]:
        return self.paths

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)} in {self.paths[0]}")
        path = self.paths[int(np.searchsorted(self._records, index, side="right")) - 1]
        record: dict[str, Any] = {KEY: self._keys[index]}
        with path.open("rb", buffering=0) as file:
            for k in range(self._firsts[index], self._firsts[index + 1]):
                size = int(self._sizes[k])
                data = os.pread(file.fileno(), size, int(self._starts[k]))
                if len(data) != size:
                    raise PermanentError(
                        f"{path}: {record[KEY]} has ended after {len(data)} of {size} bytes; the "
                        "file has changed since the job began"
                    )
                record[self._names[self._fields[k]]] = data
        return record if self.parse is None else self.parse(record)


def _parts_of(path: Path) -> Iterator[_Part]:
    """The files of the records of one tar file.

    Raises:
        ConfigError: it is none, is compressed, damaged or joined with another, or has lost its end;
            or a record has a field twice.
    """
    size = path.stat().st_size
    seen = set[str]()
    key = None
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
                found = _NAME.fullmatch(member.name)
                if not member.isreg() or found is None:
                    continue
                if member.issparse() or member.offset_data + member.size > size:
                    what = "stored with holes" if member.issparse() else "cut off"
                    raise tarfile.ReadError(f"{member.name} is {what}")
                part = _Part(found[1], found[2], member.offset_data, member.size)
                if part.key != key:
                    key = part.key
                    seen.clear()
                if part.field in seen:
                    raise tarfile.ReadError(f"record {key} has {part.field!r} twice")
                seen.add(part.field)
                yield part
            _check_end(path, tar.offset)
    except tarfile.TarError as error:
        raise ConfigError(
            f"{path} cannot be read as a tar file that is not compressed: {error}; unpack a "
            "compressed one (gunzip), and write one again that has lost its end"
        ) from error


def _check_end(path: Path, offset: int) -> None:
    """Look at what follows the last header: `tarfile` takes a damaged one for the end.

    Raises:
        ConfigError: it is no end of a tar file, or not the end of this file.
    """
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise ConfigError(
                f"{path} has lost its end: there is no block of zeros at byte {offset}, behind its "
                "last whole file; write it again"
            )
        if any(block):
            raise ConfigError(
                f"{path} is damaged at byte {offset}, where the next file or the end of the tar "
                "file should be; write it again"
            )
        while block:
            if any(block):
                raise ConfigError(
                    f"{path} goes on after its end at byte {offset}, as tar files do that were "
                    "joined with cat: keep them apart and name all of them, or join them with "
                    "tar --concatenate"
                )
            block = file.read(_PIECE)
