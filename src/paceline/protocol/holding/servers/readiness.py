"""Readiness of the undecided step (BSP): what it has, may lack, and how long it waits for that."""

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import num_samples
from paceline.wire.messages.feeds import Slice
from paceline.wire.messages.order import Allow, Included, Lacking, Update


class Readiness:
    """State of readiness of a step, which the leader keeps; it is empty in other servers."""

    def __init__(self) -> None:
        #: inc -> last contribution of the undecided step that all servers hold.
        self.last_of: dict[Inc, int] = {}
        #: What may be left out of a step, by the step from which on it holds.
        self.allowed: list[Allow] = []
        #: How long the undecided step waits for what it lacks; None: until it is there.
        self.grace_s: float | None = None

    def ready(self, inc: Inc, seq: int) -> None:
        """All servers hold a worker's contributions to the undecided step up to this one."""
        self.last_of[inc] = max(seq, self.last_of.get(inc, 0))

    def entry(self, step: StepNo) -> Update:
        """The step as it would be decided now."""
        included = tuple(Included(inc, seq) for inc, seq in sorted(self.last_of.items()))
        return Update(included=included, step=step)

    def next_step(self) -> None:
        """The step is decided, or all that was ready is void."""
        self.last_of.clear()
        self.grace_s = None

    def may_lack(self, step: StepNo, whole: Slice) -> Lacking:
        """Return what the undecided step may be decided without.

        Args:
            step: its number.
            whole: its slice.
        """
        held = [one for one in self.allowed if one.step <= step]
        if not held:
            return Lacking()
        last = held[-1]
        lacking = Lacking(last.left_out, last.late, last.grace_s)
        return lacking.of_slice(num_samples(whole), last.of)

    @property
    def newest(self) -> int:
        """The number of the newest allowance; 0: none."""
        return self.allowed[-1].no if self.allowed else 0

    def allow(self, message: Allow, step: StepNo) -> None:
        """Replace what was allowed from the message's step on; ``step`` is the undecided one."""
        later = [one for one in self.allowed if one.step < message.step]
        while len(later) > 1 and later[1].step <= step:
            del later[0]
        self.allowed = [*later, message]
