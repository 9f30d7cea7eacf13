"""A DataLoader in place of a dataset: its records, in its order, and what cannot be dealt out."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline as pl
from paceline.base.errors import ConfigError

DATA = TensorDataset(torch.arange(10))


class Buckets(Sampler[list[int]]):
    """Batches of one size, the last one smaller."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from [[9, 1, 4], [0, 2, 2], [5]]

    def __len__(self) -> int:
        return 3


class Ragged(Buckets):
    def __iter__(self) -> Iterator[list[int]]:
        yield from [[9, 1], [0, 2, 3], [5]]


class Unlimited(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class Lying(Unlimited):
    def __len__(self) -> int:
        return 7


class Stream(IterableDataset[Any]):
    """Records that are drawn one after the other."""

    def __iter__(self) -> Iterator[Any]:
        yield from (torch.tensor(k) for k in range(7))


class Measured(Stream):
    def __len__(self) -> int:
        return 7


class TooLong(Stream):
    def __len__(self) -> int:
        return 9


def prepared() -> tuple[pl.Job, nn.Module, SGD]:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return job, model, optimizer


def trained(source: Any, passes: int = 1, **named: Any) -> list[list[int]]:
    """The batches of some passes over a source."""
    job, model, optimizer = prepared()
    found = []
    for _ in range(passes):
        for batch in job.batches(source, **named):
            ids = batch[0] if isinstance(batch, list) else batch
            model(ids[:, None].float()).mean().backward()
            optimizer.step()
            found.append(ids.tolist())
    return found


def of_torch(loader: Any, passes: int = 1) -> list[list[int]]:
    return [batch[0].tolist() for _ in range(passes) for batch in loader]


def with_generator(**named: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    torch.rand(2, generator=generator)  # as `random_split` does before
    return DataLoader(DATA, batch_size=4, generator=generator, **named)


def backwards(rows: list[tuple[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack([row[0] for row in reversed(rows)])]


def drawing() -> RandomSampler:
    return RandomSampler(DATA, generator=torch.Generator().manual_seed(4))


def weighted(*, own: bool) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(8) if own else None
    sampler = WeightedRandomSampler(torch.arange(1.0, 11), 12, generator=generator)
    return DataLoader(DATA, batch_size=4, sampler=sampler, generator=generator)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, batch_size=4),
        lambda: DataLoader(DATA, batch_size=4, drop_last=True),
        lambda: DataLoader(DATA, batch_sampler=Buckets()),
        lambda: DataLoader(DATA, batch_sampler=Ragged()),
        lambda: DataLoader(DATA, batch_sampler=Ragged(), collate_fn=backwards),
        lambda: with_generator(shuffle=True),
        lambda: with_generator(shuffle=True, drop_last=True),
        with_generator,
        lambda: weighted(own=True),
        lambda: DataLoader(DATA, batch_size=3, collate_fn=backwards),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(range(9, 0, -1), 2, drop_last=True)),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(drawing(), 4, drop_last=True)),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(drawing(), 4, drop_last=False)),
    ],
)
def test_it_is_read_as_torch_reads_it_pass_after_pass(make: Any) -> None:
    torch.manual_seed(2)
    expected = of_torch(make(), passes=3)
    assert len(expected) > 5
    assert trained(make(), passes=3) == expected


def test_what_draws_from_no_generator_of_its_own_draws_alike_in_all_workers() -> None:
    one, other = (trained(weighted(own=False), passes=2) for _ in range(2))
    assert one == other
    assert one[:3] != one[3:]
    assert [len(batch) for batch in one] == [4, 4, 4] * 2


def test_shuffled_the_records_that_make_no_whole_batch_are_others_in_each_pass() -> None:
    found = trained(DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True), passes=8)
    assert [len(batch) for batch in found] == [4, 4] * 8
    passes = [found[k] + found[k + 1] for k in range(0, 16, 2)]
    assert all(len(set(one)) == 8 for one in passes)
    assert len({frozenset(range(10)) - frozenset(one) for one in passes}) > 1


@pytest.mark.parametrize("make", [Measured, lambda: DataLoader(Measured(), batch_size=3)])
def test_a_stream_of_known_length_is_read_by_position(make: Any) -> None:
    sizes = {} if isinstance(make(), DataLoader) else {"batch_size": 3}
    assert trained(make(), passes=2, **sizes) == [[0, 1, 2], [3, 4, 5], [6]] * 2


def test_a_batch_sampler_of_a_random_sampler_is_shuffled() -> None:
    batches = BatchSampler(RandomSampler(DATA), 4, drop_last=True)
    found = trained(DataLoader(DATA, batch_sampler=batches), passes=4)
    assert [len(batch) for batch in found] == [4, 4] * 4
    assert len({tuple(one) for one in found}) > 4


def test_a_batch_sampler_for_replicas_is_refused() -> None:
    replicas = DistributedSampler(DATA, 2, 0)
    with pytest.raises(ConfigError, match="has a DistributedSampler for 2 replicas"):
        trained(DataLoader(DATA, batch_sampler=BatchSampler(replicas, 4, drop_last=False)))


def test_a_loader_is_evaluated_in_its_own_order() -> None:
    job, _, _ = prepared()
    for shuffle in (False, True):
        loader = DataLoader(DATA, batch_size=3, shuffle=shuffle)
        assert job.evaluate(lambda b: {"id": b[0]}, loader)["id"].tolist() == list(range(10))


def test_the_global_batch_is_that_of_the_batch_in_hand() -> None:
    job, model, optimizer = prepared()
    found = []
    for (ids,) in job.batches(loader := DataLoader(DATA, batch_sampler=Ragged())):
        found.append((len(ids), job.global_batch))
        model(ids[:, None].float()).mean().backward()
        optimizer.step()
    assert found == [(2, 2), (3, 3), (1, 1)]
    with pytest.raises(ConfigError, match=r"give job\.evaluate its dataset, with batch_size=1"):
        job.evaluate(lambda batch: {"id": batch[0]}, loader)


@pytest.mark.parametrize(
    ("source", "named", "message"),
    [
        (DataLoader(DATA, batch_sampler=Ragged()), {"accumulate": 2}, "leave accumulate out"),
        (DataLoader(DATA, batch_sampler=[[1], []]), {}, "makes a batch of no records; give"),
        (DataLoader(DATA, batch_sampler=[[1]] * 100_001), {}, "makes 100,001 batches; give"),
        (
            DataLoader(
                DATA, sampler=RandomSampler(DATA, True, 10**10, generator=torch.Generator())
            ),
            {},
            "10,000,000,000 entries and a generator; .* leave the generator out",
        ),
        (DataLoader(DATA, sampler=Unlimited()), {}, "a Unlimited without __len__"),
        (DataLoader(DATA, sampler=Lying()), {}, "has 7 entries, and yields 8 or more"),
        (DataLoader(DATA, batch_size=None), {}, "batch_size=None"),
        (
            DataLoader(DATA, worker_init_fn=print, num_workers=1),
            {},
            "has a worker_init_fn; leave it out",
        ),
        (DataLoader(Stream(), batch_size=2), {}, "an IterableDataset without __len__"),
        (DataLoader(Measured(), num_workers=2), {}, "say num_workers=0"),
        (Stream(), {"batch_size": 2}, "an IterableDataset without __len__"),
        (TooLong(), {"batch_size": 3}, "record 7 of a TooLong was asked for"),
        (DataLoader(DATA, batch_size=4), {"batch_size": 5}, "batch_size=5 was given with a Data"),
        (DataLoader(DATA), {"num_workers": 2}, r"\(num_workers: 0\); leave num_workers out"),
        (weighted(own=True), {"epochs": 2}, "call job.batches once for each epoch"),
        (
            DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
            {},
            "a DistributedSampler for 2 replicas; leave it out",
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(
    source: Any, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(source, **named)


def test_a_function_for_loader_processes_is_none_of_ours_without_them() -> None:
    assert len(trained(DataLoader(DATA, batch_size=5, worker_init_fn=print))) == 2


OF_TORCHDATA = {"__module__": "torchdata.stateful_dataloader.sampler"}


class StatefulDataLoader(DataLoader[Any]):
    """As torchdata's: with samplers of its own, which draw their seed when they are made."""

    def __init__(self, seed: int) -> None:
        shuffled = type("RandomSampler", (RandomSampler,), OF_TORCHDATA)
        grouped = type("BatchSampler", (BatchSampler,), OF_TORCHDATA)
        sampler = shuffled(DATA, generator=torch.Generator().manual_seed(seed))
        super().__init__(DATA, batch_sampler=grouped(sampler, 4, drop_last=False))
        self.__dict__.update(batch_size=4, sampler=sampler)


def test_a_stateful_loader_is_shuffled_by_the_job() -> None:
    """Its sampler has a seed of its own, which differs in each worker if it is made early."""
    first, second = (trained(StatefulDataLoader(seed)) for seed in (1, 2))
    assert first == second
    assert sorted(one for batch in first for one in batch) == list(range(10))
    assert [len(batch) for batch in first] == [4, 4, 2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_of_more_records_than_a_script_ever_reads_costs_nothing(num_workers: int) -> None:
    sampler = RandomSampler(DATA, replacement=True, num_samples=10**10)
    loader = DataLoader(DATA, batch_size=4, sampler=sampler, num_workers=num_workers)

    def read(num: int) -> list[int]:
        (job, model, optimizer), found = prepared(), list[int]()
        for (ids,) in job.batches(loader):
            model(ids[:, None].float()).mean().backward()
            optimizer.step()
            found += ids.tolist()
            if len(found) == num:
                break
        return found

    first = read(20)
    assert set(first) <= set(range(10))
    assert read(40) != first  # the next pass has another order
    loader = DataLoader(DATA, batch_size=4, sampler=sampler, num_workers=num_workers)
    assert read(40)[:20] == first
