"""What a zip reads beside batches goes back with them, and keeps no loop open."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.runtime.variables.beside import BesideVariables


class Loop:
    """Batches a, b, ..., of which the third comes twice: its first body is taken back."""

    def __init__(self, beside: BesideVariables | None = None) -> None:
        self.beside, self.at = beside or BesideVariables(), 0
        self.again, self.is_whole = True, True

    def __iter__(self) -> "Loop":
        return self

    def __next__(self) -> str:
        frame = sys._getframe(1)
        if self.at == 3 and self.again:
            self.again, self.at = False, 2
            self.is_whole = self.beside.undo(frame)
        else:
            self.beside.keep(frame)
        self.at += 1
        return "abcdefgh"[self.at - 1]

    def __del__(self) -> None:
        closed.append(self.at)


closed = list[int]()


def wrapped(given: Any) -> Iterator[Any]:
    yield from given


@pytest.mark.parametrize(
    "read",
    [
        lambda loop: zip(loop, [0, 1, 2, 3], strict=False),
        lambda loop: zip(loop, enumerate([0, 1, 2, 3]), strict=False),
        lambda loop: zip(enumerate(loop), range(4), strict=False),
        lambda loop: wrapped(zip(loop, (0, 1, 2, 3), strict=False)),
        lambda loop: map(list, zip(loop, [0, 1, 2, 3], strict=False)),
        lambda loop: zip(zip(loop, range(4), strict=False), [0, 1, 2, 3], strict=False),
    ],
)
def test_what_is_read_beside_batches_goes_back_with_them(read: Any) -> None:
    loop, got = Loop(), list[Any]()
    for one in read(loop):
        got.append(str(one))
    assert loop.is_whole
    number = [[sign for sign in one if sign.isdecimal()] for one in got]
    assert [one[-1] for one in number] == ["0", "1", "2", "2", "3"]
    assert got[2][-4:] == got[3][-4:]


@pytest.mark.parametrize("left_by", ["break", "the shorter list"])
def test_a_loop_that_was_left_is_closed_at_once(left_by: str) -> None:
    closed.clear()
    beside, numbers = BesideVariables(), [0, 1] if left_by != "break" else range(9)
    for _, number in zip(Loop(beside), numbers, strict=False):
        if left_by == "break" and number == 1:
            break
    assert len(closed) == 1
