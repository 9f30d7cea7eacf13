"""Files of cuts are written whole, wherever their bytes lie and whatever the file system can do."""

import errno
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from paceline.cuts import manifest as cut
from paceline.cuts.manifest import write_file

PAGE = mmap.PAGESIZE


def mapped(num_bytes: int, begin: int = 0) -> memoryview:
    """Random bytes in memory that begins with a page, or so many bytes after it."""
    image = memoryview(mmap.mmap(-1, begin + num_bytes + 1))[begin : begin + num_bytes]
    image[:] = np.random.default_rng(num_bytes).bytes(num_bytes)
    return image


@pytest.mark.parametrize("begin", [0, 8])
@pytest.mark.parametrize("num_bytes", [0, 1, PAGE - 1, PAGE, 5 * PAGE, 5 * PAGE + 3])
def test_all_bytes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, begin: int
) -> None:
    monkeypatch.setattr(cut, "PIECE_BYTES", 2 * PAGE)
    image = mapped(num_bytes, begin)
    write_file(tmp_path / "new", "file", image)
    assert (tmp_path / "new" / "file").read_bytes() == image
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_shorter_file_takes_the_place_of_a_longer_one(tmp_path: Path) -> None:
    write_file(tmp_path, "file", mapped(3 * PAGE))
    write_file(tmp_path, "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("refused", ["open", "later", "short"])
def test_a_file_system_that_cannot_bypass_its_cache_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, error: int
) -> None:
    opened, written = os.open, os.pwrite
    asked: list[int] = []

    def open_(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(error, os.strerror(error))
        return opened(path, flags, *mode)

    def pwrite(descriptor: int, data: memoryview, at: int) -> int:
        asked.append(at)
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            if refused == "later" and at:
                raise OSError(error, os.strerror(error))
            if refused == "short":
                # No whole page, as of a file system that does not ask for them.
                with (tmp_path / ".file.partial").open("r+b", buffering=0) as file:
                    return written(file.fileno(), data[:100], at)
        return written(descriptor, data, at)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(cut, "PIECE_BYTES", PAGE)
    image = mapped(3 * PAGE + 7)
    write_file(tmp_path, "file", image)
    assert (tmp_path / "file").read_bytes() == image
    assert len(asked) >= 4


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path, "file", mapped(PAGE))
    assert not (tmp_path / "file").exists()
