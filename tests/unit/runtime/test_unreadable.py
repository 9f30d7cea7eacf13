"""Which path an error could not open, and what files of a dataset hold."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from paceline.base.errors import ConfigError
from paceline.runtime.data.contents import contents_of
from paceline.runtime.data.sources.csv_rows import CsvRows
from paceline.runtime.data.sources.growing_files import GrowingFiles
from paceline.runtime.data.sources.parquet_rows import ParquetRows
from paceline.runtime.data.sources.sql_table import SqlTable
from paceline.runtime.data.sources.text_lines import TextLines
from paceline.runtime.process.unreadable import unreadable_path


class Lazy(Dataset[int]):
    """Opens its file with each record, as datasets of images do."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return len(Path("/no/such/image").read_bytes())


def _of_another_process() -> None:
    batches = iter(DataLoader(Lazy(), num_workers=1))
    try:
        next(batches)
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]  # the error keeps it alive


def _of_a_wrapper() -> None:
    try:
        open("/no/such/file")  # noqa: SIM115
    except FileNotFoundError as error:
        raise RuntimeError("no data") from error


@pytest.mark.parametrize(
    ("act", "path"),
    [
        (lambda: Path("/no/such/file").read_text(), "/no/such/file"),
        (lambda: np.load("/no/such/file.npy"), "/no/such/file.npy"),
        (lambda: torch.load("/no/such/file.pt"), "/no/such/file.pt"),
        (lambda: pq.read_table("/no/such/file.parquet"), "/no/such/file.parquet"),
        (lambda: TextLines("/no/such/*.txt"), "/no/such/*.txt"),
        (lambda: CsvRows(["/no/such/a.csv"], {"x": "int64"}), "/no/such/a.csv"),
        (lambda: ParquetRows("/no/such/*.parquet"), "/no/such/*.parquet"),
        (lambda: GrowingFiles("/no/such"), "/no/such"),
        (lambda: SqlTable("sqlite:////no/such.db", "t", "k", {"x": "int64"}), "/no/such.db"),
        (_of_another_process, "/no/such/image"),
        (_of_a_wrapper, "/no/such/file"),
    ],
)
def test_the_path_is_found_in_the_error(act, path: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Exception) as caught:
        act()
    assert unreadable_path(caught.value) == path


def test_a_relative_path_is_told_as_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        TextLines("data/*.txt")
    assert unreadable_path(caught.value) == str(tmp_path / "data/*.txt")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("'/no/such/file' is odd"),
        ConfigError("no"),
        ConnectionRefusedError(111, "refused"),
        OSError(28, "No space left on device", "/full"),
        FileNotFoundError("nothing quoted"),
    ],
)
def test_other_errors_name_none(error: Exception) -> None:
    assert unreadable_path(error) == ""


def test_files_of_equal_length_and_other_bytes_differ(tmp_path: Path) -> None:
    def lines(folder: str, text: str) -> TextLines:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.txt").write_text(text)
        return TextLines(tmp_path / folder / "a.txt", index_dir=tmp_path)

    here = contents_of(lines("here", "1\n2\n"))
    assert here.startswith("1 files of 4 bytes, digest ")
    assert here == contents_of(lines("there", "1\n2\n"))
    assert here != contents_of(lines("there", "1\n3\n"))
    big = "x" * 200_000
    assert contents_of(lines("here", big)) != contents_of(lines("there", big[:-1] + "y"))


def test_files_are_found_within_subsets_and_not_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    text = TextLines(tmp_path / "a.txt", index_dir=tmp_path)
    rows = ParquetRows(tmp_path / "a.parquet")
    assert contents_of(Subset(text, [0])) == contents_of(text)
    assert contents_of(ConcatDataset([text, rows])).startswith("2 files of ")
    assert contents_of(rows) != contents_of(text)
    assert contents_of([1, 2]) == ""


def test_of_many_files_some_are_looked_into(tmp_path: Path) -> None:
    for number in range(130):
        (tmp_path / f"{number:03d}.txt").write_text("1\n")
    before = contents_of(TextLines(str(tmp_path / "*.txt"), index_dir=tmp_path))
    (tmp_path / "129.txt").write_text("12\n")
    after = contents_of(TextLines(str(tmp_path / "*.txt"), index_dir=tmp_path))
    assert before.startswith("130 files of 260 bytes")
    assert after.startswith("130 files of 261 bytes")
