"""The length of a step in calls, and so its time, in jobs whose optimizer is not seen.

A call is a symbol: operator, group, bytes, type. A period is the smallest number k of calls of
which the newest 4 k equal those k earlier, so that 5 periods agree. A shorter cycle inside a step,
as that of micro-batches, is refused: symbols that come back, but are not in it, give it away.

Reference: FALCON section 3.1 (arXiv:2410.12588): autocorrelation of operators' numbers of 0.95.
Differs: that is undefined for one repeated call, and 32 micro-batches of 8 calls with 4 calls after
them reach 0.965 at 8. Equality has neither fault.
Not seen: steps of more than 2,048 calls, and calls whose bytes vary with the lengths of samples.
Until the first step ends, its micro-batches are taken for steps; a step of nothing but equal calls
is taken for so many steps.
"""

from typing import NamedTuple

import numpy as np

_AGREEING = 4
"""Periods that equal the one before each."""
_ALIVE = 2
"""A symbol is taken to be gone after so many times its longest absence so far."""
_TRUSTED = 128
"""Steps after which a period is resumed although other calls, of an evaluation, came between."""
_MOST_SYMBOLS = 4096


class CallKind(NamedTuple):
    """Properties that the same call has in every step."""

    op: str
    group: int
    num_bytes: int
    dtype: str = ""

    @property
    def runs(self) -> bool:
        """Whether equal calls in a row count as one: tensor parallelism makes more or fewer."""
        return "allgather" in self.op or "reduce_scatter" in self.op


class PeriodFinder:
    """Finds the period of one rank's calls, and times its steps.

    Memory: a few words for each call of the longest period. Time per call: one pass over them
    while it searches, then one comparison.

    Args:
        longest: calls of the longest period.
    """

    def __init__(self, longest: int = 2048) -> None:
        self._longest = longest
        self._symbols = np.full(2 * longest, -1, dtype=np.int64)
        """Ring of symbols, stored twice with the newest first, so that any part of it is one
        slice."""
        self._head = longest
        self._lags = np.arange(1, longest + 1)
        self._agreeing = np.zeros(longest, dtype=np.int64)
        """Number of newest calls in a row that equal those ``lag`` earlier, by lag less 1."""
        self._count = 0
        self._last: CallKind | None = None
        self._seen: dict[int, tuple[int, int]] = {}
        """Call number at which each symbol was last seen, and its longest absence in calls."""
        self._period: int | None = None
        self._trusted: int | None = None
        self._began = 0, 0.0
        """Call that the present step began with, and when."""
        self._steps = 0
        """Steps of this period."""

    @property
    def period(self) -> int | None:
        """Calls of a step; None: not found, or lost."""
        return self._period

    def add(self, call: CallKind, start_s: float) -> float | None:
        """Take in the next call; return the time of the step that ends where this call begins."""
        if call.runs and call == self._last:
            return None
        self._last = call
        symbol = hash(call) & (2**62 - 1)
        earlier = self._symbols[self._head : self._head + self._longest]
        if self._period is not None and earlier[self._period - 1] != symbol:
            self._lose()
        found = self._period is None and self._search(symbol, earlier)
        self._push(symbol)
        if found:
            self._began, self._steps = (self._count, start_s), 0
        elif self._period is not None and self._count - self._began[0] == self._period:
            took_s = start_s - self._began[1]
            self._began = self._count, start_s
            self._steps += 1
            return took_s
        return None

    def _lose(self) -> None:
        if self._steps >= _TRUSTED:
            self._trusted = self._period
        self._period = None
        self._agreeing[:] = 0

    def _push(self, symbol: int) -> None:
        self._count += 1
        self._head = (self._head or self._longest) - 1
        self._symbols[self._head] = self._symbols[self._head + self._longest] = symbol
        before, away = self._seen.get(symbol, (0, 0))
        away = max(away, min(self._count - before, self._longest))
        self._seen[symbol] = self._count, away
        if len(self._seen) > _MOST_SYMBOLS:
            self._seen.clear()

    def _search(self, symbol: int, earlier: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bool:
        """Look for the smallest lag that agrees for long enough, and hides no other symbol."""
        self._agreeing += 1
        self._agreeing *= earlier == symbol
        agreeing = self._lags[self._agreeing >= _AGREEING * self._lags].tolist()
        if not agreeing:
            return False
        hidden = self._longest_away()
        for index, lag in enumerate(agreeing):
            multiple = any(lag % shorter == 0 for shorter in agreeing[:index])
            if not multiple and (lag > hidden or lag == self._trusted):
                self._period = lag
                return True
        return False

    def _longest_away(self) -> int:
        """Calls since the symbol that is to come back has been away longest."""
        ages = ((self._count - last, away) for last, away in self._seen.values())
        return max((age for age, away in ages if age <= _ALIVE * away), default=0)
