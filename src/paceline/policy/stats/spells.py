"""How long slow spells of a job's nodes last: a life table, by age in powers of two.

A spell that has lasted for a while is expected to last on as the spells before it did: of those
that reached its age, how many were over before they were twice as old. Where no spell has reached
an age, one half were (durations have no scale of their own): then a spell of age a is expected to
be there for a * ln(1 + l / a) of a time l ahead.

Reference: none; actuarial life tables, with the prior Beta(1, 1) for each interval.
"""

import math
from collections.abc import Sequence
from typing import Self

import msgspec

_FIRST = -3
"""Shorter spells are counted in the interval of ages that begins at 2 ** _FIRST s."""
_INTERVALS = 24
_MOST = 200
"""Spells that an interval remembers; older ones fade, so that a job can change its ways."""


class LifeTable(msgspec.Struct, frozen=True, array_like=True):
    """Counts by interval of age: the k-th is from 2 ** (k + _FIRST) s to twice that."""

    reached: tuple[float, ...] = (0.0,) * _INTERVALS
    """Spells that came to the interval and whose way through it is known."""
    ended: tuple[float, ...] = (0.0,) * _INTERVALS
    """Spells among these that were over before the interval's end."""

    def with_spell(self, seconds: float, *, over: bool = True) -> Self:
        """Count one more.

        Args:
            seconds: that it has lasted.
            over: it ended on its own; else only that it lasted so long is known.
        """
        last = _interval(seconds)
        reached, ended = list(self.reached), list(self.ended)
        for interval in range(last + over):
            fade = min(1.0, _MOST / (reached[interval] + 1.0))
            reached[interval] = fade * (reached[interval] + 1.0)
            ended[interval] = fade * (ended[interval] + (over and interval == last))
        return type(self)(tuple(reached), tuple(ended))

    def expected_s(
        self, age_s: float, from_s: float, until_s: float, prior: Sequence[float] = (1.0, 1.0)
    ) -> float:
        """How much of a time ahead a spell of this age is expected to be there for.

        Args:
            age_s: above 0.
            from_s: seconds from now at which the time begins.
            until_s: and ends.
            prior: spells that are taken to have ended in each interval, and to have outlived it.
        """
        begin_s, end_s = age_s + from_s, age_s + max(from_s, until_s)
        left, at_s, total_s = 1.0, age_s, 0.0
        while at_s < end_s:
            interval = _interval(at_s)
            edge_s = min(2.0 ** (interval + 1 + _FIRST), end_s)
            if interval == _INTERVALS - 1:
                edge_s = end_s
            power = self._power(interval, prior)
            if edge_s > begin_s:
                lower_s = max(at_s, begin_s)
                total_s += left * _integral_s(at_s, lower_s, edge_s, power)
            left *= (edge_s / at_s) ** -power
            at_s = edge_s
        return total_s

    def survival(self, age_s: float, ahead_s: float) -> float:
        """Probability that a spell of this age is still there so many seconds later."""
        left, at_s = 1.0, age_s
        while at_s < age_s + ahead_s:
            interval = _interval(at_s)
            edge_s = min(2.0 ** (interval + 1 + _FIRST), age_s + ahead_s)
            left *= (edge_s / at_s) ** -self._power(interval, (1.0, 1.0))
            at_s = edge_s if interval < _INTERVALS - 1 else math.inf
        return left

    def _power(self, interval: int, prior: Sequence[float]) -> float:
        """The power of the age with which the part of spells that are left falls."""
        ends = self.ended[interval] + prior[0]
        return -math.log2(1.0 - ends / (self.reached[interval] + sum(prior)))


def _interval(seconds: float) -> int:
    """The interval of an age."""
    # An age that is an edge begins the next interval, whatever log2 rounds to.
    exponent = math.frexp(max(seconds, 2.0**_FIRST))[1] - 1
    return min(exponent - _FIRST, _INTERVALS - 1)


def _integral_s(at_s: float, lower_s: float, upper_s: float, power: float) -> float:
    """Integrate (t / at) ** -power between two times."""
    if abs(power - 1.0) < 1e-9:
        return at_s * math.log(upper_s / lower_s)
    rest = 1.0 - power
    total_s: float = at_s / rest * ((upper_s / at_s) ** rest - (lower_s / at_s) ** rest)
    return total_s
