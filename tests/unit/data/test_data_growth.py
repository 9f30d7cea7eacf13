"""How far a source of unknown length can be read: seen by a thread, told without waiting."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.base.errors import ConfigError
from paceline.runtime.data import growth
from paceline.runtime.data.growth import CountGrowth, StreamGrowth, is_long
from paceline.runtime.data.sources.text_lines import TextLines
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script import feed_requests
from paceline.runtime.script.job import Job
from paceline.wire.spec import DataSpec, JobSpec

LIMIT_S = 20.0


class Lists:
    """A stream in memory, that grows when it is told to."""

    def __init__(self, **records: list[Any]) -> None:
        self.records = records
        self.done = False
        self.reads: list[tuple[str, int, int]] = []

    def partitions(self) -> list[str]:
        return list(self.records)

    def end(self, partition: str) -> int | None:
        return len(self.records[partition]) or None

    def read(self, partition: str, start: int, stop: int) -> list[Any]:
        self.reads.append((partition, start, stop))
        return self.records[partition][start:stop]

    def finished(self) -> bool:
        return self.done


def seen(one: StreamGrowth, holds: Callable[[dict[str, int], bool], bool]) -> None:
    deadline = threading.Event()
    timer = threading.Timer(LIMIT_S, deadline.set)
    timer.start()
    while not holds(*one.look()):  # type: ignore[arg-type]
        assert not deadline.is_set()
        one.wait()
    timer.cancel()
    timer.join()


# ---------------------------------------------------------------------------- looking


def test_growth_is_seen_until_the_source_is_finished() -> None:
    source = Lists(a=[1, 2], b=[])
    with StreamGrowth(source) as found:
        seen(found, lambda ends, finished: ends == {"a": 2} and not finished)
        source.records["b"] = [1, 2, 3]
        source.records["c"] = [1]
        seen(found, lambda ends, finished: ends == {"a": 2, "b": 3, "c": 1} and not finished)
        source.done = True
        seen(found, lambda _, finished: finished)
    assert not found._thread.is_alive()


def test_what_is_added_just_before_the_end_is_seen_with_it() -> None:
    class Late(Lists):
        def partitions(self) -> list[str]:
            # Between the question whether it is finished and the look at what there is.
            if not self.done:
                self.records["a"].append(0)
                self.done = len(self.records["a"]) == 4
            return super().partitions()

    with StreamGrowth(Late(a=[])) as found:
        seen(found, lambda _, finished: finished)
        assert found.look() == ({"a": 4}, True)


def test_an_error_of_the_source_is_raised_where_it_is_looked_at() -> None:
    class Broken(Lists):
        def end(self, partition: str) -> int | None:
            raise OSError("the bucket is gone")

    with StreamGrowth(Broken(a=[])) as found, pytest.raises(OSError, match="the bucket is gone"):
        seen(found, lambda _, finished: finished)


def test_of_lines_being_counted_only_whole_windows_can_be_read() -> None:
    class Counted:
        known: tuple[int, bool] = 25, False

        def num_known(self) -> tuple[int, bool]:
            return self.known

        def wait_known(self, count: int) -> tuple[int, bool]:
            assert count == 30
            self.known = 34, True
            return self.known

        def progress_bytes(self) -> tuple[int, int]:
            return 0, 0

    found = CountGrowth(Counted(), 10)
    assert found.look() == ({"": 20}, False)
    found.wait()
    assert found.look() == ({"": 34}, True)


def test_what_is_long_is_a_matter_of_size_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_text("a\nb\n")
    lines = TextLines(tmp_path / "t")
    assert not is_long(lines)
    monkeypatch.setattr(growth, "COUNTED_AT_ONCE_BYTES", 3)
    assert is_long(lines)
    assert lines.wait_len() == 2
    assert is_long(lines)
    assert not is_long([1, 2])


# ---------------------------------------------------------------------------- a job of one process


class Waiting(Alone):
    """Needs the length, as a synchronous job on servers does."""

    takes_growth = False


def batches_of(trainer: Alone, dataset: Any, **options: Any) -> list[list[int]]:
    """The records of each batch."""
    job = Job(OnServers(trainer))
    model = nn.Linear(1, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    found = []
    for batch in job.batches(dataset, **options):
        model(torch.zeros(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(batch.tolist())
    return found


@pytest.mark.parametrize("num_lines", [1, 95, 100, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_lines_being_counted_come_in_the_order_of_counted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lines: int, shuffle: bool
) -> None:
    monkeypatch.setattr(growth, "COUNTED_AT_ONCE_BYTES", 0)
    monkeypatch.setattr(feed_requests, "WINDOW_SHARDS", 4)
    path = tmp_path / "lines"
    path.write_text("".join(f"{i}\n" for i in range(num_lines)))
    options = {"batch_size": 30, "epochs": 3, "shuffle": shuffle}
    spec = JobSpec(script="x", data=DataSpec(shard_size=10))
    growing = batches_of(Alone(spec), TextLines(path, int), **options)
    counted = batches_of(Waiting(spec), TextLines(path, int), **options)
    assert growing == counted
    records = np.concatenate(growing)
    assert np.array_equal(np.sort(records), np.repeat(np.arange(num_lines), 3))
    if shuffle and num_lines == 1000:
        assert max(growing[0]) < 40  # one window of 4 shards
        assert growing[0] != sorted(growing[0])


def test_a_stream_is_read_as_it_comes_in_whole_batches() -> None:
    source = Lists(a=[0, 1, 2], b=[10, 11])

    class Grows(Alone):
        def push(self, *args: Any) -> None:
            super().push(*args)
            source.records["a"] = [0, 1, 2, 3, 4, 5, 6]
            source.records["c"] = [20]
            source.done = True

    trainer = Grows(JobSpec(script="x"))
    assert batches_of(trainer, source, batch_size=4, epochs=2) == [
        [0, 1, 2, 10],
        [3, 4, 5, 6],
        [11, 20],
        *([0, 1, 2, 3], [4, 5, 6, 10], [11, 20]),
    ]
    assert source.reads[:2] == [("a", 0, 3), ("b", 0, 1)]


def test_a_finished_stream_without_a_record_gives_no_batch() -> None:
    source = Lists(a=[])
    source.done = True
    assert batches_of(Alone(JobSpec(script="x")), source, batch_size=4, epochs=2) == []


@pytest.mark.refuses(form="stream", strategy="ps bsp")
def test_a_stream_is_refused_where_each_step_is_a_slice_of_a_known_order() -> None:
    with pytest.raises(ConfigError, match="run the job with --mode asp or --mode ssp"):
        batches_of(Waiting(JobSpec(script="x")), Lists(a=[]), batch_size=4)
