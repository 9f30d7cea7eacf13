"""One step as one member is in it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.base.errors import ConfigError, InternalError
from paceline.base.numbering import StepNo
from paceline.base.samples import Span
from paceline.protocol.holding.group.watch import Word, in_words
from paceline.protocol.reasons import different_loops
from paceline.runtime.data.work import Work
from paceline.runtime.group.group import BREAKING, Gathering, Group
from paceline.runtime.group.short import ShortStep
from paceline.runtime.script.step_frame import StepInHand
from paceline.wire.messages.feeds import Slice
from paceline.wire.messages.group import Division, RunGroup
from paceline.wire.messages.order import Lacking


class Told(NamedTuple):
    """Words of each member to the others as it enters a step."""

    number: int
    feed: int
    """Number of the loop's feed."""
    slice: int
    """Digest of the step's slice."""
    division: int
    """Number of the division of its shares."""
    heard: int
    """Number of the newest division that it has heard of."""
    cut: int
    """See `Keeper.ready_for`."""
    wants_out: int
    settings: int
    """This field and the next three: see `Word`."""
    checksum: int
    check_at: int
    every: int
    training: int
    """This field and the next two: see `Watcher.trained`."""
    trained: int
    of_trained: int

    @property
    def word(self) -> Word:
        """Word about the state, as members tell it each other."""
        return Word(self.settings, self.checksum, self.check_at, self.every)


WANTS_OUT = Told._fields.index("wants_out")


class StepPlan(NamedTuple):
    """A step as a group does it, and divides it; computed once, maybe before it is its turn."""

    number: StepNo
    before: Sequence[int]
    """Edges of what of the feed is in the model before it."""
    whole: Slice
    """Samples of the step; empty: all of the feed is in the model."""
    size: int
    """How many these are."""
    global_batch: int
    """Samples of a step in which no epoch ends."""
    num_batches: int
    """Global batches that it completes, if it is made whole."""
    joiners: Sequence[int]
    """Ranks of those that have no share of it; see `joiners_of`."""
    runs: list[range]
    """Part of it that each member computes; see `Sharing`."""
    weight: int
    """Samples of ours; 0: what we compute on is another member's, and does not count."""
    works: Sequence[Work]
    """The batches in which we compute our share."""


@dataclass(slots=True)
class GroupStep(StepInHand):
    """The step that this member is in."""

    run: RunGroup
    group: Group
    gathering: Gathering
    division: Division
    heard: Division
    """The newest division that we had heard of when we entered."""
    plan: StepPlan
    weight: int
    """Samples of ours: as planned, or 0 for a member that has fallen behind."""
    begins_at: int = 0
    """The position of the schedule that it begins with."""
    committed: Sequence[Span] = ()
    """Samples of it that are in the averaged gradients."""
    num_batches: int = 0
    """Global batches that this completes: steps of schedules."""
    works: list[Work] = field(default_factory=list)
    """The batches that we compute it in."""
    num_profiled: int = 0
    """Number of them that come before our share, are timed, and count for nothing."""
    num_idle: int = 0
    """Number of them that come first, and count for nothing."""
    num_timed: int = 0
    batch_no: int = 0
    """Place in `works` of the batch in the script's hands."""
    settling: int = -1
    """The newest batch of which all gradients are there."""
    settled: bool = False
    """Whether gradients were averaged, or cannot be."""
    left_out: bool = False
    """Whether a member has not stepped: its samples are done, and no parameter changes."""
    holds: bool = False
    """Whether the averaged gradients will change the model."""
    on_trial: bool = False
    """Whether changes by optimizers are taken back, unless the gradients of all others come."""
    last: bool = False
    """Whether some member wants this step to be the last one in this group."""
    waited_before_s: float = 0.0
    """Part of ``data_s`` from before ``start_s``."""
    turns_s: float = 0.0
    """Seconds of waiting for sums, before the script computed what its other optimizers need."""
    computed_cpu_s: float = 0.0
    """Processor time of the process when all was computed."""
    short: ShortStep | None = None
    """Watch over whether the step goes on without us; None: it waits for all."""
    behind: bool = False
    """Whether the others went on without us when we began the step."""
    present: Gathering | None = None
    """Samples of each member that are in the sums; None: all."""
    is_alone: bool = False
    """Whether it is one of `StepsAlone`."""

    def comes_alone(self, plan: StepPlan, batch: Any) -> None:
        """Become the next step of a worker alone: set anew what differs from step to step."""
        self.plan, self.weight, self.works, self.batch = plan, plan.weight, [*plan.works], batch
        self.is_alone, self.settled, self.holds, self.left_out = True, False, False, False
        self.has_gradients = self.closed = False

    @property
    def whole(self) -> Slice:
        """The samples of the step."""
        return self.plan.whole

    @property
    def lacking(self) -> Lacking:
        """Limits of what the step may do without."""
        return self.division.lacking.of_slice(self.plan.size, self.plan.global_batch)

    @property
    def changes(self) -> bool:
        """Whether the step changes the model, maybe on trial."""
        return (self.holds or self.on_trial) and not self.left_out

    @property
    def completes(self) -> bool:
        """Whether the batch in hand is the last of our share, in a step that did not break."""
        return self.is_last_batch and (self.holds or self.on_trial or not self.settled)

    @property
    def is_last_batch(self) -> bool:
        """Whether the step ends with the batch in the script's hands."""
        return self.batch_no == len(self.works) - 1

    def may_skip(self, batch_no: int) -> bool:
        """Tell whether nobody waits for this batch any more, and another one follows."""
        left_behind = self.short is not None and self.short.left_behind
        return left_behind and not self.num_profiled and batch_no < len(self.works) - 1

    def counting(self, work: Work) -> int:
        """Samples of the batch in the script's hands that count."""
        counts = self.weight > 0 and self.batch_no >= max(self.num_profiled, self.num_idle)
        return work.num_samples if counts else 0

    def told(self) -> list[Told]:
        """Wait for what each member has said; raises as `Gathering.wait`."""
        return [Told(*numbers) for numbers in self.gathering.wait()]

    def check_place(self) -> None:
        """The group broke: raise ConfigError if that is because scripts are in different loops."""
        told = [Told(*numbers) for numbers in self.gathering.heard()]
        if len({one.feed for one in told}) > 1:
            self.check_same(told)

    def check_same(self, told: Sequence[Told]) -> None:
        """Check that all members are in this step: else the model would be wrong.

        Raises:
            ConfigError: some of them have left the loop that others are in.
            InternalError: their steps are of one loop, and differ.
        """
        if len({one.feed for one in told}) > 1:
            nodes = [member.node for member in self.run.members]
            loops = [f"loop {one.feed}" for one in told]
            raise ConfigError(different_loops(in_words(nodes, loops)))
        if len({(one.number, one.slice, one.division) for one in told}) > 1:
            raise InternalError(f"members are in different steps: {told}")

    def close(self) -> None:
        """Have nobody hand in anything for us any more."""
        if self.short is not None:
            with suppress(*BREAKING):
                self.short.close()


def joiners_of(run: RunGroup, number: int) -> list[int]:
    """Ranks of those that have no share of a step: they copy what it is done on meanwhile."""
    if number != run.step + 1:
        return []
    return [rank for rank, member in enumerate(run.members) if member.inc in run.joiners]


def num_sharing(run: RunGroup, number: int) -> int:
    """Count the members that compute a step."""
    return len(run.members) - len(joiners_of(run, number))


def digest(whole: Slice) -> int:
    """A number that tells slices of one feed apart."""
    return sum(31 * span.start + 17 * span.stop + span.line for span in whole)
