"""Agenda of what will happen later in virtual time."""

import heapq
import itertools
import math
from collections.abc import Callable

Event = Callable[[float], None]
"""Called with the moment that it was planned for."""


class Agenda:
    """Events by time; those of one moment in the order in which they were planned."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event]] = []
        self._count = itertools.count()

    def add(self, at_s: float, event: Event) -> None:
        """Plan an event."""
        heapq.heappush(self._events, (at_s, next(self._count), event))

    @property
    def next_s(self) -> float:
        """Time at which the next event is due; infinite: there is none."""
        return self._events[0][0] if self._events else math.inf

    def run_next(self) -> float:
        """Let the next event happen; returns its time."""
        at_s, _, event = heapq.heappop(self._events)
        event(at_s)
        return at_s
