"""How much a step works on, by the batches of torch's DataLoader."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paceline.runtime.probe.amounts import BatchAmounts, largest


@pytest.mark.parametrize(
    ("batch", "numbers"),
    [
        (torch.ones(4, 3), 12),
        ([torch.ones(4, 3), torch.ones(4)], 12),
        ({"input_ids": torch.ones(2, 7), "labels": torch.ones(2)}, 14),
        (UserDict(input_ids=torch.ones(2, 7)), 14),
        (("text", 3, [torch.ones(5)]), 5),
        ("text", 0),
        ([], 0),
        ([[[[torch.ones(5)]]]], 0),
    ],
)
def test_the_largest_tensor_counts(batch: Any, numbers: int) -> None:
    assert largest(batch) == numbers


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_counted_as_the_script_takes_them(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    amounts = BatchAmounts()
    amounts.install()
    batches = iter(DataLoader(torch.ones(10, 3), batch_size=4, num_workers=num_workers))  # type: ignore[arg-type]
    taken = []
    for _ in batches:
        taken.append(amounts.take())
    assert taken == [12, 12, 6]
    assert amounts.take() == 0
