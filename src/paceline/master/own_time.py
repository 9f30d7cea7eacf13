"""The time in which the master itself ran: what the silence of others is measured in.

A master that was paused, or got no processor, heard nobody: that is nobody's silence (never
is healthy work killed because the one who watches cannot see it).
"""

from collections.abc import Callable

STEADY_S = 0.4
"""The master looks at the clock at each of its ticks (every 0.2 s) and at each fact. Whatever is
longer than this between two looks was not its own time."""


class OwnTime:
    """A clock that stands still while nobody reads it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds, never backwards."""
        self._clock = clock
        self._read_s = clock()
        self._missed_s = 0.0

    def __call__(self) -> float:
        """Seconds by ``clock``, less what was missed so far."""
        now_s = self._clock()
        self._missed_s += max(0.0, now_s - self._read_s - STEADY_S)
        self._read_s = now_s
        return now_s - self._missed_s
