"""The master's part of a job whose workers hold the model: what a `Formation` decides.

What the members hold is in the model by their word (`Progress`): DONE grows by it, and a feed is
over when a cut on disk holds all of it. Samples to train on are not leased, the members share every
slice by themselves; those to evaluate are.
"""

from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.numbering import NO_CUT, NO_INC, START, CutNo, Inc, StepNo
from paceline.protocol.acts import (
    FeedDone,
    Instruction,
    Send,
    WriteAhead,
)
from paceline.protocol.holding.group.formation import Formation
from paceline.protocol.holding.holder import Holder
from paceline.protocol.records import (
    CutValid,
    GroupBegun,
    GroupFormed,
    GroupKept,
    GroupProgressed,
    GroupRestored,
    Planned,
    Records,
    Returned,
)
from paceline.protocol.samples.plans import NO_PLAN, GlobalAction
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.group import (
    Broken,
    GroupLeft,
    GroupStopped,
    GroupUp,
    JoinGroup,
    Progress,
)
from paceline.wire.messages.node import (
    AskCut,
    FeedOpened,
    GivenUp,
)
from paceline.wire.schema import ModelSchema

if TYPE_CHECKING:
    from paceline.protocol.snapshot import Snapshot

AWAITS_CHIEF = "until worker-0 has done what stands behind the last loop"


GroupRecordsTakes = GroupFormed | GroupRestored | GroupBegun | GroupProgressed
"""Records of jobs whose workers hold the model."""


class GroupHolder(Holder):
    """The workers of one job that hold its state themselves: all of it each, or a shard."""

    leases_training = False
    model = ModelSchema()

    def __init__(
        self,
        *,
        min_members: int = 1,
        check: bool = False,
        copies_at_rest: bool = False,
        sharded: bool = False,
    ) -> None:
        """See `Formation`."""
        self.group = Formation(
            min_members=min_members, check=check, sharded=sharded, copies_at_rest=copies_at_rest
        )
        #: Not sharded: the member that copies cuts.
        self.holder = NO_INC
        #: Members whose scripts have returned, and that stay until what they hold is kept.
        self.leaving: set[Inc] = set()
        #: Feed -> the step after which scripts left it; they have returned, or wait behind it.
        self.left_at: dict[int, StepNo] = {}
        #: Feed -> the newest cut that was known when it was left: later ones are of its end.
        self._behind_cut: dict[int, CutNo] = {}

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> bool:
        if not isinstance(record, GroupRecordsTakes):
            return False
        match record:
            case GroupFormed() | GroupRestored() | GroupBegun():
                self.group.apply(record)
                self._follow_group(record)
            case GroupProgressed():
                self.core.step = max(self.core.step, record.step)
                self.core.ledger.advance(record.committed)
            case _:
                assert_never(record)
        return True

    def applied(self, record: Records) -> None:
        if isinstance(record, Planned):
            self.group.plan = record.plan

    def _follow_group(self, record: object) -> None:
        """Follow a record of the group with the ledger; one that forms has trained on nothing."""
        if isinstance(record, GroupRestored):
            self.core.epoch_no, self.core.step = record.epoch_no, record.step
            self.core.go_back(record.committed)
        elif isinstance(record, GroupBegun):
            self.core.step = record.step
            self.core.ledger.advance(record.committed)

    def resume(self) -> list[Instruction]:
        self.group.resume(self.core.gone)
        return []

    # ------------------------------------------------------------------ the group

    def _in_group(self, done: list[Instruction]) -> list[Instruction]:
        """Return the group's decisions after the ledger has followed them."""
        for one in done:
            if isinstance(one, WriteAhead):
                self._follow_group(one.record)
        return done

    def member_said(
        self,
        message: GroupUp,
        *,
        node: str = "",
        expected: int = 0,
        distant: bool = False,
        files: str = "",
    ) -> list[Instruction]:
        """A worker's word about the group.

        Args:
            message: what it says.
            node: where it lives.
            expected: workers for which a run's first group waits.
            distant: see `Member`.
            files: see `Member`.
        """
        inc = message.inc
        if self.core.is_given_up(inc):
            return [Send(inc, GivenUp(inc=inc))]
        if inc not in self.core.workers:
            return []
        match message:
            case JoinGroup():
                self.core.prepared.add(inc)
                joined = self.group.join(
                    message, node, expected=expected, distant=distant, files=files
                )
                return self._in_group(joined)
            case GroupStopped():
                return self._in_group(self.group.stopped_said(message))
            case Broken():
                return self._in_group(self.group.broken_said(message))
            case Progress():
                # A running member says nothing else to a master that was started again.
                self.core.prepared.add(inc)
                return self._progress(message)
            case GroupLeft():
                return self._in_group(self.group.leave(inc))
            case _:
                assert_never(message)

    def _progress(self, message: Progress) -> list[Instruction]:
        """Take in what all members hold: it is in the model, and DONE grows."""
        committed = self.group.progress(message)
        if committed is None:
            return []
        self.core.step = max(self.core.step, self.group.step)
        self.core.ledger.advance(committed)
        return self._make_safe()

    def restore_group(self) -> list[Instruction]:
        """Nobody holds state: begin an epoch from the newest cut."""
        newest = self.core.cuts.valid[-1] if self.core.cuts.valid else None
        done = self._in_group(self.group.restore(newest))
        reached = newest.step if newest is not None else START
        self.left_at = {feed: step for feed, step in self.left_at.items() if step <= reached}
        self.core.complete.clear()
        self.core.cuts.forget()
        return [*self._tell_left(), *done]

    def form_group(self) -> list[Instruction]:
        """Form the group that is due: nobody else is waited for."""
        return self._in_group(self.group.form())

    def break_up(self, reason: str) -> list[Instruction]:
        """Have the members of a running group, none of which hangs, meet again."""
        return self._in_group(self.group.break_up(reason))

    def see_chief(self, *, is_gone: bool) -> list[Instruction]:
        """Take in whether worker-0 is gone for good: another member stands in for it."""
        return self._in_group(self.group.see_chief(is_gone=is_gone))

    def job_ended(self) -> None:
        """The job has ended here, and goes on: the cut says whether another script fits.

        All its workers begin at once, so it goes on with all of them: each step is divided, and its
        sums have the order, as if the job had not ended.
        """
        self.group.replica, self.group.gathers = "", True

    @property
    def phase(self) -> str:
        if not self.group.number:
            return "starting"
        return "training" if self.group.running else "forming"

    @property
    def waits_for(self) -> str:
        awaits = AWAITS_CHIEF if self.core.awaited else ""
        return self.group.waits.reason or awaits

    @property
    def is_training(self) -> bool:
        return self.group.running

    @property
    def has_model(self) -> bool:
        return self.group.number > 0

    @property
    def is_held(self) -> bool:
        return self.group.is_held

    @property
    def holders(self) -> frozenset[Inc]:
        """See `Holder.holders`."""
        group = self.group
        return frozenset(inc for inc in group.held_by - group.lost if group.knows(inc))

    @property
    def in_steps(self) -> frozenset[Inc]:
        """See `Holder.in_steps`: the newest group's members, also while it forms."""
        return frozenset(one.inc for one in self.group.members) - self.group.lost

    @property
    def pace(self) -> str:
        return "allreduce"

    # ------------------------------------------------------------------ workers

    def is_given_up(self, inc: Inc) -> bool:
        return inc in self.group.gone

    def lost(self, inc: Inc, *, returned: bool) -> list[Instruction]:
        """See `Holder.lost`: others evaluate its samples, and train without it."""
        self.core.forget_worker(inc)
        self.leaving.discard(inc)
        back = [self.core.record(Returned(inc=inc))] if inc in self.core.ledger.leases else []
        left = self._in_group(self.group.leave(inc, returned=returned))
        return [*left, *back, *self.core.serve()]

    @property
    def begins_with(self) -> CutRef | None:
        valid = self.core.cuts.valid
        trains = self.group.running and self.group.is_held
        return valid[-1].cut if valid and not trains else None

    def opened(self, opened: FeedOpened) -> FeedOpened:
        stored = self.core.cuts.on_disk
        complete = opened.complete or self._is_last_left(opened.feed.feed)
        cut = stored[-1].cut if complete and stored else None
        return msgspec.structs.replace(
            opened, complete=complete, cut=cut, trains=self.group.running
        )

    def left_loop(self, feed: int, step: StepNo, awaited: Inc) -> list[Instruction]:
        """See `Holder.left_loop`; members keep what they held then until their next loop."""
        if not self.group.is_empty_handed(awaited):
            return []
        cuts = self.core.cuts
        if self.left_at.get(feed) != step:  # a cut of this step so far may be of within the loop
            self.left_at[feed] = step
            last = cuts.valid[-1].cut.cut_no if cuts.valid else NO_CUT
            self._behind_cut[feed] = max(last, cuts.on_its_way or NO_CUT)
        if self._is_last_left(feed):
            return []
        if self.holder and self.group.is_empty_handed(self.holder):
            self.holder = NO_INC  # it gets nothing before it has the cut
            cuts.begin_again()
        return self.core.take_cut()

    @property
    def wait_behind(self) -> bool:
        left = self.left_at.items()
        return any(step >= self.core.step and not self._is_last_left(feed) for feed, step in left)

    def _is_last_left(self, feed: int) -> bool:
        """Whether the newest cut on disk, and nothing after it, is what a last loop ended with."""
        stored = self.core.cuts.on_disk
        is_newer = bool(stored) and stored[-1].cut.cut_no > self._behind_cut.get(feed, NO_CUT)
        return is_newer and self.core.step <= stored[-1].step == self.left_at.get(feed)

    def _tell_left(self) -> list[Instruction]:
        """Tell those who hold nothing which loops they are to pass over, for others have left them.

        When an epoch begins with a cut: of all loops, since until now nobody knew what of them it
        holds. Who has passed over one that it lacks must not go on.
        """
        feeds = self.core.ledger.feeds
        begins = not self.group.running and self.group.restored_for == self.group.number
        trained = [one.feed for one in feeds.values() if one.purpose == "train"]
        return [
            Send(inc, self.core.feed_opened(inc, feeds[feed]))
            for feed in (trained if begins else self.left_at)
            if not self.core.ledger.is_complete(feed) and (begins or self._is_last_left(feed))
            for inc in sorted(self.core.workers)
            if self.group.is_empty_handed(inc)
        ]

    # ------------------------------------------------------------------ plans

    def lead(self, action: GlobalAction, lead: int) -> int:
        """See `Holder.lead`; the members find the step by themselves."""
        if self.group.sharded:
            raise ConfigError(
                f"{type(action).__name__} with strategy fsdp: torch weighs all workers alike, so "
                "their shares stay even; run the job with --solution none"
            )
        return 0

    def plan_in_force(self) -> Planned:
        """The newest plan by which all members divide their steps, and since when."""
        held = [one for one in self.core.plans.known if one.plan.no <= self.group.divides_by]
        return held[-1] if held else NO_PLAN

    def planned(self) -> list[Instruction]:
        return self.group.divide()

    # ------------------------------------------------------------------ cuts

    @property
    def wants_cut(self) -> bool:
        """Whether a worker asks for a cut; members wait for its step."""
        return bool(self.core.cuts.wanted)

    def cut_wanted(self, message: AskCut) -> None:
        """See `Holder.cut_wanted`.

        A member that leaves copies what it holds itself: the others may wait for it in their step,
        or do one more.
        """
        inc, knows = message.inc, self.group.knows(message.inc)
        if message.leaves and knows and message.epoch_no == self.core.epoch_no:
            self.leaving.add(inc)
            if message.step and message.feed in self.core.ledger.feeds:
                self.left_at[message.feed] = message.step
            # What is copied already comes to disk whatever the training thread does.
            if self.holder not in self.leaving and self.core.cuts.storing is None:
                self.holder = inc
                self.core.cuts.begin_again()

    def copiers(self) -> tuple[Inc, ...]:
        """One member is enough, as long as it is there: all hold the same. Sharded: all of them.

        One near the master, if there is one: the copies of others cross the network.
        """
        group = self.group
        if group.sharded:
            whole = group.running and not group.lost
            return tuple(one.inc for one in group.members) if whole else ()
        lost = group.lost
        near = sorted(group.members, key=lambda one: one.distant)
        living = [one.inc for one in near if one.inc not in lost]
        if self.holder not in living:  # while a group forms it writes on
            self.holder = next((inc for inc in living if inc in self.leaving), NO_INC)
            self.core.cuts.forget()
        if not (group.running and living):
            return ()
        if not self.holder and self.wait_behind:  # who joins gets nothing before it has the cut
            self.holder = next((inc for inc in living if not group.is_empty_handed(inc)), NO_INC)
        self.holder = self.holder or living[0]
        return (self.holder,)

    def may_copy(self, inc: Inc) -> bool:
        if self.group.sharded:  # of who has left meanwhile, too: it said it before
            return self.group.running and self.group.knows(inc)
        return inc == self.holder

    def proof_of(self, cut: CutValid) -> list[Records]:
        step = max(self.core.step, cut.step)
        return [GroupProgressed(step=step, committed=cut.committed)]

    def cut_valid(self, valid: CutValid) -> list[Instruction]:
        if self.group.sharded:  # all members hold what they have copied
            self.core.step = max(self.core.step, valid.step)
            self.core.ledger.advance(valid.committed)
        # Their word is not journalled.
        proven = GroupProgressed(step=self.core.step, committed=self.core.ledger.done.spans())
        return [self.core.record(proven), self.core.record(valid), *self._tell_safe()]

    def cut_stored(self) -> list[Instruction]:
        return [*self._tell_safe(), *self._make_safe()]

    def _tell_safe(self) -> list[Instruction]:
        """Tell workers that a feed on disk is complete for good: nothing of it can come again."""
        fresh = sorted(self.core.cuts.safe - self.core.complete)
        self.core.complete.update(fresh)
        told = [
            Send(inc, self.core.feed_opened(inc, self.core.ledger.feeds[feed]))
            for feed in fresh
            for inc in sorted(self.core.workers)
        ]
        return [*map(FeedDone, fresh), *told, *self._tell_left()]

    def _make_safe(self) -> list[Instruction]:
        """Have a feed that is complete in a cut on disk: its workers wait for that."""
        done = any(self.core.ledger.is_complete(feed.feed) for feed in self.not_kept())
        return self.core.take_cut() if done else []

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        return [*self.group.resend(), *self._tell_left(), *self._make_safe()]

    # ------------------------------------------------------------------ snapshots

    def kept(self) -> dict[str, Any]:
        group = self.group
        return {
            "group": GroupKept(
                group.epoch_no,
                group.number,
                group.members,
                group.step,
                group.begun,
                group.start,
                tuple(sorted(group.gone)),
                group.replica,
                tuple(sorted(group.held_by)),
                group.gathers,
            )
        }

    def restore(self, kept: "Snapshot") -> bool:
        held, group = kept.group, self.group
        if held is None:
            return True
        group.epoch_no = self.core.epoch_no = held.epoch_no
        group.number, group.members = held.number, held.members
        group.step = self.core.step = held.step
        group.begun, group.start = held.begun, held.start
        group.held_by, group.gathers = frozenset(held.held_by), held.gathers
        group.gone, group.replica = set(held.gone), held.replica
        group.plan = self.core.plans.newest
        if held.begun is not None:
            group.divided = {member.inc: held.begun.division.no for member in held.members}
            group.untold = {member.inc for member in held.members}
        return group.sharded
