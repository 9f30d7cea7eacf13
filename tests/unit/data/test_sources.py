"""What holds for every data source, on a sample of each."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sql
import torch

import paceline as pl
from paceline.runtime.data import sources
from paceline.runtime.data.contents import contents_of
from paceline.runtime.data.inline import InlineLoader
from paceline.runtime.data.loader import Loader
from paceline.runtime.data.reader import loader_of
from paceline.runtime.data.source import DataSource, OfFiles, reads_in_thread
from paceline.runtime.data.stream import StreamSource
from paceline.wire.messages.feeds import Feed
from tests.unit.data.test_data_tar import write

COUNT = 20
"""Records of each sample: the numbers from 0."""


class Sample(NamedTuple):
    """A source of the numbers from 0, and how a batch of it shows them."""

    source: Any
    numbers: Callable[[Any], list[int]]
    drawing: Any = None
    """The same with a function of the user's; None: it takes none."""


def _column(batch: Any) -> list[int]:
    return [int(x) for x in batch.x]


def _csv_rows(folder: Path) -> Sample:
    path = folder / "a.csv"
    path.write_text("x\n" + "".join(f"{number}\n" for number in range(COUNT)))
    return Sample(pl.CsvRows(path, {"x": "int64"}, index_dir=folder), _column)


def _growing_files(folder: Path) -> Sample:
    lines = (json.dumps({"x": number}) + "\n" for number in range(COUNT))
    (folder / "a.jsonl").write_text("".join(lines))
    return Sample(pl.GrowingFiles(folder, complete=True), _column)


def _npy_rows(folder: Path) -> Sample:
    np.save(folder / "x.npy", np.arange(COUNT))
    return Sample(pl.NpyRows(x=folder / "x.npy"), _column)


def _parquet_rows(folder: Path) -> Sample:
    pq.write_table(pa.table({"x": range(COUNT)}), folder / "a.parquet", row_group_size=6)
    return Sample(pl.ParquetRows(folder / "a.parquet"), _column)


def _sql_table(folder: Path) -> Sample:
    url = f"sqlite:///{folder / 'a.db'}"
    engine = sql.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sql.text("create table t (x integer primary key)"))
        for number in range(COUNT):
            connection.execute(sql.text(f"insert into t values ({number})"))
    engine.dispose()
    return Sample(pl.SqlTable(url, "t", "x", {"x": "int64"}), _column)


def _tar_rows(folder: Path) -> Sample:
    files = [(f"{number:02}.n", b"%d" % number) for number in range(COUNT)]
    paths = write(folder / "a.tar", files)
    return Sample(
        pl.TarRows(paths),
        lambda batch: [int(each) for each in batch["n"]],
        pl.TarRows(paths, parse=dict),
    )


def _tensor_rows(_folder: Path) -> Sample:
    return Sample(pl.TensorRows(x=torch.arange(COUNT)), _column)


def _text_lines(folder: Path) -> Sample:
    path = folder / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(COUNT)))
    return Sample(
        pl.TextLines(path, index_dir=folder),
        lambda batch: [int(each) for each in batch],
        pl.TextLines(path, int, index_dir=folder),
    )


SAMPLES = {
    "csv_rows": _csv_rows,
    "growing_files": _growing_files,
    "npy_rows": _npy_rows,
    "parquet_rows": _parquet_rows,
    "sql_table": _sql_table,
    "tar_rows": _tar_rows,
    "tensor_rows": _tensor_rows,
    "text_lines": _text_lines,
}
"""By module in `paceline.runtime.data.sources`."""


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    return SAMPLES[request.param](tmp_path)


def test_every_source_has_a_sample_and_is_public_by_its_name(tmp_path: Path) -> None:
    modules = {module.name for module in iter_modules(sources.__path__)}
    assert modules == SAMPLES.keys()
    for module in sorted(modules):
        name = module.title().replace("_", "")
        (tmp_path / module).mkdir()
        assert type(SAMPLES[module](tmp_path / module).source) is getattr(pl, name)
        assert name in dir(pl)


def test_a_source_has_what_the_port_asks_for(sample: Sample) -> None:
    assert isinstance(sample.source, DataSource | StreamSource)
    assert "reads_in_thread" in vars(type(sample.source)), "said by the class itself"


def _feed(source: Any) -> tuple[Feed, tuple[Any, int, int]]:
    is_stream = isinstance(source, StreamSource)
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=None if is_stream else len(source),
        epochs=1,
        batch_size=COUNT,
        shard_size=COUNT,
        shuffle=False,
        seed=0,
    )
    return feed, (source.partitions()[0] if is_stream else 0, 0, COUNT)


def _read(source: Any, num_workers: int) -> tuple[Any, Any]:
    feed, whole = _feed(source)
    loader = loader_of(source, feed, num_workers=num_workers, collate_fn=None)
    try:
        loader.submit("all", (whole,))
        return type(loader), loader.get()[1]
    finally:
        loader.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_has_each_record_where_it_belongs(sample: Sample, num_workers: int) -> None:
    kind, batch = _read(sample.source, num_workers)
    at_once = type(sample.source) is pl.TensorRows and not num_workers
    assert kind is (InlineLoader if at_once else Loader), "or in a thread, or by loader processes"
    assert sample.numbers(batch) == [*range(COUNT)]


def test_a_pickled_copy_reads_the_same(sample: Sample) -> None:
    _read(sample.source, 0)
    _, batch = _read(pickle.loads(pickle.dumps(sample.source)), 0)
    assert sample.numbers(batch) == [*range(COUNT)]


def test_what_calls_a_function_of_the_users_is_read_between_steps(sample: Sample) -> None:
    if sample.drawing is None:
        pytest.skip("it takes no function")
    assert not reads_in_thread(sample.drawing)
    assert _read(sample.drawing, 0)[0] is InlineLoader


def test_a_derived_class_must_say_it_again(sample: Sample) -> None:
    derived = type("Derived", (type(sample.source),), {})
    sample.source.__class__ = derived
    assert not reads_in_thread(sample.source)
    derived.reads_in_thread = True  # type: ignore[attr-defined]
    assert reads_in_thread(sample.source)


def test_a_record_that_does_not_exist_is_an_index_error(sample: Sample) -> None:
    if isinstance(sample.source, StreamSource):
        pytest.skip("its records are read by ranges")
    with pytest.raises(IndexError):
        sample.source[COUNT]


def test_what_files_hold_is_compared_among_machines(sample: Sample) -> None:
    assert bool(contents_of(sample.source)) == isinstance(sample.source, OfFiles)
