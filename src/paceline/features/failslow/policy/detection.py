"""When a job has become slow, and when it is well again: from the times of its steps alone.

Pure: one `StepFact` in, at most one verified change out. Marked steps are left out. Where every
step's amount of work is known, times are compared at equal work.

Reference: FALCON (arXiv:2410.12588), section 3.2 of its text: change points, then verification.
Differs: the mass on run lengths 1 to 3 is tested (`paceline.policy.stats.changes`); 5 values
verify, so two spikes are no change; the healthy level is kept, so small steps add up; the window
grows with the noise (`paceline.policy.stats.noisy`), so variable lengths are no change.
Not seen here: a job that is slow from its first step.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from paceline.features.failslow.policy.work import WorkCost
from paceline.policy.stats.changes import Change, Shift
from paceline.policy.stats.noisy import NoisyChangePoints
from paceline.wire.step_ledger import Mark

GROUP_S = 0.1
"""Time that a group of short steps has at least: jitter of the machine counts for little in it."""
RECENT = 30
"""Steps that are looked back on."""
OFTEN = 0.5
"""Part of these steps from which marked ones are compared like any others: the script saves or
evaluates nearly always."""
_REMEMBERED = NoisyChangePoints.kept + 16


class StepFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One step of a job, or the mean of some that follow each other."""

    number: int
    """Number of the step; for a mean, that of the last step in it."""
    end_s: float
    took_s: float
    marks: int = 0
    """Flags of `paceline.wire.step_ledger.Mark`; a step with any mark is left out."""
    amount: float | None = None
    """Samples or tokens; None: not known."""
    steps: int = 1
    """Number of steps of which this is the mean."""
    first: int | None = None
    """Number of the first of them; None: there is one."""


class PaceChange(msgspec.Struct, frozen=True, kw_only=True):
    """A verified change of a job's pace; times of steps are at the job's mean amount of work."""

    shift: Shift
    slow: bool
    """Whether the job is slow after it; True after a relief that is not a full one."""
    since_step: int
    """The change began with this step."""
    since_s: float
    """Begin of that step."""
    found_step: int
    found_s: float
    before_s: float
    """Time of a step before; of a healthy one where small changes added up to this."""
    after_s: float

    @property
    def is_relief(self) -> bool:
        """Whether steps have become shorter."""
        return self.shift is Shift.RELIEF


class SlowJobDetector:
    """Verified changes of one job's pace, one step at a time.

    Memory: a few hundred steps. Time per step: two dozen operations on arrays of 250 numbers, and
    now and then sorts of 256 numbers.

    Args:
        threshold: least change of the time of a step, relative.
        verify: steps that a change is judged on if the noise is small.
    """

    def __init__(self, threshold: float = 0.10, verify: int = 5) -> None:
        self._limits = (threshold, verify)
        self._changes = NoisyChangePoints(threshold, verify)
        self._work: WorkCost | None = WorkCost()
        """None: the amount of work is not known of every step."""
        self._begins: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        """First step and begin of each fact that was looked at."""
        self._healthy_s: float | None = None

    @property
    def healthy_s(self) -> float | None:
        """Time of a step, at the mean amount, before the job became slow; None: it is not slow."""
        return self._healthy_s

    def lost_s(self, fact: StepFact) -> float:
        """Return the seconds that a step lost to the slowness that is going on."""
        if self._healthy_s is None or fact.marks:
            return 0.0
        share = 1.0
        if self._work is not None and fact.amount is not None:
            share = self._work.share(fact.amount)
        return max(0.0, fact.took_s - share * self._healthy_s) * fact.steps

    def update(self, fact: StepFact) -> PaceChange | None:
        """Take in the next step; return the change that it confirms."""
        if fact.marks or fact.took_s <= 0.0:
            return None
        first = fact.number if fact.first is None else fact.first
        self._begins.append((first, fact.end_s - fact.took_s * fact.steps))
        times_s = self._comparable(fact)
        change: Change | None = None
        for index, time_s in enumerate(times_s, 1):
            found = self._changes.update(time_s)
            if found is not None:
                later = len(times_s) - index
                change = msgspec.structs.replace(found, values=found.values + later)
        return None if change is None else self._report(change, fact)

    def _comparable(self, fact: StepFact) -> Sequence[float]:
        """Return the times of steps that can be compared from now on: mostly this one's."""
        if self._work is None:
            return [fact.took_s]
        if fact.amount is not None:
            settled = not self._changes.slow and not self._changes.pending
            return self._work.add(fact.amount, fact.took_s, settled=settled)
        waiting_s = self._work.waiting_s
        self._work, self._healthy_s = None, None
        self._changes = NoisyChangePoints(*self._limits)
        return [*waiting_s, fact.took_s]

    def _report(self, change: Change, fact: StepFact) -> PaceChange:
        slow = self._changes.slow
        if not slow:
            self._healthy_s = None
        elif self._healthy_s is None:
            self._healthy_s = change.before
        since_step, since_s = self._begins[-min(change.values, len(self._begins))]
        return PaceChange(
            shift=change.shift,
            slow=slow,
            since_step=since_step,
            since_s=since_s,
            found_step=fact.number,
            found_s=fact.end_s,
            before_s=change.before,
            after_s=change.after,
        )


class StepGroups:
    """Groups the short steps of a job into means over at least a tenth of a second.

    Args:
        least_s: time that a group has at least; a longer step is a group of its own.
    """

    def __init__(self, least_s: float = GROUP_S) -> None:
        self._least_s = least_s
        self._took_s = 0.0
        self._amount: float | None = 0.0
        self._steps = 0
        self._first = 0

    def add(self, fact: StepFact) -> StepFact | None:
        """Take in the next step; return the group that it completes. A marked step is dropped."""
        if fact.marks:
            return None
        if not self._steps:
            self._first, self._took_s, self._amount = fact.number, 0.0, 0.0
        self._steps += 1
        self._took_s += fact.took_s
        if self._amount is not None:
            self._amount = None if fact.amount is None else self._amount + fact.amount
        if self._took_s < self._least_s:
            return None
        count, self._steps = self._steps, 0
        return StepFact(
            number=fact.number,
            end_s=fact.end_s,
            took_s=self._took_s / count,
            amount=None if self._amount is None else self._amount / count,
            steps=count,
            first=self._first,
        )


class UsualMarks:
    """The marks of a script's recent steps."""

    def __init__(self) -> None:
        self._marked: deque[bool] = deque(maxlen=RECENT)

    def left_out(self, marks: int, count: int = 1) -> int:
        """Return the marks for which steps are left out of comparisons; 0: they count.

        Args:
            marks: of the next steps (`Mark`).
            count: how many steps they are.
        """
        self._marked.extend([bool(marks)] * min(count, RECENT))
        is_usual = sum(self._marked) > OFTEN * RECENT and not marks & Mark.FIRST
        return 0 if is_usual else marks
