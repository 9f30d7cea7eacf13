"""Datasets that are only iterated, read by position: rewound, counted, drawn from alike."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.runtime.data import iterated
from paceline.runtime.data.digests import digest_of
from paceline.runtime.data.iterated import PIECE, STRIDE, Iterated
from paceline.runtime.data.listed import order_of_records
from paceline.runtime.data.torch_loader import DEFAULTS, Loaders, ReadingLoop
from paceline.runtime.process.asking import underway_at
from paceline.wire.messages.feeds import Feed, Underway
from paceline.wire.messages.node import PlaceIs
from paceline.wire.spec import JobSpec
from tests.unit.data.test_torch_loader import trained


class Numbers(IterableDataset[Any]):
    """Numbers; goes on where its state says, and by itself from where it was left."""

    def __init__(self, count: int = 1000) -> None:
        self.count, self.at, self.read = count, 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.count:
            self.at, self.read = self.at + 1, self.read + 1
            yield self.record(self.at - 1)

    def record(self, index: int) -> Any:
        return index

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "rng": np.random.default_rng(0).bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class OfEpochs(Numbers):
    """Its epoch is a part of its state, and shuffles and shortens it."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.at = epoch, epoch

    def record(self, index: int) -> Any:
        return (index + 7 * self.epoch) % self.count

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class AsHuggingFace(Numbers):
    """Each iteration begins at the first record, or where a loaded state says.

    Its state tells how far the last iteration has come.
    """

    epoch = 0
    begins: dict[str, Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        begins = self.begins if self.begins and self.begins["epoch"] == self.epoch else None
        self.at = begins["at"] if begins else 0
        return super().__iter__()

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begins = state


class Unsized(IterableDataset[Any]):
    """Without a state."""

    def __init__(self, count: int = 1000, says: int | None = None) -> None:
        self.count, self.says, self.rng = count, says, np.random.default_rng(5)

    def __len__(self) -> int:
        return self.count if self.says is None else self.says

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.count))


class Unseeded(Unsized):
    def __iter__(self) -> Iterator[Any]:
        return iter(self.rng.permutation(self.count).tolist())


class Shuffling(Unsized):
    def __iter__(self) -> Iterator[Any]:
        order = list(range(self.count))
        random.shuffle(order)
        return iter(order)


class Noise(Numbers):
    def record(self, index: int) -> Any:
        return int(np.random.default_rng().integers(1 << 30))


class Drawing(Numbers):
    def record(self, index: int) -> Any:
        return random.random(), np.random.random(), torch.rand(()).item()


class Same(Numbers):
    def record(self, index: int) -> Any:
        return index // 500


class WithArguments(Unsized):
    """As some libraries have it; its length does for us."""

    def state_dict(self, num_samples: int) -> Any:
        return num_samples

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError(state)


class Itself(Unsized):
    """Its own iterator."""

    at = 0

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == self.count:
            raise StopIteration
        self.at += 1
        return self.at - 1


@dataclass(eq=True)
class Unhashable(Unsized):
    """`dataclass` takes the hash away."""

    count: int = 70
    says: int | None = None


def opened(dataset: Any, job: Underway | None = None, **named: Any) -> Iterated:
    read = Iterated(dataset, step=named.pop("step", 16), **named)
    read.open(lambda: job)
    return read


@pytest.mark.parametrize("kind", [Numbers, OfEpochs, AsHuggingFace, Same, Unsized, Itself])
def test_it_is_read_at_any_position(kind: Any) -> None:
    read = opened(kind())
    assert len(read) == 1000
    places = (0, 500, 7, 999, 998, 3, 640)
    expected = [one // 500 if kind is Same else one for one in places]
    assert [read[k] for k in places] == expected
    assert len(read._pieces) < 5


def test_what_was_just_read_stays_and_what_is_passed_over_is_said() -> None:
    dataset, passed = Numbers(), list[float]()
    read = opened(dataset, Underway(1000, 1, 0), step=64, passed=passed.append)
    assert read[999] == 999
    assert len(passed) == 999 // PIECE - 1
    before = dataset.read
    assert [read[k] for k in range(999 - 2 * 64, 999)] == list(range(999 - 2 * 64, 999))
    assert dataset.read == before


def test_what_is_drawn_follows_from_the_position_and_leaves_the_script_alone() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    before, expected = torch.get_rng_state(), np.random.random_sample()
    np.random.seed(3)
    one, other = opened(Drawing(), seed=5), opened(Drawing(), seed=5)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.random_sample() == expected
    assert [one[k] for k in range(300)][200:] == [other[k] for k in range(200, 300)]
    assert len({one[k] for k in range(300)}) == 300
    assert opened(Drawing(), seed=6)[0] != one[0]
    assert other[STRIDE] != other[0]


def test_a_shuffle_by_the_process_generators_is_the_same_in_all_workers_and_another_in_each_epoch() -> (
    None
):
    one, other = opened(Shuffling(), seed=5), opened(Shuffling(), seed=5)
    whole = [one[k] for k in range(1000)]
    assert sorted(whole) == list(range(1000))
    assert other[700] == whole[700]
    assert [one[STRIDE + k] for k in range(1000)] != whole


def test_records_that_are_others_when_they_are_read_again_are_refused() -> None:
    with pytest.raises(ConfigError, match="began with other records; it must yield the same"):
        opened(Noise())
    assert opened(Numbers()).beginning == opened(AsHuggingFace()).beginning != ""
    read = opened(Unseeded())  # by its length, as before: nothing of it is compared
    assert read[900] != read[1]
    assert read.beginning == ""


@pytest.mark.parametrize("kind", [OfEpochs, AsHuggingFace])
def test_the_epoch_that_a_script_sets_holds_in_its_loop(kind: Any) -> None:
    dataset = kind(100)
    next(iter(dataset))
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        read = opened(dataset)
        first = epoch if kind is OfEpochs else 0
        expected = [(k + 7 * first) % 100 for k in range(first, 100)]
        assert [read[k] for k in range(len(read))] == expected
        assert read[3] == expected[3]
        read.close()


def test_a_loop_that_is_left_or_never_run_does_not_move_the_next_one() -> None:
    dataset = Numbers(100)
    for _ in range(2):
        read = opened(dataset)
        assert read[40] == 40
        del read
    assert dataset.at == 0
    read = opened(dataset)
    assert [read[k] for k in range(40)] == list(range(40))
    with pytest.raises(ConfigError, match="given to two loops at the same time"):
        opened(dataset)
    read.close()
    assert opened(dataset)[0] == 0


@pytest.mark.parametrize("kind", [Unsized, Itself, AsHuggingFace])
def test_two_readers_of_one_dataset_do_not_disturb_each_other(kind: Any) -> None:
    dataset = kind()
    one, other = opened(dataset), opened(dataset)
    places = range(0, 1000, 90)
    assert [(one[k], other[999 - k]) for k in places] == [(k, 999 - k) for k in places]


def test_another_length_than_was_said_or_counted() -> None:
    short = opened(Unsized(90, says=100))
    with pytest.raises(ConfigError, match="record 95 of a Unsized was asked for, whose length is"):
        short[95]
    longer = opened(Unsized(100, says=96))
    assert [longer[k] for k in range(96)] == list(range(96))
    grows = Numbers(100)
    read = opened(grows)
    grows.count = 120
    with pytest.raises(ConfigError, match="more records than the 100 that were counted"):
        [read[STRIDE + k] for k in range(100)]
    grows.count = 90
    with pytest.raises(ConfigError, match="it ended before; it must yield the same records"):
        read[2 * STRIDE + 95]


def test_what_has_no_end_is_not_counted_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(iterated, "COUNT_WITHIN_S", 0.05)
    monkeypatch.setattr(iterated, "SAY_AFTER_S", 0.01)
    caplog.set_level("INFO")
    with pytest.raises(ConfigError, match=r"no end\. Give it a __len__: so many of its records"):
        opened(Numbers(1 << 40))
    assert "records_are_counted dataset=Numbers so_far=" in caplog.text


def test_what_a_record_holds_is_compared_and_not_where_it_lies() -> None:
    def record(number: int = 7) -> Any:
        held = {"a": torch.arange(3), "b": [np.ones(2), None, "x"], "c": (1.5, b"y", object())}
        of_class = Unhashable(number)
        return [held, np.array([{"d": 1}], object), torch.ones(2, dtype=torch.bfloat16), of_class]

    assert digest_of(record()) == digest_of(record())
    assert digest_of(record(8)) != digest_of(record())
    assert digest_of([torch.arange(3)]) != digest_of([torch.arange(3).float()])
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])


class Cyclic(list[Any]):
    def __init__(self) -> None:
        self.append(self)


def test_what_cannot_be_looked_into_has_a_type() -> None:
    strange = [Cyclic(), torch.ones(2, dtype=torch.complex64).conj(), Unhashable, {1, 2}]
    for one in strange:
        assert digest_of(one) == digest_of(one)
    assert digest_of([strange[2]]) != digest_of([strange[3]])


def test_what_a_collate_fn_changes_is_read_as_it_was() -> None:
    class Rows(Numbers):
        def record(self, index: int) -> Any:
            return {"x": torch.full((1,), float(index + 1))}

    def halved(rows: list[Any]) -> torch.Tensor:
        noise = 0.0 * torch.rand(())  # what draws is read a second time
        return torch.stack([row.pop("x").div_(2)[0] + noise for row in rows])

    loader = DataLoader(Rows(6), batch_size=3, collate_fn=halved)
    assert trained(loader, passes=2) == [[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]] * 2


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", [Numbers, OfEpochs, AsHuggingFace, Unhashable, WithArguments])
def test_a_script_alone_trains_on_each_record_once(kind: Any, drop_last: bool) -> None:
    loader = DataLoader(kind(70), batch_size=32, drop_last=drop_last, collate_fn=torch.tensor)
    batches = [list(range(32)), list(range(32, 64)), list(range(64, 70))]
    assert trained(loader, passes=2) == batches[: 3 - drop_last] * 2
    assert trained(Numbers(5), batch_size=3, epochs=2) == [[0, 1, 2], [3, 4]] * 2


def test_one_without_a_length_is_evaluated_too() -> None:
    job = pl.init()
    model = torch.nn.Linear(1, 1)
    model, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dataset = Numbers(70)
    for _ in range(2):
        values = job.evaluate(lambda batch: {"id": batch}, dataset, batch_size=32)
        assert values["id"].tolist() == list(range(70))
    with pytest.raises(ConfigError, match="the dataset is empty"):
        job.evaluate(lambda batch: {"id": batch}, Numbers(0))


def test_what_others_have_counted_is_not_counted_again() -> None:
    feed = Feed(
        feed=3,
        purpose="train",
        num_samples=70,
        epochs=1,
        batch_size=8,
        shard_size=8,
        shuffle=False,
        seed=0,
        place=(0, 2, 0),
    )
    found = PlaceIs(inc=Inc(1), begun=(feed,), at=(50,))
    assert underway_at((0, 3, 0), found) is None
    job = underway_at((0, 2, 0), found)
    assert job == (70, 1, 50)
    dataset = Numbers(75)
    read = opened(dataset, job)
    assert len(read) == 70
    # Two times one piece, to know how it goes on; then those before position 50.
    assert dataset.read == 2 * PIECE + 4 * PIECE
    assert [read[k] for k in range(48, 70)] == list(range(48, 70))
    assert dataset.read == 6 * PIECE + 6


def test_what_is_over_is_not_read_and_who_was_slower_passes_over_too() -> None:
    dataset = Numbers(70)
    assert len(opened(dataset, Underway(70, 2, 140))) == 70
    assert dataset.read == 0
    found = iter([None, Underway(64, 1, 40)])
    read = Iterated(dataset, step=16)
    read.open(lambda: next(found))
    assert 2 in read._pieces
    assert len(read) == 70


def test_a_worker_that_is_late_leaves_out_the_same_rest() -> None:
    loop = ReadingLoop("job.batches", JobSpec(script="train.py"), (0, 2, 0))
    given = [
        DEFAULTS._replace(dataset=DataLoader(Numbers(70), batch_size=16, drop_last=True))
        for _ in range(2)
    ]
    first = Loaders().read(given[0], loop)
    late = Loaders().read(given[1], loop._replace(underway=lambda: Underway(64, 1, 20)))
    assert len(first.dataset) == len(late.dataset) == 64
    assert order_of_records(first.dataset) == order_of_records(late.dataset)
    assert [first.dataset[k] for k in range(64)] == [late.dataset[k] for k in range(64)]


def test_what_is_read_after_all_when_the_feed_was_over() -> None:
    dataset = Numbers(200)
    read = opened(dataset, Underway(200, 2, 400))
    assert [read[k] for k in (100, 115, STRIDE, STRIDE + 2, 3)] == [100, 115, 0, 2, 3]
    read.close()
    assert dataset.at == 0


class Measured(Numbers):
    """With a length, too; goes on where it was left all the same."""

    def __len__(self) -> int:
        return self.count


def test_one_with_a_length_and_a_state_is_rewound_too() -> None:
    dataset = Measured(1000)
    read = opened(dataset)
    assert [read[k] for k in (200, 48, 199)] == [200, 48, 199]
    read.close()
    assert opened(dataset)[0] == 0


def test_a_dataset_that_fails_while_its_state_is_looked_at_is_where_it_was() -> None:
    class Failing(Numbers):
        def record(self, index: int) -> Any:
            if index == 20:
                raise OSError("gone")
            return index

    dataset = Failing(100)
    with pytest.raises(OSError, match="gone"):
        opened(dataset)
    assert dataset.at == 0


def test_a_state_that_is_none_is_not_loaded() -> None:
    class Stateless(Noise):
        def state_dict(self) -> Any:
            return None

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError(state)

    with pytest.raises(ConfigError, match="began with other records"):
        opened(Stateless())


def test_a_record_that_cannot_be_copied_is_read_again() -> None:
    class Locks(Unsized):
        def __iter__(self) -> Iterator[Any]:
            return ({"lock": threading.Lock(), "at": k} for k in range(self.count))

    read = opened(Locks(40), copies=True)
    first = [read[k].pop("at") for k in range(40)]
    assert first == [read[k].pop("at") for k in range(40)] == list(range(40))


def test_the_order_does_not_depend_on_the_size_of_a_step() -> None:
    reads = [opened(Shuffling(200), step=step, seed=3) for step in (4, 8, 12, 64)]
    assert len({tuple(read[k] for k in range(200)) for read in reads}) == 1


def test_a_missing_batch_size_is_said_before_records_are_counted() -> None:
    job = pl.init()
    model = torch.nn.Linear(1, 1)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dataset = Numbers(70)
    with pytest.raises(ConfigError, match=r"batch_size"):
        job.batches(dataset)
    assert dataset.read == 0
