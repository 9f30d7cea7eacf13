"""Rows of a database table come by number in the order of a unique key."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sql
import torch

from paceline.base.errors import PermanentError
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.sources import sql_table as table_module
from paceline.runtime.data.sources.sql_table import SqlTable

COLUMNS = {"id": "int64", "price": "float32", "name": "str"}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_BLOCK_ROWS", 7)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sql.Engine]:
    """A table of 50 rows with keys 0, 3, 6, ... stored in another order."""
    engine = sql.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    ids = (np.random.default_rng(0).permutation(50) * 3).tolist()
    with engine.begin() as connection:
        connection.execute(
            sql.text("CREATE TABLE items (id INTEGER PRIMARY KEY, code TEXT, price NUMERIC, name)")
        )
        connection.execute(
            sql.text("INSERT INTO items VALUES (:id, :code, :price, :name)"),
            [{"id": i, "code": f"{i:04}", "price": i / 2, "name": f"n{i}"} for i in ids],
        )
    yield engine
    engine.dispose()


@pytest.fixture
def items(engine: sql.Engine) -> Iterator[SqlTable]:
    items = SqlTable(str(engine.url), "items", "id", COLUMNS)
    yield items
    items.close()


def test_rows_are_numbered_in_the_order_of_the_key(items: SqlTable) -> None:
    wanted = [49, 0, 6, 7, 8, 21, 6]
    batch = items.__getitems__(wanted)
    assert batch.id.tolist() == [3 * i for i in wanted]
    assert batch.price.tolist() == [1.5 * i for i in wanted]
    assert batch.name == [f"n{3 * i}" for i in wanted]
    assert (len(items), items[1].id.item()) == (50, 3)


def test_a_unique_text_column_is_a_key(engine: sql.Engine) -> None:
    items = SqlTable(str(engine.url), "items", "code", {"id": "int64"})
    assert items.__getitems__(range(50)).id.tolist() == list(range(0, 150, 3))
    items.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_through_the_loader_has_each_row_once(items: SqlTable, num_workers: int) -> None:
    with Loader(items, EpochOrder(50, 8, seed=1), num_workers=num_workers) as loader:
        for start in range(0, 50, 10):
            loader.submit(start, [(0, start, start + 10)])
        seen = torch.cat([loader.get(timeout_s=30)[1].id for _ in range(5)])
    assert sorted(seen.tolist()) == list(range(0, 150, 3))


def test_a_pickled_copy_reads_the_same(items: SqlTable) -> None:
    copy = pickle.loads(pickle.dumps(items))
    assert copy[2].id == 6
    copy.close()


def test_the_connection_cannot_write(items: SqlTable) -> None:
    with items._connect() as connection, pytest.raises(sql.exc.OperationalError, match="readonly"):
        connection.execute(sql.text("DELETE FROM items"))


@pytest.mark.parametrize(
    "change", ["DELETE FROM items WHERE id = 3", "INSERT INTO items(id) VALUES(4)"]
)
def test_a_table_that_changes_is_an_error(engine: sql.Engine, items: SqlTable, change: str) -> None:
    with engine.begin() as connection:
        connection.execute(sql.text(change))
    with pytest.raises(PermanentError, match="was changed while it was being read"):
        items[0]


def test_an_empty_table_has_no_rows(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sql.text("DELETE FROM items"))
    items = SqlTable(str(engine.url), "items", "id", COLUMNS)
    assert len(items) == 0
    with pytest.raises(IndexError, match="record 0 of 0"):
        items[0]
    items.close()
