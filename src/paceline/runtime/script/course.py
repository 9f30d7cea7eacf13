"""Place of a script: in which loop over ``job.epochs``, which epoch, and what it has opened there.

Workers call a feed by its place, since a worker that joins in epoch 5 has opened none of those of
epochs 0 to 4, and one whose step broke runs the body of its loop twice.
"""

from collections import Counter
from collections.abc import Callable

from paceline.wire.messages.feeds import ScriptPlace

OUTSIDE = -1
"""Stand-in for an epoch: outside of all; for a step: it is not the same in all workers."""

MEETING = -2
"""Separator between a place and the number of a meeting there."""


class ScriptCourse:
    """The course of one script.

    Args:
        step: how far the model is in the body in hand, the same in all workers that hold it;
            `OUTSIDE`: there is no such.
        place_in_body: see `Strategy.place_in_body`; the same where there is no such step.
    """

    def __init__(
        self, step: Callable[[], int], place_in_body: Callable[[], tuple[int, ...]]
    ) -> None:
        self._step, self._place_in_body = step, place_in_body
        self._loops, self._epoch = 0, OUTSIDE
        #: Loops over epochs before the training in hand.
        self._before = 0
        self._opened = 0
        self._in_body = False
        self._calls = 0
        #: Numbers of meetings in the body, or between two loops, by where in the body.
        self._meetings = Counter[tuple[int, ...]]()
        #: Batches of this life, and the place of the newest one.
        self._num_bodies = 0
        self._body: tuple[int, ...] = (OUTSIDE,)
        self._batches_per_step = 1
        self._miscounts = self._asks = False
        self._target: ScriptPlace | None = None

    @property
    def place(self) -> ScriptPlace:
        """Loops over epochs that are over, and the epoch in hand."""
        return self._loops, self._epoch

    @property
    def epoch(self) -> int | None:
        """The epoch in hand; None: in none."""
        return None if self._epoch == OUTSIDE else self._epoch

    @property
    def coming(self) -> ScriptPlace:
        """The place of what the script is about to open."""
        if not self._in_body:
            return *self.place, self._opened
        return *self.place, self._opened - 1, self._step(), self._calls + 1

    def come_in(self, place: ScriptPlace) -> None:
        """The script opens next what is at this place: it has been moved there."""
        self._loops, self._epoch, self._opened = place[:3]
        self._meetings.clear()

    def next(self) -> ScriptPlace:
        """The place of what the script opens now."""
        place = self.coming
        if self._in_body:
            self._calls += 1
        else:
            self._opened += 1
            self._meetings.clear()
        return place

    def meeting(self) -> ScriptPlace:
        """The place of a call by which workers tell each other something.

        Such calls have numbers of their own: one that only some workers make moves no feed.
        """
        self.asked()
        where = self._place_in_body() if self._in_body else ()
        self._meetings[where] += 1
        opened = self._opened - self._in_body
        return *self.place, opened, *where, MEETING, self._meetings[where]

    @property
    def in_body(self) -> bool:
        """Whether a loop over batches is open."""
        return self._in_body

    # ------------------------------------------------------------------ bodies of loops

    def enter_loop(self, batches_per_step: int = 1) -> None:
        """A loop over batches begins."""
        self._in_body, self._calls, self._asks = True, 0, False
        self._body, self._batches_per_step = (OUTSIDE,), batches_per_step
        self._meetings.clear()

    def enter_body(self) -> None:
        """A batch is given to the script."""
        step, body = self._step(), self._place_in_body()
        if step != OUTSIDE:
            self._calls = 0
            self._meetings.clear()
            # A place of one number does not tell the batches of a step from each other.
            again = len(body) > 1 and body <= self._body and self._batches_per_step == 1
            self._miscounts |= again or step > self._num_bodies == 0
        self._num_bodies, self._body = self._num_bodies + 1, body

    def asked(self) -> None:
        """The script asks how far the job is."""
        self._asks = True

    @property
    def miscount(self) -> int:
        """Batches of this life, if they are not the job's steps, nor asks its loop for these; or 0.

        It began later than the job, or a step came again.
        """
        return self._num_bodies if self._miscounts and not self._asks else 0

    def leave_loop(self) -> None:
        """The loop is over, or left."""
        self._in_body = False
        self._meetings.clear()

    # ------------------------------------------------------------------ epochs

    def first_epoch(self, target: ScriptPlace | None, count: int) -> int:
        """The epoch with which the loop over epochs that begins now begins here.

        Args:
            target: where the state was when this script began; None: there was none.
            count: epochs of the loop.
        """
        if self._target is None:
            self._target = target or self.place
        loops, epoch = self._target
        if loops > self._loops:
            return count
        return min(max(epoch, 0), count) if loops == self._loops else 0

    @property
    def reaches_target(self) -> bool:
        """Whether the script is where the model was when it began."""
        return self._target == self.place

    def enter(self, epoch: int) -> None:
        """An epoch begins."""
        self._epoch, self._opened = epoch, 0
        self._meetings.clear()

    def next_training(self) -> None:
        """The script trains something else: its places follow those of the training before."""
        self.leave()
        self._before, self._target = self._loops, None

    @property
    def coming_in_training(self) -> ScriptPlace:
        """The place of what comes next, as in a script that has only the training in hand."""
        loops, *others = self.coming
        return loops - self._before, *others

    def leave(self) -> None:
        """The loop over epochs is over."""
        self._loops, self._epoch, self._opened = self._loops + 1, OUTSIDE, 0
        self._meetings.clear()
