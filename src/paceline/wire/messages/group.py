"""All-reduce: between the master and the members of the group, and among members.

The protocol is that of docs/protocols/integrity.md, section 8.
"""

from collections.abc import Iterable, Sequence

import msgspec

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span
from paceline.wire.messages.base import CutRef, EpochMessage, GroupMessage, LifeMessage
from paceline.wire.messages.order import Lacking

NO_STEP = StepNo(-1)
"""The last complete step of a member that holds no state."""
STILL = -1
"""Instead of the number of a part."""
BEYOND = -2
"""Instead of the number of a part that is handed out: our script is further than who asks."""
NO_FEED = -1
"""A script is between two loops."""
ANYWHERE = -2
"""Instead of a feed: the state is wanted wherever the script of who holds it is."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One member of a group: its incarnation, its node and where its peers reach it.

    ``distant``: files of cuts cross the network from the master to it, or from it to the master.
    ``files``: of shards, where a distant member takes copies of others' cuts; empty: nowhere.
    ``place``: members of one place may share memory; empty: this one shares it with nobody.
    """

    inc: Inc
    node: str
    address: str
    distant: bool = False
    files: str = ""
    place: str = ""


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Sort by node, not by arrival: the order of starts must not decide who computes what."""
    return tuple(sorted(members, key=lambda one: (len(one.node), one.node, one.inc)))


class MemberPart(msgspec.Struct, frozen=True, array_like=True):
    """Part of each step that one member computes.

    ``size``: in proportion to those of the others; ``accumulation``: in so many batches.
    """

    size: int = 1
    accumulation: int = 1


class Division(msgspec.Struct, frozen=True, array_like=True):
    """The division of a step among the members: the plan of this number, member by member.

    Without ``parts`` all compute alike, in one batch. ``lacking``: what of a whole step the others
    do not wait for.
    """

    no: int = 0
    parts: tuple[MemberPart, ...] = ()
    lacking: Lacking = Lacking()


# --------------------------------------------------------------------------- up


class JoinGroup(LifeMessage, frozen=True):
    """worker -> master: it is prepared and wants to train; resent until it must stop or run.

    ``replica``: what the model is made of, the same for all members. ``place``: see `Member`.
    """

    address: str
    replica: str = ""
    place: str = ""


class GroupStopped(GroupMessage, frozen=True):
    """member -> master: nothing of a group before ``group`` enters the model any more.

    ``step`` is the last complete one, ``NO_STEP`` without state; ``committed``: in the model then.
    ``ran``: the group whose members it knows, the last in which it worked; 0: none.
    """

    step: StepNo
    committed: tuple[Span, ...] = ()
    ran: int = 0


class Progress(GroupMessage, frozen=True):
    """member -> master: it runs in ``group``; all members hold ``step``, and so ``committed``.

    ``division``: number of that by which it divides its next step.
    """

    step: StepNo
    committed: tuple[Span, ...] = ()
    division: int = 0

    def is_like(self, other: "Progress") -> bool:
        """Whether another word tells of further steps alone, and of nothing that has changed."""
        here = self.epoch_no, self.inc, self.group, self.division
        return here == (other.epoch_no, other.inc, other.group, other.division)


class Broken(GroupMessage, frozen=True):
    """member -> master: it cannot work in ``group`` any more; resent until a `StopGroup` comes.

    ``diverged``: members do not hold the same, as ``reason`` says; those that most differ from
    come into the next group with nothing.
    """

    reason: str = ""
    diverged: bool = False


class GroupLeft(LifeMessage, frozen=True):
    """worker -> master: it works in no group any more, and is about to end; said once.

    The others need not wait for the end of its process, which tells the same.
    """


class Profiled(LifeMessage, frozen=True):
    """member -> master: what ``batches`` of ``size`` samples took, which were not applied.

    ``batch_s``: mean of one, from the end of the one before; ``peak_bytes``: the most memory that
    its process had meanwhile.
    """

    size: int
    batches: int
    batch_s: float
    peak_bytes: int = 0


GroupUp = JoinGroup | GroupStopped | Progress | Broken | GroupLeft

# --------------------------------------------------------------------------- down


class StopGroup(GroupMessage, frozen=True):
    """master -> member: stop for good in all groups before ``group``, then say `GroupStopped`.

    Not ``at_once``: the members agree on a step that they still complete together.
    """

    at_once: bool = True


class CatchUp(GroupMessage, frozen=True):
    """master -> member: copy the state of ``step`` from this member, then say `GroupStopped` again.

    ``source`` is the member itself where nobody holds any: then its state is that of ``cut``, or
    without one what it was built with.
    """

    step: StepNo
    source: Member
    committed: tuple[Span, ...] = ()
    cut: CutRef | None = None


class RunGroup(GroupMessage, frozen=True):
    """master -> member: all of these hold ``step``, but those that join; go on from there.

    ``joiners`` (incarnations) have no share of the first step: they copy the state before they are
    in it, as ``catch_up`` says to each of them. ``check``: all measure their links first.

    ``members``: all of them; or, where ``base`` is the group in which it worked last, those that
    were not in that one, while those of ``left`` are no more.

    ``lacks_chief``: worker-0 is gone for good, and the first of the members stands in for it.
    """

    step: StepNo
    members: tuple[Member, ...]
    division: Division = Division()
    check: bool = False
    joiners: tuple[Inc, ...] = ()
    catch_up: CatchUp | None = None
    base: int = 0
    left: tuple[Inc, ...] = ()
    lacks_chief: bool = False

    def over(self, former: Sequence[Member]) -> "RunGroup":
        """Return the message with all members; ``former``: those of the group ``base``."""
        stay = (one for one in former if one.inc not in self.left)
        everybody = in_order([*stay, *self.members])
        return msgspec.structs.replace(self, members=everybody, base=0, left=())


class Divide(GroupMessage, frozen=True):
    """master -> member: divide steps so, as soon as all members of ``group`` have heard of it.

    Resent until `Progress` says that it does.
    """

    division: Division


class ProfileBatches(LifeMessage, frozen=True):
    """master -> member: compute so many batches of ``size`` samples, or more; apply none of them.

    Before your part of the next steps; answer: `Profiled`. What is measured already is said again.
    Resent until it is answered.
    """

    size: int
    batches: int


# --------------------------------------------------------------------------- among members


class Meet(GroupMessage, frozen=True):
    """member -> member: what the group's store holds under ``key``; the value is a frame."""

    key: str


class Computed(GroupMessage, frozen=True):
    """member -> member: it has computed its share of a step that may lack some (`Lacking`)."""

    step: StepNo


class AskState(EpochMessage, frozen=True):
    """member -> member: part ``part`` of the state of ``step``.

    `STILL`: is it still what the peer holds, at rest? Asked after its memory was read. A peer that
    has begun an update since answers with part 0, and all is read again.

    It is answered where both scripts are within the same feed: between two loops a script changes
    its own state, and nobody knows how much of that another script has done.
    """

    step: StepNo
    part: int
    within: int
    """The feed that our script trains on or evaluates; `NO_FEED`: none. `ANYWHERE`."""
    loop_edge: int
    """The last beginning or end of a loop that our script has passed: twice the number of the
    loop's feed, and one more if it was the end; -1: none."""


class StatePart(EpochMessage, frozen=True):
    """member -> member: part ``part`` of ``num_parts``; the frame is its bytes.

    Part 0 says what the others are made of, and where they lie in memory: of the process ``pid`` of
    ``machine``, tensor by tensor (``addresses``; none: they cannot be read there). ``digest``:
    CRC-32 of the frame.
    """

    step: StepNo
    part: int
    within: int
    num_parts: int
    digest: int
    machine: str = ""
    pid: int = 0
    addresses: tuple[int, ...] = ()
