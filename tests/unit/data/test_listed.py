"""Which records of a dataset are read, as workers compare it."""

import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, RandomSampler, Sampler, Subset, TensorDataset

from paceline.base.errors import ConfigError
from paceline.runtime.data import drawn
from paceline.runtime.data.drawn import DrawnOrder
from paceline.runtime.data.listed import Listed, order_of_records, part_of_records
from paceline.runtime.data.walks import IntArray

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


class Drawing(Sampler[int]):
    """Draws from all generators of the process; as many as it says, or fewer."""

    def __init__(self, num: int, yields: int | None = None) -> None:
        self.num, self.yields = num, num if yields is None else yields

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.yields):
            yield random.randrange(4) + int(torch.randint(4, ()))


def places(*numbers: int) -> IntArray:
    return np.asarray(numbers)


def test_a_sampler_that_is_read_on_the_way_is_the_same_wherever_and_however_often_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawn, "BLOCK", 4)
    monkeypatch.setattr(drawn, "MOST_BLOCKS", 2)
    whole = DrawnOrder(Drawing(30), seed=3)[np.arange(30)]
    random.seed(1)
    outside = random.getstate()
    order = DrawnOrder(Drawing(30), seed=3)
    for asked in (places(0, 1, 2), places(17, 5, 29), places(3, 28, 0)):
        assert order[asked].tolist() == whole[asked].tolist()
    assert pickle.loads(pickle.dumps(order))[places(9)].tolist() == [whole[9]]
    assert order.first(10)[places(9)].tolist() == [whole[9]]
    assert len(order.first(10)) == 10
    assert random.getstate() == outside
    assert DrawnOrder(Drawing(30), seed=4)[np.arange(30)].tolist() != whole.tolist()


def test_a_sampler_of_more_entries_than_fit_into_memory_is_compared_by_its_beginning() -> None:
    num = int(1e10)
    orders = [DrawnOrder(RandomSampler(ROWS, True, num), seed) for seed in (1, 1, 2)]
    first, again, other = (order_of_records(Listed(ROWS, one)) for one in orders)
    assert first == again != other
    assert len(Listed(ROWS, orders[0])) == num
    assert Listed(ROWS, orders[0])[3] == ROWS[int(orders[0][places(3)][0])]


def test_a_sampler_that_ends_before_its_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="says that it has 6 entries, and yields 5"):
        DrawnOrder(Drawing(6, yields=5), seed=1)[places(0)]
