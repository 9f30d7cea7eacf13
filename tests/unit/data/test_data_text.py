"""Text and CSV records, and the messages for those that cannot be read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.runtime.data.batch import fetch_rows
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.csv_rows import CsvRows
from paceline.runtime.data.sources.text_lines import TextLines

COLUMNS = {"id": "int64", "score": "float32", "name": "str"}


def csv_file(tmp_path: Path, text: str, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_lines_are_parsed_by_the_given_function(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "10\n20\r\n\n40")
    assert TextLines(path).first_rows(10) == ["10", "20", "", "40"]
    numbers = TextLines(path, parse=lambda line: int(line or 0))
    assert len(numbers) == 4
    assert numbers[1] == 20
    assert fetch_rows(numbers, np.array([3, 2]), None).tolist() == [40, 0]


def test_a_failing_parse_names_file_and_line(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "1\nx\n")
    with pytest.raises(ValueError, match="invalid literal") as caught:
        TextLines(path, parse=int)[1]
    assert caught.value.__notes__ == [f"while parsing {path}, line 2"]


def test_rows_become_one_tensor_per_column(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'name,id,score\nann,1,0.5\n"b,ob",2,\r\ncy,3,2')
    rows = CsvRows(path, COLUMNS)
    batch = rows.__getitems__([2, 0, 1])
    assert batch._fields == ("id", "score", "name")
    assert (batch.id.dtype, batch.id.tolist()) == (torch.int64, [3, 1, 2])
    assert batch.score.dtype == torch.float32
    assert batch.score.nan_to_num(-1).tolist() == [2, 0.5, -1]
    assert batch.name == ["cy", "ann", "b,ob"]
    assert rows[0].name == "ann"
    assert rows.first_rows(2).id.tolist() == [1, 2]
    assert len(rows) == 3


def test_files_without_header_use_the_order_of_the_columns(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "1\t2\n3\t4\n")
    rows = CsvRows(path, {"x": "int64", "y": "int64"}, delimiter="\t", header=False)
    assert rows.__getitems__([1, 0]).y.tolist() == [4, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_of_csv_rows_through_the_loader_has_each_row_once(
    tmp_path: Path, num_workers: int
) -> None:
    path = csv_file(tmp_path, "id\n" + "\n".join(map(str, range(500))))
    # Not counted yet: each loader process finds the lines that it needs.
    rows = CsvRows(path, {"id": "int64"})
    with Loader(rows, EpochOrder(500, 64, seed=1), num_workers=num_workers) as loader:
        for start in range(0, 500, 50):
            loader.submit(start, [(0, start, start + 50)])
        seen = torch.cat([loader.get(timeout_s=30)[1].id for _ in range(10)])
    assert sorted(seen.tolist()) == list(range(500))
