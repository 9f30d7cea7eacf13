"""The states of the script that are kept beside a share of the model: the newest, and one before.

A synchronous step may be over for one worker while another, which joins, still has a part of it.
The first hands in the script as it is after that step, and the second needs it as it was before:
A hands in position 25; B, in place of a lost worker, begins its part of step 25 and asks for 24.
For the same reason a cut after step 24 may hold what was handed in after step 25.
So it is when the step lacks samples, and the model stays at 24: A hands in 25 again after the next.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from paceline.runtime.data.work import Array
from paceline.wire.messages.data import Script

NUM_KEPT = 2


class Kept(NamedTuple):
    """A state, and the positions from the first to the last at which the script was in it."""

    first: int
    last: int
    state: bytes


def saved_in(arrays: Mapping[str, Array]) -> Iterator[Kept]:
    """Yield what one server's save holds."""
    for number in range(NUM_KEPT):
        name = f"script.{number}"
        if name in arrays:
            first, last = arrays[f"{name}.at"].tolist()
            yield Kept(first, last, arrays[name].tobytes())


class Scripts:
    """States of the script that were handed in, the oldest first."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []

    def keep(self, script: Script) -> None:
        """Take what a worker has handed in; of two at one position the later counts."""
        place = len(self._kept)
        while place and self._kept[place - 1].first > script.position:
            place -= 1
        before = self._kept[place - 1] if place else None
        fresh = Kept(script.position, script.position, script.state)
        if before is not None and before.first == script.position:
            self._kept[place - 1] = fresh._replace(last=before.last)
        elif before is None or before.last <= script.position:
            self._kept.insert(place, fresh)
            del self._kept[:-NUM_KEPT]

    def reached(self, position: int) -> None:
        """Note that the newest state did not change up to there."""
        if self._kept and self._kept[-1].last < position:
            self._kept[-1] = self._kept[-1]._replace(last=position)

    def at(self, position: int) -> Script | None:
        """The state at a position, or the newest before it; None: all that are kept are newer."""
        older = [one for one in self._kept if one.first <= position]
        if not older:
            return None
        found = older[-1]
        # The one before holds until the newest begins.
        known = min(found.last, position) if found is self._kept[-1] else position
        return Script(known, found.state)

    def save(self) -> dict[str, Array]:
        """Return the states that are kept as arrays by name, for a cut."""
        arrays: dict[str, Array] = {}
        for number, one in enumerate(self._kept):
            arrays[f"script.{number}.at"] = np.array([one.first, one.last], np.int64)
            arrays[f"script.{number}"] = np.frombuffer(one.state, np.uint8)
        return arrays

    def load(self, saved: Iterable[Kept]) -> None:
        """Take what the saves of all servers hold: one may have heard of less than another."""
        for one in sorted(saved, key=lambda one: (one.first, one.last)):
            self.keep(Script(one.first, one.state))
            self.reached(one.last)
