"""Straggler patterns that are injected: who is disturbed, when and how much.

Pure data and seeded draws. The simulator reads them, and so does whatever injects delays into real
processes; nothing that looks for stragglers may (it is below this package, and import-linter keeps
it from importing upwards).

A pattern gives every *place* its *spells*. A place is where one life of a node runs: a node that is
started again is in a new place, with draws of its own, and leaves behind what was bound to the old
one. A delay is constant per batch, whatever its size (a ``sleep`` in the loop, as AntDT injects
it); a slowdown multiplies the time of the computation (as contention does).

Reference: AntDT section VII-A-4, after FlexRR.
Differs: the paper does not say what becomes of a transient straggler that is restarted; here the
new place is disturbed with the same probability as any other.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Role = Literal["worker", "server"]
Clock = Literal["seconds", "iterations"]
"""Spells are dated in seconds since the job's start, or in iterations: of the job where it has
common steps, else of the node's present life."""

_ROLES = {"worker": 0, "server": 1}


class Placement(msgspec.Struct, frozen=True):
    """Place at which the ``life``-th life (from 0) of a node runs."""

    role: Role
    index: int
    """Index of the node among those of its role."""
    life: int = 0


class Spell(msgspec.Struct, frozen=True, array_like=True):
    """A time from ``start`` until ``stop`` in which each batch takes so much longer."""

    start: float
    stop: float
    delay_s: float = 0.0
    slowdown: float = 1.0


NEVER = Spell(math.inf, math.inf)
Spells = Iterator[Spell]


class Pattern(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all patterns."""

    role: Role = "worker"
    clock: Clock = "seconds"

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """The spells of one place, ascending and disjoint; they may go on for ever."""
        raise NotImplementedError


class Transient(Pattern, frozen=True, kw_only=True):
    """A pattern that disturbs a place with this probability in the first part of each period."""

    probability: float
    period: float
    share: float
    """Disturbed part of the period, from its start."""
    delay_s: float

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one draw per period."""
        start = 0.0
        while True:
            if rng.random() < self.probability:
                yield Spell(start, start + self.share * self.period, self.delay_s)
            start += self.period


class Persistent(Pattern, frozen=True, kw_only=True):
    """Some nodes are disturbed, until they leave their first place or for good."""

    nodes: tuple[int, ...]
    delay_s: float = 0.0
    slowdown: float = 1.0
    start: float = 0.0
    stop: float | None = None
    """End of the disturbance, by the pattern's clock; None: it does not end."""
    bound: bool = True
    """True: the pattern belongs to the first place, so that a restart is a cure. False: every life
    of the node has it, as with a slow machine that no other can replace."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one spell at most."""
        if place.index in self.nodes and not (self.bound and place.life):
            stop = math.inf if self.stop is None else self.stop
            yield Spell(self.start, stop, self.delay_s, self.slowdown)


class OnOff(Pattern, frozen=True, kw_only=True):
    """A two-state Markov process per place: disturbed or not, for exponentially long.

    The delay is drawn again for each spell, uniformly between half of ``delay_s`` and 1.5 times it.
    """

    mean_on: float
    mean_off: float
    delay_s: float
    probability: float = 1.0
    """Probability that a place is ever disturbed."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield spells that begin from the stationary distribution."""
        if rng.random() >= self.probability:
            return
        on = rng.random() < self.mean_on / (self.mean_on + self.mean_off)
        start = 0.0
        while True:
            stop = start + rng.exponential(self.mean_on if on else self.mean_off)
            if on:
                yield Spell(start, stop, self.delay_s * rng.uniform(0.5, 1.5))
            start, on = stop, not on


class HeavyTail(Pattern, frozen=True, kw_only=True):
    """Each iteration of a place is delayed by a Pareto (Lomax) draw."""

    scale_s: float
    shape: float
    """Below 2 the variance is infinite."""
    worst_s: float
    """Draws are cut off here."""
    noisy: float = 0.0
    """Probability of a place to draw from ten times the scale."""
    clock: Clock = "iterations"

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one spell per iteration."""
        scale_s = self.scale_s * (10.0 if rng.random() < self.noisy else 1.0)
        at = 0
        while True:
            for draw in np.minimum(scale_s * rng.pareto(self.shape, 256), self.worst_s).tolist():
                yield Spell(at, at + 1, draw)
                at += 1


class Cycle(Pattern, frozen=True, kw_only=True):
    """Some nodes are disturbed for the same part of every period, whatever their place."""

    nodes: tuple[int, ...]
    period: float
    on: float
    """Disturbed time of each period, from its start."""
    delay_s: float = 0.0
    slowdown: float = 1.0
    start: float = 0.0
    """Start of the first node's first period, by the pattern's clock."""
    stagger: float = 0.0
    """Seconds by which each node's periods begin later than those of the node before it."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one spell per period."""
        if place.index not in self.nodes:
            return
        start = self.start + self.nodes.index(place.index) * self.stagger
        while True:
            yield Spell(start, start + self.on, self.delay_s, self.slowdown)
            start += self.period


class Shared(Pattern, frozen=True, kw_only=True):
    """Some nodes are disturbed at the same times, for exponentially long, whatever their place."""

    nodes: tuple[int, ...]
    mean_on: float
    mean_off: float
    delay_s: float = 0.0
    slowdown: float = 1.0
    key: int
    """Seeds the times, which all nodes share; a place's own draws would differ."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield the same spells for all nodes."""
        if place.index not in self.nodes:
            return
        shared = np.random.default_rng(self.key)
        start = 0.0
        while True:
            start += shared.exponential(self.mean_off)
            stop = start + shared.exponential(self.mean_on)
            yield Spell(start, stop, self.delay_s, self.slowdown)
            start = stop


class Correlated(Pattern, frozen=True, kw_only=True):
    """Each iteration of a place is slowed down by a factor that resembles the one before.

    The factor's logarithm is an autoregressive process of first order; its mean is 1.
    """

    sigma: float
    """Standard deviation of the logarithm."""
    memory: float
    """Correlation of one iteration's logarithm with the next one's."""
    clock: Clock = "iterations"

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one spell per iteration."""
        news = self.sigma * math.sqrt(1.0 - self.memory**2)
        log = self.sigma * rng.standard_normal()
        at = 0
        while True:
            for draw in (news * rng.standard_normal(256)).tolist():
                yield Spell(at, at + 1, slowdown=math.exp(log - 0.5 * self.sigma**2))
                log = self.memory * log + draw
                at += 1


class Ladder(Pattern, frozen=True, kw_only=True):
    """Some nodes get slower rung by rung, stay so for a while, and recover at once."""

    nodes: tuple[int, ...]
    rung_s: float
    """Seconds that each rung adds to the delay."""
    rungs: int
    every: float
    """Length of a rung; the last one holds for ``hold``."""
    hold: float
    start: float = 0.0
    bound: bool = True
    """True: the pattern belongs to the first place; False: every life of the node has it."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Yield one spell per rung."""
        if place.index not in self.nodes or (self.bound and place.life):
            return
        for rung in range(1, self.rungs + 1):
            start = self.start + (rung - 1) * self.every
            length = self.hold if rung == self.rungs else self.every
            yield Spell(start, start + length, rung * self.rung_s)


class Trace(Pattern, frozen=True, kw_only=True):
    """Measured slowdowns of the nodes of one job, tick by tick, in a circle."""

    tick: float
    levels: tuple[tuple[float, ...], ...]
    """Slowdown, by node of the measured job, then by tick."""

    def spells(self, place: Placement, rng: np.random.Generator) -> Spells:
        """Repeat the node's own row; for a node that was started again, a random row."""
        rows = len(self.levels)
        row = self.levels[int(rng.integers(rows)) if place.life else place.index % rows]
        at = 0
        while True:
            for level in row:
                yield Spell(at * self.tick, (at + 1) * self.tick, slowdown=level)
                at += 1


AnyPattern = (
    Transient | Persistent | OnOff | Cycle | Shared | HeavyTail | Correlated | Ladder | Trace
)


def spells_of(patterns: Sequence[AnyPattern], number: int, place: Placement, seed: int) -> Spells:
    """Return what pattern ``number`` of a scenario does to a place."""
    key = (seed, number, _ROLES[place.role], place.index, place.life)
    return patterns[number].spells(place, np.random.default_rng(key))


class Course:
    """One place's way through one pattern."""

    def __init__(self, spells: Spells) -> None:
        self._spells = spells
        self._next = next(self._spells, NEVER)

    def at(self, moment: float) -> Spell:
        """Return what holds at a moment, and until when; moments must not decrease."""
        while self._next.stop <= moment:
            self._next = next(self._spells, NEVER)
        if self._next.start <= moment:
            return self._next
        return Spell(moment, self._next.start)


class Disturbances:
    """Effect of all patterns together on the nodes of one role; nodes are rows of arrays."""

    def __init__(
        self, patterns: Sequence[AnyPattern], role: Role, num_nodes: int, seed: int
    ) -> None:
        self._role, self._seed, self._all = role, seed, patterns
        self._patterns = [(number, p) for number, p in enumerate(patterns) if p.role == role]
        self._courses = [
            [
                Course(spells_of(patterns, number, Placement(role, i), seed))
                for i in range(num_nodes)
            ]
            for number, _ in self._patterns
        ]
        shape = (len(self._patterns), num_nodes)
        self._until = np.zeros(shape)
        self._delay_s, self._slowdown = np.zeros(shape), np.ones(shape)
        self.delay_s: NDArray[np.float64] = np.zeros(num_nodes)
        """Seconds by which each batch of a node that starts now is delayed."""
        self.slowdown: NDArray[np.float64] = np.ones(num_nodes)
        """Factor on the time of its computation."""

    def move(self, now_s: float, iteration: int) -> None:
        """Go on to this moment, in which all nodes are in this iteration."""
        changed = False
        for p, (_, pattern) in enumerate(self._patterns):
            moment = now_s if pattern.clock == "seconds" else iteration
            for i in np.flatnonzero(self._until[p] <= moment).tolist():
                self._turn(p, i, moment)
                changed = True
        if changed:
            self.delay_s = self._delay_s.sum(axis=0)
            self.slowdown = self._slowdown.prod(axis=0)

    def move_one(self, index: int, now_s: float, iteration: int) -> None:
        """Go on to this moment with one node, in an iteration of its own."""
        for p, (_, pattern) in enumerate(self._patterns):
            moment = now_s if pattern.clock == "seconds" else iteration
            if self._until[p, index] <= moment:
                self._turn(p, index, moment)
                self.delay_s[index] = self._delay_s[:, index].sum()
                self.slowdown[index] = self._slowdown[:, index].prod()

    def until(self, index: int) -> tuple[float, float]:
        """Return up to when, in seconds and in iterations, what holds for a node goes on."""
        ends = {"seconds": math.inf, "iterations": math.inf}
        for p, (_, pattern) in enumerate(self._patterns):
            ends[pattern.clock] = min(ends[pattern.clock], float(self._until[p, index]))
        return ends["seconds"], ends["iterations"]

    def _turn(self, p: int, index: int, moment: float) -> None:
        spell = self._courses[p][index].at(moment)
        self._until[p, index] = spell.stop
        self._delay_s[p, index], self._slowdown[p, index] = spell.delay_s, spell.slowdown

    def renew(self, index: int, life: int) -> None:
        """A node goes on in another place; takes effect with the next `move`."""
        place = Placement(self._role, index, life)
        for p, (number, _) in enumerate(self._patterns):
            self._courses[p][index] = Course(spells_of(self._all, number, place, self._seed))
            self._until[p, index] = 0.0
