"""Growing files are a stream: complete records only, numbered for ever."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.base.errors import ConfigError, PermanentError
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.sources import growing_files
from paceline.runtime.data.sources.growing_files import GrowingFiles
from paceline.runtime.data.stream import StreamSource


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_files_and_new_lines_appear(tmp_path: Path) -> None:
    source = GrowingFiles(tmp_path)
    assert isinstance(source, StreamSource)
    assert (source.partitions(), source.finished()) == ([], False)
    append(tmp_path / "b.jsonl", '{"x": 0}\n{"x": 1}\n{"x"')
    append(tmp_path / "_half.jsonl", "{}\n")
    assert source.partitions() == ["b.jsonl"]
    assert source.end("b.jsonl") == 2
    append(tmp_path / "a.jsonl", "")
    append(tmp_path / "b.jsonl", ": 2}\n[3]")
    assert source.partitions() == ["b.jsonl", "a.jsonl"]
    assert (source.end("b.jsonl"), source.end("a.jsonl")) == (3, 0)
    assert source.read("b.jsonl", 1, 3) == [{"x": 1}, {"x": 2}]
    (tmp_path / "_END").touch()
    assert source.finished()
    assert source.end("b.jsonl") == 4
    assert source.read("b.jsonl", 3, 4) == [[3]]


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), num_records=st.integers(0, 1500))
def test_any_way_of_growing_gives_the_same_records(
    tmp_path: Path, data: st.DataObject, num_records: int
) -> None:
    text = "".join(f"{i}\n" for i in range(num_records))
    path = tmp_path / "a.jsonl"
    path.unlink(missing_ok=True)
    source = GrowingFiles(tmp_path)
    written = 0
    while written < len(text):
        size = data.draw(st.integers(1 + len(text) // 10, len(text)))
        append(path, text[written : written + size])
        written += size
        assert source.end("a.jsonl") == text[:written].count("\n")
    if num_records:
        start = data.draw(st.integers(0, num_records - 1))
        stop = data.draw(st.integers(start, num_records))
        assert source.read("a.jsonl", start, stop) == list(range(start, stop))


def test_lines_longer_than_a_chunk_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_files, "_CHUNK_BYTES", 10)
    append(tmp_path / "a.jsonl", '"' + "x" * 35 + '"\n1\n2\n')
    source = GrowingFiles(tmp_path)
    assert source.end("a.jsonl") == 3
    assert source.read("a.jsonl", 1, 3) == [1, 2]


def test_a_parquet_file_counts_when_it_is_complete(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(25)}), tmp_path / "whole", row_group_size=10)
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "a.parquet"
    path.write_bytes(whole[:100])
    source = GrowingFiles(tmp_path, "*.parquet")
    assert source.partitions() == ["a.parquet"]
    assert source.end("a.parquet") is None
    path.write_bytes(whole)
    assert source.end("a.parquet") == 25
    assert source.read("a.parquet", 8, 21) == [{"x": i} for i in range(8, 21)]
    path.write_bytes(whole[:100])
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        GrowingFiles(tmp_path, "*.parquet", complete=True).end("a.parquet")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_records_of_several_partitions_become_one_batch(tmp_path: Path, num_workers: int) -> None:
    for name in "ab":
        rows = [json.dumps({"x": i, "name": name}) for i in range(10)]
        append(tmp_path / f"{name}.jsonl", "\n".join(rows) + "\n")
    with Loader(GrowingFiles(tmp_path), None, num_workers=num_workers) as loader:
        loader.submit(0, [("a.jsonl", 8, 10), ("b.jsonl", 0, 1)])
        _, batch = loader.get(timeout_s=30)
    assert batch.x.tolist() == [8, 9, 0]
    assert batch.name == ["a", "a", "b"]


def test_a_lease_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", "1\n")
    with pytest.raises(PermanentError, match=r"has 1 records, but \[0, 2\) was leased"):
        GrowingFiles(tmp_path).read("a.jsonl", 0, 2)


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_text("")])
def test_a_file_that_shrinks_is_an_error(tmp_path: Path, change: Any) -> None:
    append(tmp_path / "a.jsonl", "1\n")
    source = GrowingFiles(tmp_path)
    assert source.end("a.jsonl") == 1
    change(tmp_path / "a.jsonl")
    with pytest.raises(PermanentError, match="may only grow"):
        source.end("a.jsonl")
