"""Short steps: a late member hands in what it has, so that the others need not wait for it.

A member that has computed its share says so to the others. Another member, which has not, may hear
that all that is missing may be missing (`Lacking`). It then hands in the batches that it has, or
nothing, while the script still computes. Each member decides for itself: what others still miss is
at most what we know that they miss, so a step lacks at most what it may lack.

Reference: AntDT section V-E, Table II (BACKUP_WORKERS); on servers the leader decides the same.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic

from paceline.base.numbering import StepNo
from paceline.wire.messages.group import Computed, RunGroup
from paceline.wire.messages.order import Lacking


class Missing:
    """Samples that a step still misses, as one member knows it.

    Args:
        lacking: what the step may lack.
        shares: samples of each member.
        rank: which of them we are.
    """

    def __init__(self, lacking: Lacking, shares: Sequence[int], rank: int) -> None:
        self._lacking, self._rank = lacking, rank
        self._shares = dict(enumerate(shares))
        #: Since when no more is missing than may be late.
        self._since_s: float | None = None

    def computed(self, rank: int, now_s: float) -> None:
        """A peer has computed its share; again: nothing."""
        if rank != self._rank:
            self._shares.pop(rank, None)
            self._look(now_s)

    def took(self, samples: int, now_s: float) -> None:
        """We have computed so many more of ours."""
        self._shares[self._rank] -= samples
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        if self._since_s is None and self.samples <= self._lacking.late:
            self._since_s = now_s

    @property
    def samples(self) -> int:
        """Our samples, and those of all peers that are not known to have computed theirs."""
        return sum(self._shares.values())

    def due_s(self, now_s: float) -> float | None:
        """Return when the step goes on without what we lack; None: it waits for more than that."""
        if self.samples <= self._lacking.left_out:
            return now_s
        return None if self._since_s is None else self._since_s + self._lacking.grace_s


class ShortStep:
    """A step that may go on without us. Three threads use it.

    Args:
        missing: of the step.
        hand_in: begins to sum what we have, of so many samples; called in the thread of `watch`.
    """

    def __init__(self, missing: Missing, hand_in: Callable[[int], None]) -> None:
        self._missing, self._hand_in = missing, hand_in
        self._changed = threading.Condition()
        self._closed = False
        self._samples = 0
        self._watched: Future[None] = Future()
        self.left_behind = False
        """Whether the step has gone on without some of our samples."""

    def computed(self, rank: int) -> None:
        """A peer has computed its share."""
        with self._changed:
            self._missing.computed(rank, monotonic())
            self._changed.notify_all()

    @property
    def is_due(self) -> bool:
        """Whether the step goes on at once."""
        with self._changed:
            now_s = monotonic()
            due_s = self._missing.due_s(now_s)
            return due_s is not None and due_s <= now_s

    def watch(self) -> None:
        """Hand in what we have once it is due, unless the step is closed before."""
        try:
            with self._changed:
                while not self._closed:
                    now_s = monotonic()
                    due_s = self._missing.due_s(now_s)
                    if due_s is not None and due_s <= now_s:
                        self._closed = self.left_behind = True
                        self._hand_in(self._samples)
                    else:
                        self._changed.wait(None if due_s is None else due_s - now_s)
            self._watched.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._watched.set_exception(error)

    def take(self, put: Callable[[], None], samples: int) -> None:
        """Have a batch of ours in what is handed in, by ``put``; if there still is time."""
        with self._changed:
            if not self._closed:
                put()
                self._samples += samples
                self._missing.took(samples, monotonic())
                self._changed.notify_all()

    def close(self) -> bool:
        """End our part: all is computed, or given up; tell whether nothing was handed in for us.

        Raises:
            RuntimeError, GroupOver: it could not be, since the group is over.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watched.result()
        return not self.left_behind


class PeerSteps:
    """The step of which each peer has computed its share, by its own word."""

    def __init__(self) -> None:
        #: Incarnation -> newest.
        self._newest: dict[int, Computed] = {}
        self._watched: tuple[RunGroup, int, ShortStep] | None = None

    def heard(self, message: Computed) -> None:
        """A peer has computed its share of a step."""
        self._newest[message.inc] = message
        self._tell()

    def watch(self, run: RunGroup, step: StepNo, short: ShortStep) -> None:
        """Tell this step, of this group and number, who has computed it; and no other any more."""
        self._watched = run, step, short
        self._tell()

    def _tell(self) -> None:
        if self._watched is None:
            return
        run, step, short = self._watched
        for rank, member in enumerate(run.members):
            newest = self._newest.get(member.inc)
            if newest is not None and (newest.group, newest.step) == (run.group, step):
                short.computed(rank)
