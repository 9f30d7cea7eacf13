"""Which records of a dataset are read, as workers compare it."""

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from paceline.runtime.data.listed import Listed, part_of_records

ROWS = TensorDataset(torch.arange(8))


def test_a_dataset_of_which_all_is_read_has_no_part() -> None:
    assert part_of_records(ROWS) == part_of_records([1, 2, 3]) == ""
    assert part_of_records(Listed(ROWS, [1, 0])) == ""


def test_a_part_is_its_numbers_whatever_holds_them() -> None:
    numbers = [4, 1, 3]
    kinds = [numbers, tuple(numbers), np.array(numbers, np.int32), torch.tensor(numbers)]
    assert len({part_of_records(Subset(ROWS, kind)) for kind in kinds}) == 1  # type: ignore[arg-type]
    assert part_of_records(Subset(ROWS, range(3))) == part_of_records(Subset(ROWS, [0, 1, 2]))


def test_other_records_or_another_order_are_another_part() -> None:
    parts = [
        Subset(ROWS, [4, 1, 3]),
        Subset(ROWS, [1, 4, 3]),
        Subset(ROWS, [4, 1]),
        Subset(Subset(ROWS, [7, 6, 5, 4, 3, 2, 1, 0]), [4, 1, 3]),
        Listed(Subset(ROWS, [0, 1, 2]), [2, 1, 0]),
    ]
    assert len({part_of_records(one) for one in parts}) == len(parts)


def test_records_that_are_found_by_names_are_not_compared() -> None:
    assert part_of_records(Subset({"a": 1}, ["a"])) == ""  # type: ignore[arg-type]
    of_names = Subset({(1,): 1, (2, 3): 2}, [(1,), (2, 3)])  # type: ignore[arg-type]
    assert part_of_records(of_names) == ""


def test_parts_that_are_put_together_are_compared() -> None:
    first, second = Subset(ROWS, [4, 1, 3]), Subset(ROWS, [0, 2, 5])
    whole = [
        ConcatDataset([first, second]),
        ConcatDataset([second, first]),
        ConcatDataset([first, ROWS]),
        ConcatDataset([ROWS, first]),
        Subset(ConcatDataset([first, second]), [5, 0, 1]),
        ConcatDataset([Listed(first, [0, 1, 2]), ROWS, ROWS]),
    ]
    assert len({part_of_records(one) for one in whole}) == len(whole)
    assert part_of_records(ConcatDataset([ROWS, ROWS])) == ""


def test_a_range_need_not_fit_into_memory() -> None:
    parts = [range(10**15), range(1, 10**15), range(0, 10**15, 2)]
    assert len({part_of_records(Subset(ROWS, one)) for one in parts}) == len(parts)
