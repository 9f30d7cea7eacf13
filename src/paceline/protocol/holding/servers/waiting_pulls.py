"""Pulls that wait at a server: for a step (BSP), or for slower workers (SSP)."""

from collections.abc import Callable

from paceline.base.numbering import Inc, StepNo
from paceline.wire.messages.data import Pull

Clocks = tuple[tuple[Inc, int, int], ...]
"""inc, clock, base."""


class WaitingPulls:
    """Pulls that are not answered, one per worker, and the workers' clocks.

    Args:
        staleness: SSP: a worker may be so many contributions ahead of the slowest.
    """

    def __init__(self, staleness: int = 0) -> None:
        self.staleness = staleness
        self.pulls: dict[Inc, Pull] = {}
        #: SSP, leader only: inc -> clock, on one scale.
        self.clocks: dict[Inc, int] = {}
        self.clock_base: dict[Inc, int] = {}

    def add(self, pull: Pull, *, bounded: bool) -> None:
        """Have a pull wait; ``bounded``: the worker's clock counts."""
        if bounded:
            self._set_clock(pull)
        self.pulls[pull.inc] = pull

    def _set_clock(self, pull: Pull) -> None:
        inc = pull.inc
        if pull.clock < 0:
            self.clocks.pop(inc, None)
        elif inc in self.clocks:
            self.clocks[inc] = max(self.clocks[inc], self.clock_base[inc] + pull.clock)
        else:  # a worker that joins, or comes back from waiting for work, starts at the floor
            self.clocks[inc] = min(self.clocks.values(), default=0)
            self.clock_base[inc] = self.clocks[inc] - pull.clock

    def release(self, step: StepNo) -> list[Pull]:
        """Take out what can be answered at this step."""
        free = [inc for inc, pull in self.pulls.items() if self._may_go(pull, step)]
        return [self.pulls.pop(inc) for inc in free]

    def _may_go(self, pull: Pull, step: StepNo) -> bool:
        if pull.inc in self.clocks:
            floor = min(self.clocks.values())
            if self.clocks[pull.inc] - floor > self.staleness:
                return False
        return pull.min_step <= step

    def fence(self, inc: Inc) -> None:
        """Wait neither for this worker nor with its pull."""
        self.clocks.pop(inc, None)
        self.pulls.pop(inc, None)

    def drop(self, unwanted: Callable[[Pull], bool]) -> None:
        """Answer no pull that is ``unwanted``."""
        self.pulls = {inc: pull for inc, pull in self.pulls.items() if not unwanted(pull)}

    def told(self) -> Clocks:
        """Return what a next leader goes on from."""
        return tuple((inc, clock, self.clock_base[inc]) for inc, clock in self.clocks.items())

    def take_over(self, clocks: Clocks) -> None:
        """Go on from what the former leader has told."""
        self.clocks = {inc: clock for inc, clock, _ in clocks}
        self.clock_base = {inc: base for inc, _, base in clocks}
