"""Samplers with a generator of their own: a life that comes late draws for the passes of others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from paceline.runtime.data.torch_loader import DEFAULTS, Loaders, ReadingLoop
from paceline.wire.spec import JobSpec

COUNT = 12
LOOP = ReadingLoop("job.batches", JobSpec(script="train.py"), (0, -1, 0))


class Shuffled(Sampler[int]):
    """An order for each pass, of its own generator."""

    def __init__(self, *, of_torch: bool) -> None:
        self.torch, self.numpy = torch.Generator().manual_seed(3), np.random.default_rng(3)
        self.of_torch = of_torch

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        if self.of_torch:
            yield from torch.randperm(COUNT, generator=self.torch).tolist()
        else:
            yield from map(int, self.numpy.permutation(COUNT))


def order_of(loaders: Loaders, loader: DataLoader[Any], turn: int | None = None) -> list[int]:
    read = loaders.read(DEFAULTS._replace(dataset=loader), LOOP._replace(turn=turn))
    return [int(read.dataset[number]) for number in range(COUNT)]


@pytest.mark.parametrize("of_torch", [True, False])
def test_a_late_life_reads_the_order_of_the_pass_that_the_others_are_in(*, of_torch: bool) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(range(COUNT), batch_size=4, sampler=Shuffled(of_torch=of_torch))  # type: ignore[arg-type]

    first, early = loader(), Loaders()
    passes = [order_of(early, first) for _ in range(4)]
    assert passes[0] != passes[1]
    second, late = loader(), Loaders()
    assert order_of(late, second, turn=2) == passes[2]
    assert order_of(late, second) == passes[3]


def test_a_pass_that_was_not_the_one_looked_for_is_drawn_again() -> None:
    loader = DataLoader(range(COUNT), batch_size=4, sampler=Shuffled(of_torch=True))  # type: ignore[arg-type]
    loaders, before = Loaders(), Loaders()
    expected = order_of(before, DataLoader(range(COUNT), sampler=Shuffled(of_torch=True)))  # type: ignore[arg-type]
    order_of(loaders, loader, turn=5)
    loaders.turn_back(loader, -1)
    assert order_of(loaders, loader) == expected
