"""Passes of validation: matchings that cover every link, as few as the reference says."""

import itertools

import pytest

from paceline.features.failslow.policy.passes import (
    Hop,
    ring_passes,
    share_passes,
    tree_of,
    tree_passes,
)


def assert_matchings(passes: list[list[Hop]]) -> None:
    assert all(passes)
    for one in passes:
        ranks = list(itertools.chain.from_iterable(one))
        assert len(set(ranks)) == len(ranks)


@pytest.mark.parametrize("size", range(2, 65))
def test_a_ring_needs_two_passes_or_three(size: int) -> None:
    ranks = [3 * rank + 1 for rank in range(size)]
    passes = ring_passes(ranks)
    assert_matchings(passes)
    assert len(passes) == 2 + size % 2
    hops = list(itertools.chain.from_iterable(passes))
    expected = {(ranks[place], ranks[(place + 1) % size]) for place in range(size)}
    assert len(hops) == len(expected)
    assert set(hops) == expected


@pytest.mark.parametrize("size", range(2, 65))
def test_a_tree_needs_at_most_four_passes(size: int) -> None:
    parents = tree_of(range(10, 10 + size))
    passes = tree_passes(parents)
    assert_matchings(passes)
    assert len(passes) <= 4
    hops = list(itertools.chain.from_iterable(passes))
    expected = {(child, parent) for child, parent in parents.items() if parent is not None}
    assert len(hops) == len(expected) == size - 1
    assert set(hops) == expected
    root = [rank for rank, parent in parents.items() if parent is None]
    assert root == [10]
    assert sum(parent == 10 for parent in parents.values()) == 1


def test_a_heap_is_a_tree_as_well() -> None:
    parents: dict[int, int | None] = {rank: (rank - 1) // 2 if rank else None for rank in range(31)}
    passes = tree_passes(parents)
    assert_matchings(passes)
    assert len(passes) == 4
    assert sum(map(len, passes)) == 30


def test_what_is_no_binary_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="got 3 children"):
        tree_passes({0: None, 1: 0, 2: 0, 3: 0})
    with pytest.raises(ValueError, match="form a ring"):
        tree_passes({1: 2, 2: 1})


def test_nothing_to_measure_is_no_pass() -> None:
    assert ring_passes([]) == ring_passes([4]) == tree_passes({4: None}) == share_passes([]) == []


def test_disjoint_groups_share_passes() -> None:
    groups = [ring_passes(range(4)), ring_passes(range(4, 9)), ring_passes([20, 21])]
    passes = share_passes(groups)
    assert_matchings(passes)
    assert len(passes) == 3
    assert sum(map(len, passes)) == 4 + 5 + 2


def test_groups_that_meet_in_a_rank_take_turns() -> None:
    groups = [ring_passes([0, 1, 2, 3]), ring_passes([0, 4, 8, 12]), ring_passes([0, 1])]
    passes = share_passes(groups)
    assert_matchings(passes)
    hops = list(itertools.chain.from_iterable(passes))
    assert len(set(hops)) == len(hops) == 9
    assert len(passes) == 5  # rank 0 has five links
