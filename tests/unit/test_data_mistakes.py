"""Data that cannot be trained on: what the user is told, word for word."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from paceline.base.errors import ConfigError
from paceline.runtime.data.batch import TensorRows
from paceline.runtime.data.growing import GrowingFiles
from paceline.runtime.data.lines import expand_paths
from paceline.runtime.data.parquet import ParquetRows
from paceline.runtime.data.table import SqlTable
from paceline.runtime.data.text import CsvRows, TextLines

COLUMNS = {"id": "int64", "score": "float32", "name": "str"}


def csv(row: str = "3,4,bob", header: str = "id,score,name", **options: Any) -> object:
    """Read three rows of a CSV file, the second of which is ``row``."""
    text = f"{header}\n1,2,ann\n{row}\n3,4,bob\n" if header else ""
    Path("a.csv").write_bytes(text.encode("latin-1"))
    return CsvRows("a.csv", **({"columns": COLUMNS} | options)).__getitems__([0, 1, 2])


def two_headers() -> object:
    Path("1.csv").write_text("a,b\n")
    Path("2.csv").write_text("b,a\n")
    return CsvRows(["1.csv", "2.csv"], {"a": "int64"})


def text_line() -> object:
    Path("a.txt").write_bytes(b"ok\n\xff\xfe\n")
    return TextLines("a.txt")[1]


def parquet(columns: dict[str, Any], wanted: list[str] | None = None) -> object:
    pq.write_table(pa.table(columns), "a.parquet")
    return ParquetRows("a.parquet", wanted)[0]


def two_schemas() -> object:
    pq.write_table(pa.table({"x": [1]}), "1.parquet")
    pq.write_table(pa.table({"x": [1.0]}), "2.parquet")
    return ParquetRows(["1.parquet", "2.parquet"])


def no_parquet() -> object:
    Path("a.parquet").write_text("id,name\n")
    return ParquetRows("a.parquet")


def table(**changed: Any) -> object:
    """Read the first row of a table of three."""
    Path("a.db").unlink(missing_ok=True)
    with sqlite3.connect("a.db") as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, code TEXT, name TEXT)")
        rows = [(1, "a", "x"), (2, "a", "y"), (3, None, "z")]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    connection.close()
    columns = {"id": "int64", "name": "str"}
    valid = {"url": "sqlite:///a.db", "table": "items", "key": "id", "columns": columns}
    items = SqlTable(**(valid | changed))
    try:
        return items[0]
    finally:
        items.close()


def growing(text: str) -> object:
    Path("a.jsonl").write_text(text)
    return GrowingFiles(".").read("a.jsonl", 0, 2)


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: expand_paths([]), ""),
    (lambda: expand_paths(["*.json"]), ""),
    (lambda: expand_paths(["clicks.csv"]), ""),
    (lambda: csv("1,2"), ""),
    (lambda: csv("1,2,3,4"), ""),
    (lambda: csv(""), ""),
    (lambda: csv("x,2,ann"), ""),
    (lambda: csv(",2,ann"), ""),
    (lambda: csv('1,2,"ann'), ""),
    (lambda: csv("1,2," + "z" * 100 + ",4"), ""),
    (lambda: csv("1,2,\xff"), ""),
    (lambda: csv(header="id,name"), ""),
    (lambda: csv(header=""), ""),
    (lambda: csv(delimiter=";;"), ""),
    (lambda: csv(columns={"id": "int"}), ""),
    (lambda: csv(columns={}), ""),
    (lambda: csv(columns={"a b": "str"}), ""),
    (two_headers, ""),
    (text_line, ""),
    (lambda: parquet({"when": pa.array([0], pa.timestamp("ms"))}), ""),
    (lambda: parquet({"i": [None, 1]}), ""),
    (lambda: parquet({"x": [1]}, ["y"]), ""),
    (lambda: parquet({"x": [1]}, []), ""),
    (two_schemas, ""),
    (no_parquet, ""),
    (lambda: table(key=None), ""),
    (lambda: table(key="idd"), ""),
    (lambda: table(key="code"), ""),
    (lambda: table(table="goods"), ""),
    (lambda: table(columns={"colour": "str"}), ""),
    (lambda: table(columns={"id": "integer"}), ""),
    (lambda: table(columns={"name": "int64"}), ""),
    (lambda: table(url="sqlite:////no/such.db"), ""),
    (lambda: growing("1\n{x\n"), ""),
    (lambda: GrowingFiles("none"), ""),
    (lambda: GrowingFiles(".", "*.csv"), ""),
    (lambda: TensorRows(x=torch.zeros(3), y=torch.zeros(4)), ""),
    (lambda: TensorRows(**{"class": torch.zeros(3)}), ""),
]


@pytest.mark.parametrize(("read", "message"), MISTAKES)
def test_data_that_cannot_be_read_is_refused_in_these_words(
    read: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        read()
    assert str(refused.value).replace(str(tmp_path), "HERE") == message
