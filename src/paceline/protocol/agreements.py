"""Agreements of workers between their steps: one value for all, or all values to all.

A meeting is known by its place in the script. Its outcome is journalled before a worker hears of
it, so a worker that comes late, or a script that runs again, gets the same one. A worker that dies
is no longer waited for.

In the body of a loop a worker may wait for others that will not come. A has completed a step, and
meets after it; then B, whose step broke, waits for A to copy that step. Or B waits at another
meeting of a body: if it had passed this one, this one would be over. So those are not waited for.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from paceline.base.numbering import Inc
from paceline.protocol.records import Agreed
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.messages.node import AgreedOn, AgreeOn

TIMES_ABSENT = 2
"""Number of times that a worker says that it waits for others before a meeting does without it."""


class Agreements:
    """The meetings of one job. Durable: ``agreed``, which records change."""

    def __init__(self) -> None:
        self.agreed: dict[ScriptPlace, tuple[bytes, ...]] = {}
        #: Workers that live, and so may come.
        self._present: set[Inc] = set()
        self._waiting: dict[ScriptPlace, dict[Inc, AgreeOn]] = {}
        #: How often workers said that they wait for others, by meetings in bodies open then.
        self._absent: dict[ScriptPlace, Counter[Inc]] = {}

    def apply(self, record: Agreed) -> None:
        self.agreed[record.place] = record.values

    def came(self, inc: Inc) -> None:
        """A worker's process lives."""
        self._present.add(inc)

    def left(self, inc: Inc) -> None:
        """Nobody waits for this worker any more."""
        self._present.discard(inc)
        for here in self._waiting.values():
            here.pop(inc, None)

    def meet(self, message: AgreeOn) -> None:
        """A worker has come to a meeting; again: the same."""
        self._present.add(message.inc)
        self._waiting.setdefault(message.place, {})[message.inc] = message

    def waits(self, inc: Inc) -> None:
        """A worker is in no step, or waits for others in it; said again while that lasts.

        Meetings in bodies do without it, once it has said so twice since they began: the first
        time may be of just before it went on, and be here late.
        """
        for place, here in self._waiting.items():
            if _in_body(here):
                self._absent.setdefault(place, Counter())[inc] += 1

    def due(self, in_steps: AbstractSet[Inc]) -> Iterator[Agreed]:
        """The meetings that are decided now; ``in_steps``: see `Holder.in_steps`."""
        for place, here in self._waiting.items():
            if place in self.agreed or not here:
                continue
            first = next(iter(here.values()))
            if not first.all:
                yield Agreed(place=place, values=(first.value,))
            elif self._awaited(place, in_steps) <= here.keys():
                by_rank = sorted(here.values(), key=lambda one: one.rank)
                yield Agreed(place=place, values=tuple(one.value for one in by_rank))

    def _awaited(self, place: ScriptPlace, in_steps: AbstractSet[Inc]) -> AbstractSet[Inc]:
        if not _in_body(self._waiting[place]):
            return self._present
        others = self._waiting.keys() - self.agreed.keys() - {place}
        elsewhere = {inc for other in others for inc in self._waiting[other]}
        said = self._absent.get(place, Counter[Inc]())
        return {inc for inc in in_steps if said[inc] < TIMES_ABSENT} - elsewhere

    def answers(self) -> list[AgreedOn]:
        """Return the answers to those who wait for decided meetings; they no longer wait."""
        over = [place for place in self._waiting if place in self.agreed]
        for place in over:
            self._absent.pop(place, None)
        return [
            AgreedOn(inc=inc, place=place, values=self.agreed[place])
            for place in over
            for inc in self._waiting.pop(place)
        ]


def _in_body(here: dict[Inc, AgreeOn]) -> bool:
    return any(one.in_body for one in here.values())
