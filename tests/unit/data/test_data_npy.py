"""Rows of .npy files come by number, whatever files they are cut into."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError, PermanentError

X = np.random.default_rng(1).normal(size=(27, 2, 3)).astype("f4")
Y = np.arange(27)


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """Columns that are cut differently; one file is written column by column, one has no row."""
    np.save(tmp_path / "x-0.npy", np.asfortranarray(X[:20]))
    np.save(tmp_path / "x-1.npy", X[20:])
    for number, part in enumerate((Y[:5], Y[5:5], Y[5:].astype(">i8"))):
        np.save(tmp_path / f"y-{number}.npy", part)
    return pl.NpyRows(x=str(tmp_path / "x-*.npy"), y=sorted(tmp_path.glob("y-*.npy")))


def test_a_batch_has_the_rows_of_all_files_in_the_order_asked_for(rows: Any) -> None:
    assert len(rows) == 27
    wanted = [26, 0, 19, 20, 4, 5, 4]
    batch = rows.__getitems__(wanted)
    assert batch._fields == ("x", "y")
    assert (batch.x.dtype, batch.y.dtype) == (torch.float32, torch.int64)
    np.testing.assert_array_equal(batch.x.numpy(), X[wanted])
    assert batch.y.tolist() == wanted
    assert rows[21].y == 21 and rows[21].x.shape == (2, 3)
    assert [path.name for path in rows.files] == [
        *("x-0.npy", "x-1.npy"),
        *("y-0.npy", "y-1.npy", "y-2.npy"),
    ]


def test_a_batch_can_be_changed_and_the_files_stay(rows: Any) -> None:
    rows.__getitems__([0]).y.add_(5)
    assert rows[0].y == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_job_reads_each_row_once(rows: Any, num_workers: int) -> None:
    model = nn.Linear(6, 1)
    job = pl.init()
    model, optimizer = job.prepare(model, SGD(model.parameters(), lr=0.1))
    seen = []
    for batch in job.batches(rows, 4, num_workers=num_workers):
        model(batch.x.flatten(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += batch.y.tolist()
    assert sorted(seen) == [*range(27)]


@pytest.mark.parametrize("index", [-1, 27])
def test_a_row_that_does_not_exist_is_an_index_error(rows: Any, index: int) -> None:
    with pytest.raises(IndexError, match="of 27"):
        rows[index]


def test_a_file_that_was_cut_or_replaced_is_named(rows: Any, tmp_path: Path) -> None:
    assert rows[25].y == 25
    with (tmp_path / "y-2.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(PermanentError, match=r"y-2.npy has 200 bytes, and had \d+ when"):
        rows[25]
    assert rows.__getitems__([0, 4]).y.tolist() == [0, 4]


def _files(folder: Path, **arrays: Any) -> dict[str, Any]:
    for name, array in arrays.items():
        np.save(folder / name, array)
    return {name: folder / f"{name}.npy" for name in arrays}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "at least one column, all with the same number of rows; got none"),
        ({"x": X, "y": Y[:9]}, "got x: 27, y: 9"),
        ({"x": X[:0]}, "got x: 0"),
        ({"x": np.float32(1.0)}, "x.npy has a single number"),
        ({"x": np.array(["a"])}, "x.npy cannot be read as an array of numbers"),
        ({"x": np.array([{}], dtype=object)}, "x.npy cannot be read as an array of numbers"),
        ({"class": Y}, "cannot be attributes of a batch"),
    ],
)
def test_columns_that_make_no_rows_are_refused(
    arrays: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        pl.NpyRows(**_files(tmp_path, **arrays))


@pytest.mark.parametrize("other", [X[:, :1], X.astype("f8")])
def test_files_of_a_column_must_be_alike(other: Any, tmp_path: Path) -> None:
    files = _files(tmp_path, a=X, b=other)
    with pytest.raises(ConfigError, match=r"column 'x': .*b.npy has rows of .* give files that"):
        pl.NpyRows(x=[*files.values()])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no array", b"short"])
def test_a_file_that_is_no_array_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x.npy cannot be read .* numpy.save"):
        pl.NpyRows(x=tmp_path / "x.npy")


def test_a_file_that_has_lost_its_end_is_named(tmp_path: Path) -> None:
    files = _files(tmp_path, x=X)
    os.truncate(files["x"], 300)
    with pytest.raises(ConfigError, match=r"x.npy cannot be read .* numpy.save"):
        pl.NpyRows(**files)
