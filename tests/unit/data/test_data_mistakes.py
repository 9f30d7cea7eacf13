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
from paceline.runtime.data.lines import expand_paths
from paceline.runtime.data.sources.csv_rows import CsvRows
from paceline.runtime.data.sources.growing_files import GrowingFiles
from paceline.runtime.data.sources.parquet_rows import ParquetRows
from paceline.runtime.data.sources.sql_table import SqlTable
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.sources.text_lines import TextLines

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
    (lambda: expand_paths([]), "the list of data files is empty; name at least one"),
    (lambda: expand_paths(["*.json"]), "no file matches '*.json' (from HERE); check the path"),
    (
        lambda: expand_paths(["clicks.csv"]),
        "no file matches 'clicks.csv' (from HERE); check the path",
    ),
    (lambda: csv("1,2"), "a.csv, line 3: 2 columns, expected 3 (id, score, name): 1,2"),
    (
        lambda: csv("1,2,3,4"),
        ("a.csv, line 3: 4 columns, expected 3 (id, score, name): 1,2,3,4"),
    ),
    (lambda: csv(""), "a.csv, line 3: 0 columns, expected 3 (id, score, name): "),
    (
        lambda: csv("x,2,ann"),
        (
            "a.csv, line 3: In CSV column #0: Row #1: CSV conversion error to int64: invalid "
            "value 'x': x,2,ann"
        ),
    ),
    (
        lambda: csv(",2,ann"),
        ("a.csv, line 3: column 'id' of type int64 has an empty value: ,2,ann"),
    ),
    (lambda: csv('1,2,"ann'), 'a.csv, line 3: a quote (") is opened and not closed'),
    (
        lambda: csv("1,2," + "z" * 100 + ",4"),
        (
            "a.csv, line 3: 4 columns, expected 3 (id, score, name): "
            "1,2,zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz..."
        ),
    ),
    (
        lambda: csv("1,2,\xff"),
        (
            "a.csv, line 3: In CSV column #2: Row #1: CSV conversion error to string: invalid "
            "UTF8 data: 1,2,�"
        ),
    ),
    (
        lambda: csv(header="id,name"),
        (
            "a.csv, line 1: no column 'score'; the header names id, name (header=False if the "
            "file has none)"
        ),
    ),
    (
        lambda: csv(header=""),
        (
            "a.csv, line 1: no column 'id'; the header names nothing (header=False if the file "
            "has none)"
        ),
    ),
    (lambda: csv(delimiter=";;"), "the delimiter is ';;'; give one ASCII character"),
    (
        lambda: csv(columns={"id": "int"}),
        ("column 'id' has the type 'int'; use one of float32, float64, int32, int64, bool, str"),
    ),
    (lambda: csv(columns={}), "no columns were named; give at least one as {name: type}"),
    (
        lambda: csv(columns={"a b": "str"}),
        (
            "columns ['a b'] cannot be attributes of a batch: Type names and field names must be "
            "valid identifiers: 'a b'; rename them"
        ),
    ),
    (
        two_headers,
        ("2.csv, line 1: the header differs from that of 1.csv: got b, a, expected a, b"),
    ),
    (
        text_line,
        (
            "a.txt, line 2: not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: "
            "invalid start byte; convert the file"
        ),
    ),
    (
        lambda: parquet({"when": pa.array([0], pa.timestamp("ms"))}),
        (
            "a.parquet: column 'when' of type timestamp[ms] cannot become a tensor; name the "
            "columns to read, or convert it"
        ),
    ),
    (
        lambda: parquet({"i": [None, 1]}),
        ("a.parquet, records 0 to 0: column 'i' of type int64 has an empty value"),
    ),
    (lambda: parquet({"x": [1]}, ["y"]), "a.parquet: no column 'y'; it has x"),
    (lambda: parquet({"x": [1]}, []), "a.parquet: no columns were named; give at least one"),
    (
        two_schemas,
        ("2.parquet has other columns than 1.parquet: got x: double, expected x: int64"),
    ),
    (
        no_parquet,
        (
            "a.parquet cannot be read as Parquet: Parquet magic bytes not found in footer. "
            "Either the file is corrupted or this is not a parquet file."
        ),
    ),
    (
        lambda: table(key=None),
        (
            "table items of sqlite:///a.db has no order without a key; declare a column that is "
            "unique and never NULL as key=... (its primary key is 'id')"
        ),
    ),
    (
        lambda: table(key="idd"),
        ("table items of sqlite:///a.db: no column 'idd'; it has id, code, name"),
    ),
    (
        lambda: table(key="code"),
        (
            "table items of sqlite:///a.db: 'code' is no key: 1 NULLs and 1 repeated values in 3 "
            "rows; declare a column that is unique and never NULL"
        ),
    ),
    (
        lambda: table(table="goods"),
        ("table goods of sqlite:///a.db: no such table; there are: items"),
    ),
    (
        lambda: table(columns={"colour": "str"}),
        ("table items of sqlite:///a.db: no column 'colour'; it has id, code, name"),
    ),
    (
        lambda: table(columns={"id": "integer"}),
        (
            "column 'id' has the type 'integer'; use one of float32, float64, int32, int64, "
            "bool, str"
        ),
    ),
    (
        lambda: table(columns={"name": "int64"}),
        (
            "table items of sqlite:///a.db: column 'name' holds a value that is no int64: Could "
            "not convert 'x' with type str: tried to convert to int64"
        ),
    ),
    (lambda: table(url="sqlite:////no/such.db"), "no database '/no/such.db'; check the url"),
    (
        lambda: growing("1\n{x\n"),
        ("a.jsonl, line 2: no JSON: JSON is malformed: object keys must be strings (byte 1)"),
    ),
    (lambda: GrowingFiles("none"), "none is no directory; create it before the job starts"),
    (
        lambda: GrowingFiles(".", "*.csv"),
        ("the pattern '*.csv' names no known form; let it end in .jsonl or .parquet"),
    ),
    (
        lambda: TensorRows(x=torch.zeros(3), y=torch.zeros(4)),
        (
            "TensorRows needs at least one tensor, all with the same first dimension; got shapes "
            "{'x': (3,), 'y': (4,)}"
        ),
    ),
    (
        lambda: TensorRows(**{"class": torch.zeros(3)}),
        (
            "columns ['class'] cannot be attributes of a batch: Type names and field names "
            "cannot be a keyword: 'class'; rename them"
        ),
    ),
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
