"""Formation of groups that train with all-reduce, as a pure state machine: the master's part.

A group is a set of incarnations that hold the same model at the same step. When it changes
(somebody died, joins or leaves) every member of the next one first stops for good in the old one,
then says which step it completed last; who is behind copies from one that is not; when all say the
same step, the group runs. Nothing is counted before that (docs/protocols/integrity.md, section 8).
Only who comes with nothing does not keep the others from it: it copies within their first step.

A *sharded* group (strategy fsdp) needs all of its members: the state is in all of them together.
It is never re-formed, which torch could not do: when a member is lost, all lives end
(`paceline.protocol.nodes.rounds`), and the next group, of fresh ones, begins an epoch from a cut,
of which every member loads its part.

Durable state is changed by records only, as in `MasterState`.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import assert_never

import msgspec

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_EPOCH, NO_INC, START, EpochNo, Inc, StepNo
from paceline.base.samples import Span
from paceline.protocol.acts import Fail, Instruction, Send, WorkerRefused, WriteAhead
from paceline.protocol.records import CutValid, GroupBegun, GroupFormed, GroupRestored, Plan
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.group import (
    NO_STEP,
    Broken,
    CatchUp,
    Divide,
    Division,
    GroupStopped,
    JoinGroup,
    Member,
    MemberPart,
    Progress,
    RunGroup,
    StopGroup,
    in_order,
)

Records = GroupFormed | GroupRestored | GroupBegun


class WhyNone(enum.Enum):
    """The causes for which no next group is formed."""

    FORMER_LIVES = enum.auto()
    """Sharded: lives of the group before have yet to end."""
    TOO_FEW = enum.auto()
    FORMS = enum.auto()
    """One forms already; workers that have come since will be in the next."""
    SAME = enum.auto()
    """Members train, nobody has come, and nobody is missing."""


class NoGroup(msgspec.Struct, frozen=True):
    """The decision that no next group is formed now."""

    why: WhyNone
    reason: str = ""
    """Condition that a next group waits for, in words for a person; empty: none."""


class _RunOrders(msgspec.Struct, frozen=True):
    """Orders to run, of which each member gets one, under its own number."""

    whole: RunGroup
    """With all members."""
    change: RunGroup
    """With what is another one than in the group that ran before."""
    joiners: frozenset[Inc]
    source: Inc
    """Member that those who join copy from."""


class Formation:
    """The machine.

    Args:
        min_members: with fewer nobody trains.
        check: who begins the job measures its links first, once.
        sharded: each member holds a part of the state.
        copies_at_rest: members stand still while another copies what they hold.
    """

    def __init__(
        self,
        *,
        min_members: int = 1,
        check: bool = False,
        sharded: bool = False,
        copies_at_rest: bool = False,
    ) -> None:
        self.min_members, self.check, self.sharded = min_members, check, sharded
        self.copies_at_rest = copies_at_rest
        # Durable.
        self.epoch_no = NO_EPOCH
        self.number = 0
        self._members: dict[Inc, Member] = {}
        #: Member that reads a cut, near the master if there is one.
        self._reader = NO_INC
        self.step = START
        #: What the epoch began with.
        self.start: GroupRestored | None = None
        #: All members have said the same step, but for joiners, and were told to run.
        self.begun: GroupBegun | None = None
        #: The number of the first group that ran: only it is checked, or a check that ends a group
        #: would end all of them.
        self.first = 0
        #: The newest one, as `MasterState` applies it.
        self.plan = Plan()
        #: Members that held the model when the newest group began that ran.
        self.held_by: frozenset[Inc] = frozenset()
        #: Members of former groups: what they hold may be another model of an equal step.
        self.gone: set[Inc] = set()
        #: What the model is made of, by the word of who joined first.
        self.replica = ""
        #: The next group is the first of a run: it waits for all workers that are to come.
        self.gathers = True
        # Volatile.
        #: Workers that are alive and prepared.
        self.ready: dict[Inc, Member] = {}
        #: Sharded: workers without which no group is formed.
        self.awaited = 0
        #: Members that are gone: the next group is formed without them.
        self.lost: set[Inc] = set()
        #: What members of a group that forms have said, and how many of them each last step.
        self.stopped: dict[Inc, GroupStopped] = {}
        self._steps = Counter[StepNo]()
        #: Member that the others copy from, once all have said something and one holds a step. It
        #: stays, so that nobody who copies already is sent to another one.
        self._holder = NO_INC
        #: Members that are not known to have heard that the group runs.
        self.untold: set[Inc] = set()
        #: Members that cannot work in this group.
        self.broken: dict[Inc, str] = {}
        #: The group for which the present epoch began.
        self.restored_for = 0
        #: May the members complete the step that they are in.
        self.at_once = True
        #: Number of the division by which a member divides its steps, as it has said.
        self.divided: dict[Inc, int] = {}
        #: The newest group that ran, and the one before it: number, and members.
        self._ran = self._ran_before = (0, dict[Inc, Member]())
        self._orders: _RunOrders | None = None
        #: Worker-0 is gone for good, so the first member of the next group stands in for it.
        self.lacks_chief = False

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> None:
        """The only way durable state changes."""
        match record:
            case GroupFormed():
                self.gone |= {member.inc for member in self.members}
                self.gone -= {member.inc for member in record.members}
                self.number, self.members = record.group, record.members
                self.replica = record.replica
                self.begun = None
                self._hear_anew()
                self.broken.clear()
                self.lost.clear()
                self.untold.clear()
            case GroupRestored():
                self.start = record
                self.epoch_no, self.step = record.epoch_no, record.step
            case GroupBegun():
                self.begun, self.step, self.gathers = record, record.step, False
                self._orders = None
                members = frozenset(member.inc for member in self.members)
                self.held_by = members.difference(record.joiners)
                self.first = self.first or record.group
                self._ran_before, self._ran = self._ran, (record.group, self._members)
                self.divided = {member.inc: record.division.no for member in self.members}
                self.untold = {member.inc for member in self.members}
            case _:
                assert_never(record)

    def _record(self, record: Records) -> WriteAhead:
        self.apply(record)
        return WriteAhead(record)

    def _hear_anew(self) -> None:
        self.stopped.clear()
        self._steps.clear()
        self._holder = NO_INC

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the newest group, in the order in which they divide steps."""
        return tuple(self._members.values())

    @members.setter
    def members(self, members: Iterable[Member]) -> None:
        self._members = {member.inc: member for member in members}
        near = (one.inc for one in self._members.values() if not one.distant)
        self._reader = next(near, next(iter(self._members), NO_INC))

    @property
    def running(self) -> bool:
        """Whether its members were told to run."""
        return self.begun is not None

    @property
    def is_held(self) -> bool:
        """Whether what the ledger has is held, or in the cut with which members begin."""
        lives = any(self.knows(inc) and inc not in self.lost for inc in self.held_by)
        return lives or self.restored_for == self.number

    def knows(self, inc: Inc) -> bool:
        """Whether this incarnation is in the newest group."""
        return inc in self._members

    def is_empty_handed(self, inc: Inc) -> bool:
        """Whether a worker is not known to hold the model."""
        if self.begun is not None:
            joins = inc in self.begun.joiners and self.step == self.begun.step
            return joins or not self.knows(inc)
        said = self.stopped.get(inc)
        return said is not None and said.step == NO_STEP

    # ------------------------------------------------------------------ who is there

    def join(
        self,
        message: JoinGroup,
        node: str,
        *,
        expected: int,
        distant: bool = False,
        files: str = "",
    ) -> list[Instruction]:
        """A worker wants to train.

        Args:
            message: its word.
            node: where it lives.
            expected: workers without which a run's first group, or a sharded one, waits (see
                `form`).
            distant: see `Member`.
            files: see `Member`.
        """
        inc = message.inc
        self.awaited = expected
        if self.replica and message.replica != self.replica:
            return [self._refuse(message, node)]
        self.replica = message.replica
        self.ready[inc] = Member(inc, node, message.address, distant, files, message.place)
        if self.knows(inc):
            # It waits, so it misses a member that is gone.
            return self._ask([inc]) or (self.form() if self.running and self.lost else [])
        return self.form(expected=expected)

    def _refuse(self, message: JoinGroup, node: str) -> WorkerRefused | Fail:
        """Once others have trained, who has built another model ends alone, not the job.

        Of shards all are needed.
        """
        reason = replica_difference(node, self.replica, message.replica)
        if self.sharded or not self.number:
            return Fail(reason)
        return WorkerRefused(
            message.inc, f"{reason}, and leave the script of a running job as it is"
        )

    def leave(self, inc: Inc, *, returned: bool = False) -> list[Instruction]:
        """A worker is dead or given up: the others go on without it.

        ``returned``: its script had come to its end, and so will the others': they form a group
        without it only if they miss it.
        """
        self.ready.pop(inc, None)
        if not self.knows(inc) or inc in self.lost:
            return []
        self.lost.add(inc)
        return self.form() if not (returned and self.running) or self.broken else []

    def form(self, *, expected: int = 0) -> list[Instruction]:
        """Form the next group, if it would be another one and there are enough for it.

        Args:
            expected: where nobody has trained yet in this run, wait for so many.
        """
        wanted = self._next_members(expected)
        return [] if isinstance(wanted, NoGroup) else self._form_of(wanted)

    def _form_of(self, members: tuple[Member, ...]) -> list[Instruction]:
        self.at_once = self._is_hurt
        formed = self._record(GroupFormed(self.number + 1, members, self.replica))
        return [formed, *self._ask(member.inc for member in members)]

    def _next_members(self, expected: int) -> tuple[Member, ...] | NoGroup:
        if self.running and not (self._is_hurt or self.ready.keys() - self._members.keys()):
            return NoGroup(WhyNone.SAME)
        least = max(self.min_members, expected) if self.gathers else self.min_members
        if self.sharded:
            least = self.awaited
            if self.ready.keys() & self._members.keys():
                former = [one.node for one in in_order(self.ready.values()) if self.knows(one.inc)]
                reason = f"the lives of {', '.join(former)} in the group before have not ended"
                return NoGroup(WhyNone.FORMER_LIVES, reason)
        if len(self.ready) < max(1, least):
            have = f"{len(self.ready)} of {least} workers are" if self.ready else "no worker is"
            return NoGroup(WhyNone.TOO_FEW, f"{have} ready")
        if self._is_hurt or self.running or not self.number:
            return in_order(self.ready.values())
        return NoGroup(WhyNone.FORMS, self._forming())

    def _forming(self) -> str:
        if unheard := self.unheard():
            return f"the last step of {', '.join(unheard)} is not known yet"
        return "members copy the state of others, or load a cut"

    @property
    def waits(self) -> NoGroup:
        """Why the workers that are there do not train; `WhyNone.SAME`: they do, or will at once."""
        decided = self._next_members(self.awaited)
        return decided if isinstance(decided, NoGroup) else NoGroup(WhyNone.SAME)

    @property
    def _is_hurt(self) -> bool:
        """Whether the newest group cannot go on as it is."""
        return bool(self.lost or self.broken)

    def unheard(self) -> tuple[str, ...]:
        """The nodes of members that have not said that they stopped."""
        known = self.stopped.keys() | self.lost
        return tuple(member.node for member in self.members if member.inc not in known)

    def stop_at_once(self) -> list[Instruction]:
        """Have members stop in mid-step: those that wait for its end wait for one without one."""
        self.at_once = True
        return self.resend()

    def break_up(self, reason: str) -> list[Instruction]:
        """Have the members of a running group, none of which hangs, meet again."""
        self.broken.update((member.inc, reason) for member in self.members)
        return self.form()

    def see_chief(self, *, is_gone: bool) -> list[Instruction]:
        """Take in whether worker-0 is gone for good: a group that does not know it meets again.

        It does so between two steps. Nobody meets while a life of worker-0 is there, or there are
        too few.
        """
        self.lacks_chief = is_gone
        knows = self.begun is None or self.begun.lacks_chief
        if not is_gone or self.sharded or knows or len(self.ready) < max(1, self.min_members):
            return []
        if any(one.node == CHIEF for one in self.ready.values()):
            return []
        return self._form_of(in_order(self.ready.values()))

    # ------------------------------------------------------------------ re-forming

    def _ask(self, incs: Iterable[Inc]) -> list[Instruction]:
        """Ask these members again for whatever is awaited of them."""
        if self.begun is not None:
            run = [inc for inc in incs if inc in self.untold]
            if not run:
                return []
            if self._orders is None:
                self._orders = self._run_orders(self.begun)
            return [Send(inc, self._to_run(inc, self.begun, self._orders)) for inc in run]
        waiting = [inc for inc in incs if inc not in self.lost]
        return [Send(inc, message) for inc in waiting if (message := self._asked(inc))]

    def _asked(self, inc: Inc) -> StopGroup | CatchUp | None:
        said = self.stopped.get(inc)
        if said is None:
            return StopGroup(
                epoch_no=self.epoch_no, inc=inc, group=self.number, at_once=self.at_once
            )
        source = self._source(inc)
        if source is None or said.step == source.step or self._joins(said):
            return None
        if inc != source.inc and not self._holder:
            return None  # nor does the source hold it yet
        cut = self.start.cut if self.start is not None and inc == source.inc else None
        return self._catch_up(inc, source.inc, source.step, source.committed, cut)

    def _catch_up(
        self,
        inc: Inc,
        source: Inc,
        step: StepNo,
        committed: tuple[Span, ...],
        cut: CutRef | None = None,
    ) -> CatchUp:
        return CatchUp(
            epoch_no=self.epoch_no,
            inc=inc,
            group=self.number,
            step=step,
            source=self._members[source],
            committed=committed,
            cut=cut,
        )

    def _source(self, inc: Inc) -> GroupStopped | None:
        """Return the member that one behind copies from; None: not all have said something yet."""
        if not self._all_heard:
            return None
        if self.sharded:
            return self._beginner(inc)
        if self._holder:
            return self.stopped[self._holder]
        # It reads a cut, which all others copy from its memory.
        return self._beginner(self._reader)

    @property
    def _all_heard(self) -> bool:
        """Whether all members have said which step they completed last."""
        return len(self.stopped) == len(self._members)

    def _find_holder(self) -> Inc:
        """The first member that holds the newest step; 0: nobody holds any."""
        newest = max(self._steps, default=NO_STEP)
        if not self._all_heard or newest == NO_STEP:
            return NO_INC
        return next(inc for inc in self._members if self.stopped[inc].step == newest)

    @property
    def _joiners_may_wait(self) -> bool:
        """Whether members that hold nothing copy while the others train, who do not wait."""
        begins = self.restored_for == self.number
        return bool(self._holder) and not (self.sharded or self.copies_at_rest or begins)

    def _joins(self, said: GroupStopped) -> bool:
        """Whether a member comes with nothing to others that train."""
        return said.step == NO_STEP and self._joiners_may_wait

    def _beginner(self, inc: Inc) -> GroupStopped | None:
        """This member, as it will be; None: what it is to begin with is not chosen yet."""
        # Who holds a step says that it was chosen, by a former master.
        if self.start is None or not (self.restored_for == self.number or self._holder):
            return None
        return GroupStopped(
            epoch_no=self.epoch_no,
            inc=inc,
            group=self.number,
            step=self.start.step,
            committed=self.start.committed,
        )

    def _run_orders(self, begun: GroupBegun) -> _RunOrders:
        whole = RunGroup(
            epoch_no=self.epoch_no,
            inc=NO_INC,
            group=self.number,
            step=begun.step,
            members=self.members,
            division=begun.division,
            check=self.check and begun.step == 0 and self.number == self.first,
            joiners=begun.joiners,
            lacks_chief=begun.lacks_chief,
        )
        base, former = self._ran_before
        fresh = tuple(one for one in whole.members if former.get(one.inc) != one)
        left = tuple(inc for inc, one in former.items() if self._members.get(inc) != one)
        change = msgspec.structs.replace(whole, base=base, members=fresh, left=left)
        joiners = frozenset(begun.joiners)
        source = next((inc for inc in self._members if inc not in joiners), NO_INC)
        return _RunOrders(whole, change, joiners, source)

    def _to_run(self, inc: Inc, begun: GroupBegun, orders: _RunOrders) -> RunGroup:
        """Address the order to a member: with all members, if it does not know the former ones."""
        said = self.stopped.get(inc)
        knows = said is not None and said.ran and said.ran == orders.change.base
        catch_up = None
        if inc in orders.joiners:
            catch_up = self._catch_up(inc, orders.source, begun.step, begun.committed)
        order = orders.change if knows else orders.whole
        return msgspec.structs.replace(order, inc=inc, catch_up=catch_up)

    def stopped_said(self, message: GroupStopped) -> list[Instruction]:
        """A member has stopped for good, or caught up."""
        inc = message.inc
        if message.group != self.number or self.running or not self.knows(inc):
            return []
        if inc in self.lost or message.epoch_no != self.epoch_no:
            return []
        said = self.stopped.get(inc)
        if said is not None and said.step >= message.step:
            return self._ask([inc])
        if said is not None:
            self._steps -= Counter([said.step])
        self.stopped[inc] = message
        self._steps[message.step] += 1
        if self._holder and message.step <= self.stopped[self._holder].step:
            return self._go_on([inc])
        self._holder = self._find_holder()
        return self._go_on(self._members) if self._all_heard else []

    def _go_on(self, asked: Iterable[Inc]) -> list[Instruction]:
        """Run the group if all hold the same step; else ask these members, who have news."""
        steps = {step for step in self._steps if step != NO_STEP or not self._joiners_may_wait}
        if steps == {NO_STEP}:
            return []  # `restore` follows
        if len(steps) > 1:
            return self._ask(asked)
        (step,) = steps
        joiners = tuple(inc for inc in self._members if self._joins(self.stopped[inc]))
        sets = {said.committed for said in self.stopped.values() if not self._joins(said)}
        if len(sets) > 1:
            return [Fail(f"members that hold step {step} disagree on what is in the model")]
        begun = GroupBegun(
            group=self.number,
            step=step,
            committed=next(iter(sets)),
            division=division(self.plan, self.members),
            joiners=joiners,
            lacks_chief=self.lacks_chief,
        )
        return [self._record(begun), *self._ask(self._members), *self.form()]

    @property
    def needs_restore(self) -> bool:
        """Whether nobody holds state: an epoch has to begin, from a cut if there is one."""
        restored = self.running or self.restored_for == self.number
        return self._is_empty and not restored

    @property
    def _is_empty(self) -> bool:
        """Whether all members have said that they hold no state."""
        return self._all_heard and self._steps.keys() == {NO_STEP}

    def restore(self, cut: CutValid | None) -> list[Instruction]:
        """Begin an epoch: the first member loads this cut, or none, and all others copy from it.

        Sharded: each loads its part of it.
        """
        if not self.needs_restore:
            return []
        record = GroupRestored(
            epoch_no=EpochNo(self.epoch_no + 1),
            step=cut.step if cut is not None else START,
            committed=cut.committed if cut is not None else (),
            cut=cut.cut if cut is not None else None,
        )
        self.restored_for = self.number
        return [self._record(record), *self._ask(self.stopped)]

    def progress(self, message: Progress) -> tuple[Span, ...] | None:
        """Return what is in the model by a member's word.

        None: it is not of the running group, or all members hold that step by another's word.
        """
        if (message.epoch_no, message.group) != (self.epoch_no, self.number) or not self.running:
            return None
        self.untold.discard(message.inc)
        self.divided[message.inc] = message.division
        if message.step <= self.step:
            return None
        self.step = message.step
        return message.committed

    # ------------------------------------------------------------------ plans

    def divide(self) -> list[Instruction]:
        """Have steps divided by the plan: tell each member that does not say so (again)."""
        if not self.running:
            return []  # the next group begins by it
        wanted = division(self.plan, self.members)
        behind = [
            inc for inc, no in self.divided.items() if no < wanted.no and inc not in self.lost
        ]
        return [
            Send(inc, Divide(epoch_no=self.epoch_no, inc=inc, group=self.number, division=wanted))
            for inc in behind
        ]

    @property
    def divides_by(self) -> int:
        """Number of the newest plan by which all members divide their steps."""
        return min((no for inc, no in self.divided.items() if inc not in self.lost), default=0)

    def broken_said(self, message: Broken) -> list[Instruction]:
        """A member cannot work in the running group; `form` is due if nobody is found dead.

        One that holds a shard leaves it so: all lives end.
        """
        if self.sharded:
            return []
        of_this = (message.epoch_no, message.group) == (self.epoch_no, self.number)
        if of_this and self.running and self.knows(message.inc) and message.inc not in self.lost:
            self.broken[message.inc] = message.reason
            return self.form() if self.lost else []
        return []

    def resume(self, gone: AbstractSet[Inc] = frozenset()) -> None:
        """After the journal was applied: members live until somebody says that they do not.

        Args:
            gone: members whose end is in the journal; nobody will report it again.
        """
        self.lost = {member.inc for member in self.members} & gone
        self.ready = {one.inc: one for one in self.members if one.inc not in gone}
        self.awaited = len(self.members)

    def resend(self) -> list[Instruction]:
        """Everything that is unanswered, once more."""
        return [*self._ask([member.inc for member in self.members]), *self.divide()]


def division(plan: Plan, members: Sequence[Member]) -> Division:
    """How these members divide a step by this plan."""
    if not plan.shares and plan.chunks == 1:
        return Division(plan.no, lacking=plan.lacking)
    nodes = [member.node for member in members]
    shares = [plan.share_of(node) for node in nodes]
    # What is handed in piece by piece is computed so, too.
    batches = [max(plan.chunks, share.accumulation if share else 1) for share in shares]
    return Division(plan.no, tuple(map(MemberPart, plan.sizes_of(nodes), batches)), plan.lacking)


def replica_difference(node: str, known: str, other: str) -> str:
    """Why a worker cannot train with the others."""
    return (
        f"{node} has prepared another model than the others ({other}, they have {known}); "
        "build the same model and optimizers in every worker, whatever its rank"
    )
