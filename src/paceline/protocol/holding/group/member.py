"""One member of a group as a pure state machine: which step it holds, in which group.

Events are the master's messages and the training loop's own acts (`enter`, `begin_update`,
`updated`, `failed`); every method returns what is to be done. The edge is ``member.py``, the
protocol docs/protocols/integrity.md, section 8. The explorer in ``tests/model`` drives this class.
"""

from collections.abc import Iterable, Sequence

import msgspec

from paceline.base.errors import InternalError
from paceline.base.numbering import NO_EPOCH, EpochNo, Inc, StepNo, step_after
from paceline.base.samples import SampleSet, Span
from paceline.protocol.holding.group.position import Position
from paceline.wire.messages.group import (
    NO_STEP,
    Broken,
    CatchUp,
    Divide,
    Division,
    GroupLeft,
    GroupStopped,
    GroupUp,
    JoinGroup,
    Member,
    Progress,
    RunGroup,
    StopGroup,
)

FORGOTTEN = "it holds another state"
"""Why a member cannot go on that has loaded something else, or is about to."""


class Say(msgspec.Struct, frozen=True):
    """Send to the master."""

    message: GroupUp


class Drop(msgspec.Struct, frozen=True):
    """A group that we work in is over: wake the threads that wait in it, here and in its members.

    Attributes:
        run: the group.
    """

    run: RunGroup


class Copy(msgspec.Struct, frozen=True):
    """Copy the state of a step from a peer; then `copied`."""

    order: CatchUp


class LoadReplica(msgspec.Struct, frozen=True):
    """Become what a cut holds; then `copied`."""

    order: CatchUp


class Connect(msgspec.Struct, frozen=True):
    """Work in this group from now on."""

    run: RunGroup


Instruction = Say | Drop | Copy | LoadReplica | Connect


class MemberState:
    """The machine."""

    def __init__(self, inc: Inc, address: str = "", replica: str = "", place: str = "") -> None:
        self.inc, self.address, self.replica, self.place = inc, address, replica, place
        self.epoch_no = NO_EPOCH
        #: The newest group that we were told of.
        self.group = 0
        #: The last complete step, and all that is in the model then.
        self.step = NO_STEP
        self.done = SampleSet()
        #: Of the schedule; with the rest of what is held it is copied from a peer or a cut.
        self.position = Position()
        #: The last step that all members hold that hold any, and what is in the model then.
        self.proved: tuple[StepNo, tuple[Span, ...]] = (NO_STEP, ())
        #: The group that we may work in, and the last one that we might.
        self.running: RunGroup | None = None
        self.ran = 0
        #: Members of that one.
        self._ran_with: tuple[Member, ...] = ()
        #: How we divide the next step, and the newest division that we have heard of.
        self.division = self.heard = Division()
        #: To be heeded when the step, or the update, that we are in is over.
        self.stopping: StopGroup | None = None
        self.copying: CatchUp | None = None
        #: Whether we want to train.
        self.joining = False
        self.broken: Broken | None = None
        #: Whether our process is about to end.
        self.left = False
        #: From our first step in a group on, also between two: others in the next one wait for us.
        self.in_steps = False
        #: Whether the script is in a step, alone, of which nothing could take its body back.
        self.is_open = False
        self.updating = False
        #: Whether we have given up what we held since we said what it is.
        self._has_forgotten = False
        #: Whether worker-0 is gone for good, and we do what a script has one worker do.
        self.stands_in = False

    # ------------------------------------------------------------------ from the master

    def join(self) -> list[Instruction]:
        """The loop is about to begin; again: nothing."""
        if self.joining:
            return []
        self.joining = True
        return self._ask_in()

    def _ask_in(self) -> list[Instruction]:
        word = JoinGroup(inc=self.inc, address=self.address, replica=self.replica, place=self.place)
        return [Say(word)]

    def stop_group(self, message: StopGroup) -> list[Instruction]:
        """Stop in all groups before this one, now or after a step that all complete together.

        Between two steps, too: others may be in the next one, and it would be lost.
        """
        if message.epoch_no < self.epoch_no or message.group < self.group:
            return []
        if message.group <= self.ran or self.left:
            return []
        newer, begins_anew = message.group > self.group, message.epoch_no > self.epoch_no
        self._adopt(message.epoch_no)
        self.group = message.group
        if newer:
            self.broken = None
        # One alone waits for nobody, and can end its step whatever has happened to others.
        ends_step = self.is_open and not begins_anew
        at_once = (message.at_once and not ends_step) or self.idle
        if self.running is not None and (self.updating or not at_once):
            self.stopping = message
            return []
        if newer:
            self.copying = None
        return self._stop()

    @property
    def idle(self) -> bool:
        """Whether nobody waits for us in a step, or will in the next one."""
        return not self.in_steps

    def _adopt(self, epoch_no: EpochNo) -> None:
        """Drop what we hold: in a newer epoch it does not count."""
        if epoch_no > self.epoch_no:
            self.epoch_no, self.step, self.done = epoch_no, NO_STEP, SampleSet()
            self.proved = (NO_STEP, ())

    def _stop(self) -> list[Instruction]:
        """Nothing of the group enters the model from here on."""
        dropped: list[Instruction] = []
        if self.running is not None:
            dropped, self.copying = [Drop(self.running)], None
        self.running = self.stopping = None
        self.is_open = False
        return [*dropped, self._stopped()]

    def _stopped(self) -> Say:
        self._has_forgotten = False
        return Say(
            GroupStopped(
                epoch_no=self.epoch_no,
                inc=self.inc,
                group=self.group,
                step=self.step,
                committed=self.done.spans(),
                ran=self.ran,
            )
        )

    def catch_up(self, message: CatchUp) -> list[Instruction]:
        """Copy what others hold; or begin with what we were built with."""
        if message.epoch_no < self.epoch_no or message.group != self.group or self.left:
            return []
        if self.running is not None or self.updating:
            return []
        self._adopt(message.epoch_no)
        if self.step >= message.step:
            return [self._stopped()]
        if message.source.inc == self.inc and message.cut is None:
            return self._take(message.step, message.committed)
        if self.copying == message:
            return []
        self.copying = message
        return [LoadReplica(message) if message.source.inc == self.inc else Copy(message)]

    @property
    def at_rest(self) -> bool:
        """Whether what we hold is one whole: peers may copy it.

        While a step is computed, too: who copies asks in the end whether it is still the same.
        """
        return not self.updating

    def may_load(self, order: CatchUp) -> bool:
        """Whether what was copied by this order is still to be ours; if so, `copied` follows."""
        return self.copying == order

    def copied(self, order: CatchUp) -> list[Instruction]:
        """The state is here, and has taken the place of ours."""
        return self._take(order.step, order.committed)

    def _take(self, step: StepNo, committed: Iterable[Span]) -> list[Instruction]:
        self.step, self.done, self.copying = step, SampleSet(committed), None
        if self.running is None:
            return [self._stopped()]
        self.proved = (self.step, self.done.spans())
        return [self.progress()]

    def run_group(self, message: RunGroup) -> list[Instruction]:
        """All members hold the same step, or are to copy it: go on.

        Raises:
            InternalError: we do not hold it.
        """
        if (message.epoch_no, message.group) != (self.epoch_no, self.group) or self.left:
            return []
        if message.group <= self.ran:
            return [self.progress()]
        if message.base:
            if message.base != self.ran:
                return []  # of an answer that we gave before; it comes again, with all members
            message = message.over(self._ran_with)
        self.copying = message.catch_up if self.step == NO_STEP else None
        lacks_it = message.step != self.step and self.copying is None
        if lacks_it and not self._has_forgotten:
            raise InternalError(
                f"told to go on from step {message.step}, which we do not hold ({self.step})"
            )
        self.running, self.ran = message, message.group
        self._ran_with = message.members
        if lacks_it:
            return [Connect(message), *self.failed(message, FORGOTTEN)]
        self.stands_in = message.lacks_chief and message.members[0].inc == self.inc
        self.division = self.heard = message.division
        self.proved = (self.step, self.done.spans())
        copy = [Copy(self.copying)] if self.copying is not None else []
        return [Connect(message), *copy, self.progress()]

    def divide(self, message: Divide) -> list[Instruction]:
        """Divide steps again, once all members know of it."""
        if self.running is None or (message.epoch_no, message.group) != (self.epoch_no, self.ran):
            return []
        if message.division.no > self.heard.no:
            self.heard = message.division
        return [self.progress()]

    def agree(self, run: RunGroup, told: Division, numbers: Iterable[int]) -> None:
        """If all members have heard of the same division, the next step is by it.

        They find out together, in a step that all of them enter; so all divide each step alike.

        Args:
            run: the group of the step.
            told: what we had heard of when we entered it; there may be a newer one meanwhile.
            numbers: of what each member had.
        """
        if self.running is run and set(numbers) == {told.no}:
            self.division = told

    def may_meet(self, epoch_no: EpochNo, group: int) -> bool:
        """Whether we work in this group, or may come to: its members may connect to us.

        It need not be the newest: one that is to be left connects, and finishes its step, first.
        """
        return epoch_no == self.epoch_no and group >= self.ran

    # ------------------------------------------------------------------ the training loop

    def enter(self) -> RunGroup | None:
        """Begin the next step, if there is a group to do it in.

        What it is to be done on may still be being copied.
        """
        if self.running is not None:
            self.in_steps = True
        return self.running

    def enter_alone(self) -> None:
        """The script gets the batch of a step of a group of one: from here on the step ends."""
        self.is_open = True

    @property
    def begins_with(self) -> SampleSet:
        """Samples in the model in which the next step is done."""
        return SampleSet(self.copying.committed) if self.copying is not None else self.done

    @property
    def wants_out(self) -> bool:
        """Whether the step that is begun should be the last in this group."""
        return self.stopping is not None

    @property
    def next_step(self) -> StepNo:
        """The step after the last complete one."""
        return step_after(self.step)

    @property
    def is_proven(self) -> bool:
        """Whether all members of the group are known to hold the step that we completed last.

        So it is when a group begins. A member that has proven the end of a feed may be beyond it:
        the others of a new group do not wait there.
        """
        return self.proved[0] == self.step

    def begin_update(self, run: RunGroup) -> bool:
        """All of the step is here; whether it may change the model. If so, `updated` follows."""
        if self.running is not run:
            self.in_steps = False
            return False
        self.updating = True
        return True

    def updated(self, spans: Iterable[Span], *, last: bool) -> list[Instruction]:
        """The step is in the model: completing it proves that all hold the one before.

        ``last``: some member wants it to be the last one in this group.
        """
        self.proved = (self.step, self.done.spans())
        self.step = step_after(self.step)
        self.done.update(spans)
        self.updating = self.is_open = False
        at_once = self.stopping is not None and self.stopping.at_once
        return self._pause() if last or at_once else []

    def _pause(self) -> list[Instruction]:
        """Work no more in this group, and say so once the next one is known."""
        if self.stopping is not None:
            return self._stop()
        if (run := self.running) is None:
            return []
        self.running = None
        return [Drop(run)]

    def proven(self, run: RunGroup, *, last: bool) -> list[Instruction]:
        """All members have come this far: they hold the step that we completed last.

        Where the group is over meanwhile, the next one proves it (`is_proven`).
        """
        self.in_steps = False
        if self.running is not run:
            return []
        self.proved = (self.step, self.done.spans())
        return [self.progress(), *(self._pause() if last else [])]

    def failed(self, run: RunGroup, reason: str) -> list[Instruction]:
        """Something of the group does not work any more."""
        self.in_steps = False
        if self.running is not run:
            return []
        if self.stopping is not None:
            return self._stop()
        self.running = None
        self.broken = Broken(epoch_no=self.epoch_no, inc=self.inc, group=run.group, reason=reason)
        return [Drop(run), Say(self.broken)]

    def diverged(self, run: RunGroup, what: str, *, gives_up: bool) -> list[Instruction]:
        """Members of the group do not hold the same; ``gives_up``: most differ from us.

        What we hold is given up then, so that the next group hands us what the others hold. All
        members have found it in the same step, which none of them completes. Who has said already
        that it stopped keeps to its word: the next group finds it again.
        """
        self.in_steps = False
        if self.running is not run:
            return []
        if gives_up:
            self.step, self.done, self.proved = NO_STEP, SampleSet(), (NO_STEP, ())
        told = Broken(
            epoch_no=self.epoch_no, inc=self.inc, group=run.group, reason=what, diverged=True
        )
        if self.stopping is not None:
            return [Say(told), *self._stop()]
        self.running, self.broken = None, told
        return [Drop(run), Say(told)]

    def forget(self) -> list[Instruction]:
        """Forget what we hold: it will be something else, of which no group knows."""
        self.copying, self._has_forgotten = None, True
        self.step, self.done, self.proved = NO_STEP, SampleSet(), (NO_STEP, ())
        return self.failed(self.running, FORGOTTEN) if self.running else []

    def give_up_update(self) -> None:
        """Nothing of the update that was begun is in the model."""
        self.updating = self.in_steps = self.is_open = False

    def leave_step(self) -> list[Instruction]:
        """The loop is left, or about to wait for something else than its next step."""
        self.in_steps = self.is_open = False
        return self._stop() if self.stopping is not None else []

    def leave(self) -> list[Instruction]:
        """Our process is about to end: from here on no group is ours."""
        self.left, self.joining = True, False
        dropped = [Drop(self.running)] if self.running is not None else []
        self.running = self.stopping = self.copying = None
        return [*dropped, Say(GroupLeft(inc=self.inc))]

    # ------------------------------------------------------------------ loss of messages

    def progress(self) -> Say:
        """Return what all members hold, by the group that we work in or worked in last."""
        step, committed = self.proved
        return Say(
            Progress(
                epoch_no=self.epoch_no,
                inc=self.inc,
                group=self.ran,
                step=step,
                committed=committed,
                division=self.division.no,
            )
        )

    def resend(self) -> list[Instruction]:
        """Everything of ours that is unanswered, once more."""
        if not self.joining:
            return []
        if self.broken is not None:
            return [Say(self.broken)]
        if self.running is not None and self.copying is None:
            return [self.progress()]
        return self._ask_in()  # so that we are given another peer if ours has gone


def second_machine(inc: Inc, members: Sequence[Member]) -> str:
    """Where a member's shard has its second copy: the address of another machine.

    The master's machine has a copy of every shard, since it must read cuts, and a copy of each of
    its own shards is elsewhere. So the death of one machine loses no cut.

    Args:
        inc: the member's.
        members: all of its group.

    Returns:
        Address of a member on another machine than the master's; empty: none is, or the member
        itself is on another one, and the master's machine has its copy.
    """
    near = [one.inc for one in members if not one.distant]
    others = [one.files for one in members if one.files]
    return others[near.index(inc) % len(others)] if inc in near and others else ""
