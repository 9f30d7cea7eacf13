"""Sets of samples behave like sets of positions."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from paceline.base.samples import Intervals, SampleSet, Span

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40))
ACTS = st.lists(st.tuples(st.booleans(), RANGE), max_size=30)


def points(found: Intervals) -> set[int]:
    return {point for start, stop in found for point in range(start, stop)}


@given(ACTS)
def test_intervals_hold_what_a_set_of_integers_would_hold(
    acts: list[tuple[bool, tuple[int, int]]],
) -> None:
    found, expected = Intervals(), set[int]()
    for adds, (start, stop) in acts:
        if adds:
            found.add(start, stop)
            expected |= set(range(start, stop))
        else:
            found.discard(start, stop)
            expected -= set(range(start, stop))

        assert points(found) == expected
        assert found.edges == sorted(set(found.edges)), "sorted, disjoint, not touching"
        assert len(found) == len(expected)


@given(ACTS, RANGE)
def test_within_and_gaps_split_a_range(
    acts: list[tuple[bool, tuple[int, int]]], whole: tuple[int, int]
) -> None:
    found = Intervals()
    for _, (start, stop) in acts:
        found.add(start, stop)

    inside, outside = list(found.within(*whole)), list(found.gaps(*whole))

    assert sorted(p for pair in inside + outside for p in range(*pair)) == list(range(*whole))
    assert all(points(found) >= set(range(*pair)) for pair in inside)
    assert all(not points(found) & set(range(*pair)) for pair in outside)


def test_touching_intervals_become_one() -> None:
    found = SampleSet([Span(0, 0, 2), Span(0, 4, 6)])
    found.add(Span(0, 2, 4))

    assert found.spans() == (Span(0, 0, 6),)


def test_lines_do_not_mix() -> None:
    found = SampleSet([Span(1, 0, 5)])
    found.subtract([Span(2, 0, 5)])

    assert found.spans() == (Span(1, 0, 5),)
    assert found.missing(Span(2, 3, 5)) == [Span(2, 3, 5)]
    assert found.overlap(Span(2, 3, 5)) == []


def test_a_copy_is_independent() -> None:
    first = SampleSet([Span(0, 0, 5)])
    second = first.copy()
    second.subtract([Span(0, 1, 2)])

    assert first.spans() == (Span(0, 0, 5),)
    assert second.spans() == (Span(0, 0, 1), Span(0, 2, 5))
    assert first != second


def test_an_empty_span_is_no_sample() -> None:
    found = SampleSet([Span(0, 3, 3)])

    assert not found
    assert len(found) == 0
    assert found == SampleSet()


def test_the_spans_of_a_set_take_room_for_its_intervals_and_not_for_its_samples() -> None:
    held = SampleSet([Span(0, 0, 10**9)])
    tracemalloc.start()
    assert held.spans() == (Span(0, 0, 10**9),)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000
