"""Best times to restart a node, if it is known what each of its lives would be worth."""

import math
from collections.abc import Callable

import numpy as np

from paceline_experiments.sim.costs import Floats, Ints

LIVES_AHEAD = 4
"""Lives that are looked at beyond those that the node has."""
MOST_LIVES = 100
"""Most lives that are looked at."""

Worth = Callable[[int], Floats]
"""Function from a life's number to the node's worth in each iteration of it."""


def best_restarts(
    worth: Worth,
    at_s: Floats,
    away_s: float,
    *,
    least_s: float = 0.0,
    loss: float,
    by_age: bool = False,
) -> list[float]:
    """Return when to restart a node so that it is worth most in all.

    Args:
        worth: by life: what the node is worth in each iteration; asked for in order.
        at_s: when the iterations begin.
        away_s: how long a restart takes, in which the node is worth nothing.
        least_s: no life is shorter.
        loss: what a restart costs beside that; above 0, or nodes are restarted for nothing.
        by_age: a life's iterations are counted from its own beginning, wherever that is.
    """
    best_ends = _ends_by_age if by_age else _ends
    back = np.searchsorted(at_s, at_s + away_s)
    earliest = np.append(np.searchsorted(at_s, at_s + least_s), len(at_s))
    lives = [worth(0)]
    restarts: list[int] = []
    while len(lives) <= min(len(restarts) + LIVES_AHEAD, MOST_LIVES):
        lives += [worth(life) for life in range(len(lives), len(lives) + 1 + len(lives) // 4)]
        # From the last life back to the first: what the rest of the job is worth at best.
        rest = np.full(len(at_s) + 1, -math.inf)
        ends: list[Ints] = []
        for life in reversed(lives):
            done, after = np.append(0.0, np.cumsum(life)), np.append(rest[back] - loss, 0.0)
            end, rest = best_ends(done, after, earliest)
            ends.append(end)
        restarts = _path(ends[::-1], back)
    return [float(at_s[iteration]) for iteration in restarts]


def _path(ends: list[Ints], back: Ints) -> list[int]:
    """Return where all lives but the last end, if each but the first begins when it is back."""
    path: list[int] = []
    now = 0
    for end in ends:
        if end[now] == len(back):
            break
        path.append(int(end[now]))
        now = int(back[path[-1]])
    return path


def _ends(done: Floats, after: Floats, earliest: Ints) -> tuple[Ints, Floats]:
    """Return where a life is best ended, and what it and the rest are worth then; by its begin.

    Args:
        done: what it would have been worth before each iteration, had it lived from the first.
        after: what the rest is worth without it.
        earliest: where it may end, by where it begins.
    """
    total = done + after
    best = np.maximum.accumulate(total[::-1])[::-1]
    at = np.where(total == best, np.arange(len(total)), len(total))
    ends = np.minimum.accumulate(at[::-1])[::-1]
    return ends[earliest], best[earliest] - done


def _ends_by_age(done: Floats, after: Floats, earliest: Ints) -> tuple[Ints, Floats]:
    """Return what `_ends` returns, with ``done`` by the life's age."""
    totals = [
        after[first:] + done[first - begin : len(done) - begin]
        for begin, first in enumerate(earliest)
    ]
    ends = [first + int(np.argmax(total)) for first, total in zip(earliest, totals, strict=True)]
    return np.array(ends), np.array([total.max() for total in totals])
