"""What workers tell each other between their steps: one value for all, or all values to all.

A meeting is known by its place in the script. Its outcome is journalled before a worker hears of
it, so a worker that comes late, or a script that runs again, gets the same one. A worker that dies
is no longer waited for.
"""

from collections.abc import Iterator

from paceline.base.numbering import Inc
from paceline.protocol.records import Agreed
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.messages.node import AgreedOn, AgreeOn


class Agreements:
    """The meetings of one job. Durable: ``agreed``, which records change."""

    def __init__(self) -> None:
        self.agreed: dict[ScriptPlace, tuple[bytes, ...]] = {}
        #: Workers that live, and so may come.
        self._present: set[Inc] = set()
        self._waiting: dict[ScriptPlace, dict[Inc, AgreeOn]] = {}

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

    def due(self) -> Iterator[Agreed]:
        """The meetings that are decided now."""
        for place, here in self._waiting.items():
            if place in self.agreed or not here:
                continue
            first = next(iter(here.values()))
            if not first.all:
                yield Agreed(place=place, values=(first.value,))
            elif self._present <= here.keys():
                by_rank = sorted(here.values(), key=lambda one: one.rank)
                yield Agreed(place=place, values=tuple(one.value for one in by_rank))

    def answers(self) -> list[AgreedOn]:
        """What those get that wait for meetings that are decided; they no longer wait."""
        over = [place for place in self._waiting if place in self.agreed]
        return [
            AgreedOn(inc=inc, place=place, values=self.agreed[place])
            for place in over
            for inc in self._waiting.pop(place)
        ]
