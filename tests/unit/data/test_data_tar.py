"""Records of tar files come by number, each of its own files, whatever else the tar files hold."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError, PermanentError
from paceline.runtime.data.contents import contents_of


def write(path: Path, files: list[tuple[str, bytes]], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def numbered(path: Path, start: int, stop: int) -> Path:
    files = []
    for k in range(start, stop):
        files += [(f"a.b/{k:03}.x.bin", bytes([k])), (f"a.b/{k:03}.cls", str(k % 3).encode())]
    return write(path, files)


def parsed(record: dict[str, Any]) -> tuple[int, int]:
    return record["x.bin"][0], int(record["cls"])


@pytest.fixture
def rows(tmp_path: Path) -> pl.TarRows:
    numbered(tmp_path / "0.tar", 0, 20)
    numbered(tmp_path / "1.tar", 20, 27)
    return pl.TarRows(str(tmp_path / "*.tar"))


def test_a_record_has_its_files_by_what_follows_the_first_dot(rows: pl.TarRows) -> None:
    assert (len(rows), rows.shard_size_hint) == (27, 20)
    for k in (26, 0, 19, 20):
        found = {"__key__": f"a.b/{k:03}", "x.bin": bytes([k]), "cls": str(k % 3).encode()}
        assert rows[k] == pickle.loads(pickle.dumps(rows))[k] == found
    with pytest.raises(IndexError, match="record 27 of 27"):
        _ = rows[27]
    assert contents_of(rows).startswith("2 files of ")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_job_reads_each_record_once(rows: pl.TarRows, num_workers: int) -> None:
    rows.parse = parsed
    job, model = pl.init(), nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    seen: list[int] = []
    for number, kind in job.batches(rows, 5, num_workers=num_workers):
        model(number[:, None].float()).mean().backward()
        optimizer.step()
        assert torch.equal(number % 3, kind)
        seen += number.tolist()
    assert seen != sorted(seen)
    assert sorted(seen) == [*range(27)]


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w") as tar:
        folder = tarfile.TarInfo("a.d")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("README", "a.d/.hidden", "long/" + "x" * 200 + ".txt", "z.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    rows = pl.TarRows(path)
    assert [rows[k]["__key__"] for k in range(len(rows))] == ["long/" + "x" * 200, "z"]
    assert rows[0]["txt"] == b"abc"


def test_equal_keys_of_two_files_are_two_records(tmp_path: Path) -> None:
    for name in ("0.tar", "1.tar"):
        write(tmp_path / name, [("7.txt", name.encode())])
    rows = pl.TarRows(str(tmp_path / "*.tar"))
    assert [rows[k]["txt"] for k in range(2)] == [b"0.tar", b"1.tar"]


@pytest.mark.parametrize(
    ("files", "mode", "cut", "said"),
    [
        ([("7.txt", b"a")], "w:gz", 0, r"not compressed: .*; unpack a compressed one \(gunzip\)"),
        ([("7.txt", b"a" * 999)], "w", 9500, "7.txt is cut off; unpack"),
        ([("7.txt", b"a"), ("7.txt", b"b")], "w", 0, "record 7 has 'txt' twice"),
        ([("README", b"a")], "w", 0, "there is no record in .*; name files by record and field"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    files: list[tuple[str, bytes]], mode: str, cut: int, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "0.tar", files, mode)
    path.write_bytes(path.read_bytes()[: -cut or None])
    with pytest.raises(ConfigError, match=said) as caught:
        pl.TarRows(path)
    assert str(path) in str(caught.value)


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """Ten records, of a file each, whose header and content take a block each."""
    return write(tmp_path / "0.tar", [(f"{k}.txt", b"a") for k in range(10)])


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (8 * 512, "has lost its end: there is no block of zeros at byte 4096, .*; write it again"),
        (8 * 512 + 100, "has lost its end: there is no block of zeros at byte 4096"),
        (9 * 512 + 1, "4.txt is cut off|unexpected end"),
    ],
)
def test_a_tar_file_that_has_lost_its_end_is_named(ten: Path, end: int, said: str) -> None:
    ten.write_bytes(ten.read_bytes()[:end])
    with pytest.raises(ConfigError, match=said) as caught:
        pl.TarRows(ten)
    assert str(ten) in str(caught.value)


def test_a_tar_file_with_a_damaged_header_is_named(ten: Path) -> None:
    data = bytearray(ten.read_bytes())
    data[8 * 512 + 3] ^= 1
    ten.write_bytes(data)
    with pytest.raises(ConfigError, match=r"0.tar is damaged at byte 4096, .*; write it again"):
        pl.TarRows(ten)


def test_tar_files_that_were_joined_with_cat_are_named(ten: Path) -> None:
    ten.write_bytes(ten.read_bytes() * 2)
    said = r"0.tar goes on after its end at byte 10240, .*name all of them"
    with pytest.raises(ConfigError, match=said):
        pl.TarRows(ten)


def test_a_tar_file_needs_no_more_than_one_block_of_zeros(ten: Path) -> None:
    ten.write_bytes(ten.read_bytes()[: 21 * 512])
    assert len(pl.TarRows(ten)) == 10
    ten.write_bytes(ten.read_bytes() + bytes(3 << 20))
    assert len(pl.TarRows(ten)) == 10


def test_a_file_that_shrinks_while_the_job_runs_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("7.txt", b"a" * 99)])
    rows = pl.TarRows(path)
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(PermanentError, match="7 has ended after 8 of 99 bytes"):
        _ = rows[0]
