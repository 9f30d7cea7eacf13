"""A fixed tree of sums: the same additions whoever does which."""

import itertools

import pytest

from paceline.runtime.holding.replicas.summing import PartialSum, SumTree, tops_of


def bracketed(runs: list[range], num_terms: int) -> str:
    """The additions, each in brackets, of terms that are divided so."""

    def add(left: str, right: str) -> str:
        return f"({left} {right})"

    whole = SumTree(num_terms, add)
    for run in runs:
        tree = SumTree(num_terms, add)
        for term in run:
            tree.put(PartialSum(0, term), str(term))
        assert [node for node, _ in tree.tops] == tops_of(run, num_terms)
        for node, term in tree.tops:
            whole.put(node, term)
    return whole.total


def test_the_additions_of_five_terms() -> None:
    assert bracketed([range(5)], 5) == "(((0 1) (2 3)) 4)"


@pytest.mark.parametrize("num_terms", [*range(1, 18), 33])
def test_every_division_makes_the_same_additions(num_terms: int) -> None:
    alone = bracketed([range(num_terms)], num_terms)
    for first, second in itertools.combinations_with_replacement(range(num_terms + 1), 2):
        runs = [range(first), range(first, second), range(second, num_terms)]
        assert bracketed(runs, num_terms) == alone, runs


@pytest.mark.parametrize("num_terms", [1, 2, 7, 16, 100, 1000])
def test_a_run_has_few_partial_sums(num_terms: int) -> None:
    height = (num_terms - 1).bit_length()
    apart = 1 + num_terms // 80
    for start in range(0, num_terms, apart):
        for stop in range(start + 1, num_terms + 1, apart):
            tops = tops_of(range(start, stop), num_terms)
            assert len(tops) <= max(1, 2 * height - 2)
            places = [height for height, _ in tops]
            assert all(places.count(height) <= 2 for height in places)
    assert tops_of(range(num_terms), num_terms) == [PartialSum(height, 0)]
    assert tops_of(range(0), num_terms) == []
