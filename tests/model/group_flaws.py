"""Flaws of all-reduce that the explorer must find: each is one rule of the protocol, taken out.

See ``flaws.py``; "found in production code" are those that a search has shown there.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from paceline.base.samples import SampleSet, Span
from paceline.protocol.acts import Instruction
from paceline.protocol.holding.group import member as member
from paceline.protocol.holding.group.formation import Formation, Records
from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.holding.group.member import Copy, MemberState, Say
from paceline.protocol.records import GroupBegun, GroupFormed
from paceline.wire.messages.group import (
    NO_STEP,
    CatchUp,
    GroupStopped,
    GroupUp,
    JoinGroup,
    RunGroup,
    StopGroup,
)

from .group_bounds import DIFFER, Bounds, Machines


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """One rule left out."""

    name: str
    finds: str
    """Letters of the invariants that may break first."""
    machines: Machines
    bounds: Bounds
    finish: bool = True
    """Look for F too."""


# ---------------------------------------------------------------------- members


class OwnStepCounts(MemberState):
    """Says that all members hold the step that it has just completed."""

    def updated(self, spans: Iterable[Span], *, last: bool) -> list[member.Instruction]:
        done = super().updated(spans, last=last)
        self.proved = (self.step, self.done.spans())
        return done


class CompletesAfterStop(MemberState):
    """A step that is all here changes the model, whatever has become of the group."""

    def begin_update(self, run: RunGroup) -> bool:
        super().begin_update(run)
        self.updating = True
        return True


class CountsBeforeTheModel(MemberState):
    """The step counts from the moment in which it begins to change the model."""

    def begin_update(self, run: RunGroup) -> bool:
        begins = super().begin_update(run)
        self.step += begins
        return begins

    def updated(self, spans: Iterable[Span], *, last: bool) -> list[member.Instruction]:
        self.step -= 1
        return super().updated(spans, last=last)


class RunsAgain(MemberState):
    """A repeated `RunGroup` is taken as new."""

    def run_group(self, message: RunGroup) -> list[member.Instruction]:
        if message.group == self.group:
            self.ran = 0
        return super().run_group(message)


class KeepsWhatDiffers(MemberState):
    """Goes on with what it holds, though most others hold something else."""

    def diverged(self, run: RunGroup, what: str, *, gives_up: bool) -> list[member.Instruction]:
        return super().diverged(run, what, gives_up=False)


class GivesUpWhatItHasSaid(MemberState):
    """Gives its state up after it has said, as it stopped, that it holds it."""

    def diverged(self, run: RunGroup, what: str, *, gives_up: bool) -> list[member.Instruction]:
        done = super().diverged(run, what, gives_up=gives_up)
        if gives_up:
            self.step, self.done, self.proved = NO_STEP, SampleSet(), (NO_STEP, ())
        return done


class AnswersInAnUpdate(MemberState):
    """Says that it has stopped while the step changes the model."""

    def stop_group(self, message: StopGroup) -> list[member.Instruction]:
        updating, self.updating = self.updating, False
        done = super().stop_group(message)
        self.updating = updating
        return done


class HandsOutAtAnyTime(MemberState):
    """Peers may copy a model that is being changed."""

    @property
    def at_rest(self) -> bool:
        return True


class NamesTheNewestGroup(MemberState):
    """Speaks of its progress as that of a group that it is not in yet (found in production code)."""

    def progress(self) -> Say:
        return Say(msgspec.structs.replace(super().progress().message, group=self.group))


class LoadsWhatIsNotWanted(MemberState):
    """A copy that was ordered for a former group is loaded (found in production code)."""

    def may_load(self, order: CatchUp) -> bool:
        return True

    def copied(self, order: CatchUp) -> list[member.Instruction]:
        return super().copied(order) if self.copying == order else []


class WaitsAtEveryEnd(MemberState):
    """Waits at the end of a feed for those who are beyond it (found in production code)."""

    def run_group(self, message: RunGroup) -> list[member.Instruction]:
        ran, done = self.ran, super().run_group(message)
        if self.ran > ran:
            self.proved = (NO_STEP, ())
        return done


class ProvesForAnotherGroup(MemberState):
    """The end of a feed in one group counts for the next (found in production code)."""

    def proven(self, run: RunGroup, *, last: bool) -> list[member.Instruction]:
        return super().proven(self.running or run, last=last)


class ForgetsToStop(MemberState):
    """Goes on in the old group while it says that it has stopped."""

    def _stop(self) -> list[member.Instruction]:
        self.stopping = None
        return [self._stopped()]


class TakesItsCopyForDone(MemberState):
    """Who joins enters its first step at once."""

    def run_group(self, message: RunGroup) -> list[member.Instruction]:
        ran, done = self.ran, super().run_group(message)
        if self.ran > ran and self.copying is not None:
            return [*(one for one in done if not isinstance(one, Copy)), *self.copied(self.copying)]
        return done


class AsksForNoOtherPeer(MemberState):
    """Who joins waits for a peer that has gone."""

    def resend(self) -> list[member.Instruction]:
        return [self.progress()] if self.running is not None else super().resend()


# ---------------------------------------------------------------------- the master


def with_group(kind: type[Formation]) -> type[GroupHolder]:
    """A master whose part of re-forming is this one."""

    class WithGroup(GroupHolder):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.group = kind(min_members=1)

    # Pickled by its name.
    WithGroup.__name__ = WithGroup.__qualname__ = f"With{kind.__name__}"
    globals()[WithGroup.__name__] = WithGroup
    return WithGroup


class BeginsWithTheFirst(Formation):
    """The first answer is taken for everybody's."""

    def stopped_said(self, message: GroupStopped) -> list[Instruction]:
        done = super().stopped_said(message)
        if self.running or message.inc not in self.stopped:
            return done
        begun = GroupBegun(group=self.number, step=message.step, committed=message.committed)
        return [*done, self._record(begun), *self._ask(self._members)]


class CountsBeforeAllHold(GroupHolder):
    """What one member says it has completed counts, before the others hold it."""

    def member_said(
        self, message: GroupUp, *, node: str = "", expected: int = 0, distant: bool = False
    ) -> list[Instruction]:
        if isinstance(message, GroupStopped) and message.group == self.group.number:
            self.core.ledger.advance(message.committed)
        return super().member_said(message, node=node, expected=expected, distant=distant)


class TakesBackTheExcluded(Formation):
    """After a restart whoever was excluded may come back (found in production code)."""

    def apply(self, record: Records) -> None:
        super().apply(record)
        self.gone.clear()


class MissesNobody(Formation):
    """A member that waits in a running group is not heard (found in production code)."""

    def join(
        self,
        message: JoinGroup,
        node: str,
        *,
        expected: int,
        distant: bool = False,
        files: str = "",
    ) -> list[Instruction]:
        lost, self.lost = self.lost, set()
        done = super().join(message, node, expected=expected, distant=distant, files=files)
        self.lost |= lost
        return done


class OnlyTheNearBegin(Formation):
    """A cut is read by a member near it, or by nobody."""

    def _source(self, inc: int) -> GroupStopped | None:
        found = super()._source(inc)
        holds = found is not None and self._holder
        near = any(not member.distant for member in self.members)
        return found if holds or near else None


class WaitsForTheNear(Formation):
    """Members of other machines that hold nothing wait for one that is near the cuts."""

    @property
    def needs_restore(self) -> bool:
        return super().needs_restore and not all(member.distant for member in self.members)


class BelievesTheExcluded(Formation):
    """What a member of a former group says it has completed counts for this one."""

    def stopped_said(self, message: GroupStopped) -> list[Instruction]:
        return super().stopped_said(msgspec.structs.replace(message, group=self.number))


def _job(*kinds: str, **bounds: Any) -> Bounds:
    return Bounds(**{"failures": 1, "kinds": kinds, **bounds})


FLAWS = [
    Flaw(
        name="a member's own step counts",
        finds="D",
        machines=Machines(member=OwnStepCounts),
        bounds=_job("member"),
    ),
    Flaw(
        name="the first answer counts as that of all",
        finds="ADH",
        machines=Machines(holder=with_group(BeginsWithTheFirst)),
        bounds=_job("break"),
        finish=False,
    ),
    Flaw(
        name="a step counts before all hold it",
        finds="D",
        machines=Machines(holder=CountsBeforeAllHold),
        bounds=_job("break"),
    ),
    Flaw(
        name="the word of a former group counts",
        finds="ABDEH",
        machines=Machines(holder=with_group(BelievesTheExcluded)),
        bounds=_job("break", begun=False, reduce=False),
        finish=False,
    ),
    Flaw(
        name="a member that was told to stop still completes",
        finds="ABEH",
        machines=Machines(member=CompletesAfterStop),
        bounds=_job("suspect", "break"),
        finish=False,
    ),
    Flaw(
        name="a member that says it has stopped goes on",
        finds="ABEH",
        machines=Machines(member=ForgetsToStop),
        bounds=_job("suspect", "break"),
        finish=False,
    ),
    Flaw(
        name="a step counts before it is in the model",
        finds="H",
        machines=Machines(member=CountsBeforeTheModel),
        bounds=_job(failures=0),
    ),
    Flaw(
        name="a group is not journalled",
        finds="DEFH",
        machines=Machines(unjournalled=(GroupFormed,)),
        bounds=_job("suspect", "master", failures=2),
    ),
    Flaw(
        name="a repeated word to run is taken as new",
        finds="AEH",
        machines=Machines(member=RunsAgain),
        bounds=_job(failures=0, begun=False, reduce=False),
        finish=False,
    ),
    Flaw(
        name="a member keeps what most differ from",
        finds="E",
        machines=Machines(member=KeepsWhatDiffers),
        bounds=_job(DIFFER),
        finish=False,
    ),
    Flaw(
        name="a member gives up what it has said to hold",
        finds="A",
        machines=Machines(member=GivesUpWhatItHasSaid),
        bounds=_job(DIFFER, "suspect", failures=2),
        finish=False,
    ),
    Flaw(
        name="a member stops in an update",
        finds="ABEH",
        machines=Machines(member=AnswersInAnUpdate),
        bounds=_job("break"),
        finish=False,
    ),
    Flaw(
        name="a model that is being changed is copied",
        finds="H",
        machines=Machines(member=HandsOutAtAnyTime),
        bounds=_job("break", "suspect", failures=2),
        finish=False,
    ),
    Flaw(
        name="a joining member enters a step without its state",
        finds="EH",
        machines=Machines(member=TakesItsCopyForDone),
        bounds=_job(failures=0, joiners=1),
        finish=False,
    ),
    Flaw(
        name="a joining member waits for a peer that has gone",
        finds="F",
        machines=Machines(member=AsksForNoOtherPeer),
        bounds=_job(failures=0, joiners=1, slices=1, returns=True),
    ),
    Flaw(
        name="progress names a group that is not run yet",
        finds="F",
        machines=Machines(member=NamesTheNewestGroup),
        bounds=_job("leave"),
    ),
    Flaw(
        name="a copy that is not wanted any more is loaded",
        finds="BH",
        machines=Machines(member=LoadsWhatIsNotWanted),
        bounds=_job("leave"),
    ),
    Flaw(
        name="the end of a feed waits for those beyond it",
        finds="F",
        machines=Machines(member=WaitsAtEveryEnd),
        bounds=_job("break"),
    ),
    Flaw(
        name="a member at the end of a feed is in one step with those beyond it",
        finds="H",
        machines=Machines(member=WaitsAtEveryEnd),
        bounds=_job("break", feeds=2),
        finish=False,
    ),
    Flaw(
        name="an end proven in one group pauses the next",
        finds="F",
        machines=Machines(member=ProvesForAnotherGroup),
        bounds=_job("suspect", feeds=2, slices=1),
    ),
    Flaw(
        name="no member misses one that has left",
        finds="F",
        machines=Machines(holder=with_group(MissesNobody)),
        bounds=_job("leave"),
    ),
    Flaw(
        name="no member on another machine begins with a cut",
        finds="F",
        machines=Machines(holder=with_group(OnlyTheNearBegin)),
        bounds=_job("member", members=1, slices=1, joiners=1, distant=True),
    ),
    Flaw(
        name="members on other machines alone wait forever",
        finds="F",
        machines=Machines(holder=with_group(WaitsForTheNear)),
        bounds=_job("member", members=1, slices=1, joiners=1, distant=True),
    ),
    Flaw(
        name="a member that was excluded comes back",
        finds="DE",
        machines=Machines(holder=with_group(TakesBackTheExcluded)),
        bounds=_job("suspect", "master", failures=2),
        finish=False,
    ),
]
