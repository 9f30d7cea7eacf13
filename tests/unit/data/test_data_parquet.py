"""Parquet rows come by number, by column, from any row group."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources.parquet_rows import ParquetRows


def write(path: Path, columns: dict[str, Any], row_group_size: int = 10) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def numbered(path: Path, start: int, stop: int) -> Path:
    ids = np.arange(start, stop)
    return write(path, {"id": ids, "half": (ids / 2).astype(np.float32), "name": ids.astype(str)})


@pytest.fixture
def rows(tmp_path: Path) -> ParquetRows:
    numbered(tmp_path / "1.parquet", 0, 25)
    numbered(tmp_path / "2.parquet", 25, 60)
    return ParquetRows(str(tmp_path / "*.parquet"))


def test_rows_of_several_files_and_groups_come_in_the_order_asked(rows: ParquetRows) -> None:
    wanted = np.random.default_rng(0).permutation(60)
    batch = rows.__getitems__(wanted.tolist())
    assert batch._fields == ("id", "half", "name")
    assert torch.equal(batch.id, torch.from_numpy(wanted))
    assert torch.equal(batch.half, torch.from_numpy(wanted).float() / 2)
    assert batch.name == [str(i) for i in wanted]
    assert (len(rows), rows[59].id.item(), rows.shard_size_hint) == (60, 59, 10)


def test_only_the_named_columns_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"x": [1, 2], "when": pa.array([0, 1], pa.timestamp("ms"))})
    assert ParquetRows(path, ["x"])[1]._fields == ("x",)


def test_lists_of_fixed_length_become_a_matrix(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
    batch = ParquetRows(write(tmp_path / "a", {"x": lists})).__getitems__([2, 0])
    assert batch.x.tolist() == [[5, 6], [1, 2]]


def test_an_empty_value_is_nan(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"f": [1.0, None]})
    assert torch.isnan(ParquetRows(path, ["f"])[1].f)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_through_the_loader_has_each_row_once(rows: ParquetRows, num_workers: int) -> None:
    with Loader(rows, EpochOrder(60, 10, seed=1), num_workers=num_workers) as loader:
        for start in range(0, 60, 15):
            loader.submit(start, [(0, start, start + 15)])
        seen = torch.cat([loader.get(timeout_s=30)[1].id for _ in range(4)])
    assert sorted(seen.tolist()) == list(range(60))


def test_a_pickled_copy_reads_the_same(rows: ParquetRows) -> None:
    copy = pickle.loads(pickle.dumps(rows))
    assert copy[30].id == 30


def test_a_record_beyond_the_end_is_an_index_error(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="record 1 of 1"):
        ParquetRows(write(tmp_path / "a", {"x": [1]}))[1]
