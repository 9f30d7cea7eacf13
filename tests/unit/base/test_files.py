"""Files that are written whole, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from paceline.base import files
from paceline.base.files import write_file


def test_a_writer_that_is_cut_off_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    write_file(path, b"old")
    write = Path.write_bytes

    def fail(self: Path, data: bytes) -> int:
        write(self, data[:1])
        raise OSError(errno.ENOSPC, "disk full")  # as of a write, without the file's name

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full") as refused:
        write_file(path, b"new")
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_file(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_what_is_no_regular_file_is_written_in_place() -> None:
    write_file(Path(os.devnull), b"new")
    assert Path(os.devnull).is_char_device()


def test_a_pipe_behind_a_link_as_of_stdout_gets_the_content() -> None:
    reader, writer = os.pipe()
    try:
        write_file(Path(f"/proc/self/fd/{writer}"), b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_in_a_folder_that_takes_no_more_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.html"
    path.write_bytes(b"old")
    number = path.stat().st_ino
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino == number
