"""Frames of a script: variables read and bound, iterators of its ``for`` statements found and set."""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.runtime.variables import frames


class Asking:
    """A loop that looks at whoever asks for its next element."""

    def __init__(self, count: int, look: Any) -> None:
        self._left, self._look = count, look

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._look(sys._getframe(1))
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


BEFORE = f"a {type(iter('ab')).__name__} before them"


def positions(frame: Any) -> list[Any]:
    found = frames.iterators_of(frame)
    assert found is not None
    return [frames.reached(one) for one in found]


def test_the_iterators_of_nested_loops_are_found_outermost_first() -> None:
    seen = []
    for _fold in ["a", "b"]:
        for _epoch in range(3, 5):
            with pytest.MonkeyPatch.context():
                for _, _ in enumerate(Asking(1, lambda frame: seen.append(positions(frame)))):
                    pass
    folds, epochs, counts = zip(*seen, strict=True)
    assert [one.at for one in folds] == [1] * 4 + [2] * 4
    assert [one.at for one in epochs] == [4, 4, 5, 5] * 2
    assert [one.at for one in counts] == [0, 1] * 4


def test_they_go_on_from_where_others_are() -> None:
    begun = []

    def move(frame: Any) -> None:
        if not begun:
            fold, epoch, count = frames.iterators_of(frame) or []
            assert frames.reach(fold, frames.IteratorAt("sequence", 2))
            assert frames.reach(epoch, frames.IteratorAt("range", 7))
            assert frames.reach(count, frames.IteratorAt("enumerate", 40))

    for fold in ["a", "b", "c"]:
        for epoch in range(9):
            for number, _ in enumerate(Asking(1, move)):
                begun.append((fold, epoch, number))
    assert begun[0] == ("a", 0, 40)  # what the statements have bound stays
    assert begun[1:] == [("a", 7, 0), ("a", 8, 0), *(("c", k, 0) for k in range(9))]


def test_an_enumerate_goes_back_also_within_a_generator() -> None:
    numbers, asked = [], itertools.count()

    def passed_on(given: Any) -> Iterator[Any]:
        yield from given

    def back(frame: Any) -> None:
        if next(asked) == 2:
            (count,) = frames.counts_of(frame)
            assert frames.reach(count, frames.IteratorAt("enumerate", 1))

    for number, _ in passed_on(enumerate(Asking(3, back))):
        numbers.append(number)
    assert numbers == [0, 1, 1]


def test_what_a_zip_has_beside_batches_goes_back() -> None:
    got = list[Any]()

    def look(frame: Any) -> None:
        beside = [one for one in frames.zipped_with_batches(frame) if frames.reached(one)]
        assert not frames.lost_in_zip(frame)
        if len(got) == 2:
            assert [frames.reached(one) for one in beside] == [
                frames.IteratorAt("sequence", 2),
                frames.IteratorAt("range", 12),
            ]
            (count,) = frames.counts_of(frame)
            for one, at in zip((count, *beside), (0, 1, 11), strict=True):
                now = frames.reached(one)
                assert now is not None
                assert frames.reach(one, now._replace(at=at), back=True)

    for number, (batch, weight, other) in enumerate(
        zip(Asking(3, look), ["a", "b", "c"], range(10, 20), strict=False)
    ):
        got.append((number, batch, weight, other))
    assert [one[0] for one in got] == [0, 1, 0]
    assert [one[2:] for one in got] == [("a", 10), ("b", 11), ("b", 11)]


@pytest.mark.parametrize(
    ("read", "lost"),
    [
        (lambda asking: zip(asking, [1, 2], strict=False), ""),
        (lambda asking: zip([1, 2], asking, strict=False), "a list_iterator before them"),
        (lambda asking: enumerate(zip(asking, iter({1: 2}), strict=False)), "a dict_keyiterator"),
        (lambda asking: zip(asking, (k for k in "ab"), strict=False), "a generator"),
        (lambda asking: zip(zip(asking, "ab", strict=False), "cd", strict=False), ""),
        (lambda asking: zip(enumerate(asking), "ab", strict=False), ""),
        (lambda asking: zip(asking, enumerate("ab"), strict=False), ""),
        (lambda asking: map(repr, zip(asking, "ab", strict=False)), ""),
        (lambda asking: zip(asking, itertools.count(), strict=False), "a count"),
        (lambda asking: zip(zip("ab", asking, strict=False), "cd", strict=False), BEFORE),
        (lambda asking: asking, ""),
        (enumerate, ""),
        (lambda asking: map(repr, asking), ""),
    ],
)
def test_what_a_zip_cannot_have_again_is_named(read: Any, lost: str) -> None:
    named = list[str]()
    for _ in read(Asking(1, lambda frame: named.append(frames.lost_in_zip(frame)))):
        pass
    assert named[0] == lost


@pytest.mark.parametrize(
    ("made", "steps"),
    [
        (lambda: iter(range(0, 20, 3)), 2),
        (lambda: iter([1, 2, 3]), 2),
        (lambda: iter((1, 2, 3)), 3),
        (lambda: itertools.count(5), 4),
        (lambda: enumerate("abc"), 1),
    ],
)
def test_an_iterator_is_where_another_one_was(made: Any, steps: int) -> None:
    one, other = made(), made()
    for _ in range(steps):
        next(one)
    at = frames.reached(one)
    assert at is not None
    assert frames.reach(other, at)
    if not isinstance(other, enumerate):
        assert list(itertools.islice(one, 3)) == list(itertools.islice(other, 3))
    assert frames.reached(other) == frames.reached(one) or isinstance(other, enumerate)


@pytest.mark.parametrize("made", [lambda: iter(range(3, 30, 4)), lambda: iter([3, 7, 11, 15])])
def test_an_iterator_goes_back_where_a_step_comes_again(made: Any) -> None:
    one = made()
    next(one)
    at = frames.reached(one)
    assert at is not None
    rest = [next(one), next(one)]
    assert not frames.reach(one, at)
    one = made()
    for _ in range(3):
        next(one)
    assert frames.reach(one, at, back=True)
    assert [next(one), next(one)] == rest


def test_a_call_of_next_is_told_from_a_for_statement() -> None:
    asked = []
    for _ in Asking(1, lambda frame: asked.append(frames.is_in_for(frame))):
        pass
    next(Asking(1, lambda frame: asked.append(frames.is_in_for(frame))))
    assert asked == [True, True, False]


def test_an_iterator_of_another_kind_is_left_alone() -> None:
    assert frames.reached(zip([1], [2], strict=True)) is None
    assert not frames.reach(iter([1]), frames.IteratorAt("range", 1))


def test_variables_are_bound_also_those_that_inner_functions_share() -> None:
    def script() -> tuple[int, int, int]:
        own, shared = 1, 2

        def inner() -> int:
            return shared

        frame = sys._getframe()
        assert frames.variables_of(frame)["shared"] == 2
        frames.bind(frame, {"own": 10, "shared": 20})
        return own, shared, inner()

    assert script() == (10, 20, 20)


def test_a_dictionary_that_the_script_has_of_its_variables_stays() -> None:
    def script() -> dict[str, Any]:
        one = 1
        mine = locals()
        frames.variables_of(sys._getframe())
        assert one
        return mine

    assert script()["one"] == 1


def test_libraries_are_not_the_scripts() -> None:
    assert frames.is_scripts(__file__)
    assert not frames.is_scripts(pytest.__file__)
    assert not frames.is_scripts("<frozen importlib._bootstrap>")
    assert not frames.is_scripts(frames.__file__)


def test_lines_that_do_the_same_and_go_on_at_one_place_are_one() -> None:
    opened, asked = list[tuple[int, int]](), list[tuple[int, int]]()

    class Loop(Asking):
        def __iter__(self) -> Iterator[int]:
            frame = sys._getframe(1)
            opened.append((frame.f_lineno, frames.place_of(frame, opens=True)[2]))
            return self

    def note(frame: Any) -> None:
        asked.append((frame.f_lineno, frames.place_of(frame)[2]))

    batches = iter(Loop(2, note))
    for _ in range(4):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(Loop(2, note))
            batch = next(batches)
        assert batch in (0, 1)
    assert len({line for line, _ in asked}) == 2
    assert {place for _, place in asked} == {min(line for line, _ in asked)}
    assert len({line for line, _ in opened}) == 2
    assert {place for _, place in opened} == {min(line for line, _ in opened)}


def test_lines_that_go_on_elsewhere_are_two() -> None:
    asked = list[int]()

    def note(frame: Any) -> None:
        asked.append(frames.place_of(frame)[2] - frame.f_lineno)

    batches = iter(Asking(4, note))
    first = next(batches)
    first = next(batches)
    for _ in Asking(1, note):
        pass
    for _ in Asking(1, note):
        pass
    assert first == 2
    assert asked == [0] * 6
