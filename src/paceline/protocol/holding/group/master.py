"""The master's part of a job whose workers hold the model: what a `Group` decides.

What the members hold is in the model by their word (`Progress`): DONE grows by it, and a feed is
over when a cut on disk holds all of it. Samples to train on are not leased, the members share every
slice by themselves; those to evaluate are.
"""

import msgspec

from paceline.base.errors import ConfigError
from paceline.protocol.acts import (
    FeedDone,
    Instruction,
    Journal,
    Send,
)
from paceline.protocol.holding.group.formation import Group
from paceline.protocol.records import (
    CutValid,
    GroupBegun,
    GroupFormed,
    GroupProgressed,
    GroupRestored,
    Planned,
    Records,
    Returned,
)
from paceline.protocol.samples.plans import NO_PLAN, GlobalAction
from paceline.protocol.training import MasterState
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import Broken, GroupUp, JoinGroup, Progress, Stopped
from paceline.wire.messages.node import (
    AskCut,
    FeedOpened,
    Stop,
)
from paceline.wire.schema import ModelSchema


class HeldByWorkers(MasterState):
    """See the module and `MasterState`."""

    def __init__(
        self,
        *,
        mode: str,
        samples: str,
        min_members: int = 1,
        check: bool = False,
        whole_steps: bool = False,
        sharded: bool = False,
    ) -> None:
        """``whole_steps``: none lacks a sample, and who joins copies before it.

        ``min_members``, ``check``, ``sharded``: see `Group`.
        """
        super().__init__(mode=mode, samples=samples, whole_steps=whole_steps, granted=False)
        self.model = ModelSchema()
        self.group = Group(
            min_members=min_members, check=check, sharded=sharded, copies_at_rest=whole_steps
        )
        #: Not sharded: the member that copies cuts.
        self.holder = 0
        #: Members whose scripts have returned, and that stay until what they hold is kept.
        self.leaving: set[int] = set()

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> None:
        """See `MasterState.apply`."""
        match record:
            case GroupFormed() | GroupRestored() | GroupBegun():
                self.group.apply(record)
                self._follow_group(record)
            case GroupProgressed():
                self.step = max(self.step, record.step)
                self.ledger.advance(record.committed)
            case Planned():
                super().apply(record)
                self.group.plan = record.plan
            case _:
                super().apply(record)

    def _follow_group(self, record: object) -> None:
        """What a record of the group means for the ledger."""
        match record:
            case GroupRestored():
                self.epoch_no, self.step = record.epoch_no, record.step
                self._go_back(record.committed)
            case GroupBegun():
                self.step = record.step
                self.ledger.advance(record.committed)
            case _:
                pass

    def resume(self) -> list[Instruction]:
        """See `MasterState.resume`."""
        self.group.resume()
        return super().resume()

    # ------------------------------------------------------------------ the group

    def _in_group(self, done: list[Instruction]) -> list[Instruction]:
        """What the group has decided, with what follows from it for the ledger."""
        for one in done:
            if isinstance(one, Journal):
                self._follow_group(one.record)
        return done

    def member_said(
        self, message: GroupUp, *, node: str = "", expected: int = 0, guest: bool = False
    ) -> list[Instruction]:
        """A worker's word about the group.

        Args:
            message: what it says.
            node: where it lives.
            expected: workers for which a first group waits.
            guest: it is on another machine (see `Member`).
        """
        inc = message.inc
        if self.is_given_up(inc):
            return [Send(inc, Stop(inc=inc))]
        if inc not in self.workers:
            return []
        match message:
            case JoinGroup():
                self.prepared.add(inc)
                joined = self.group.join(message, node, expected=expected, guest=guest)
                return self._in_group(joined)
            case Stopped():
                return self._in_group(self.group.stopped_said(message))
            case Broken():
                return self._in_group(self.group.broken_said(message))
            case Progress():
                return self._progress(message)

    def _progress(self, message: Progress) -> list[Instruction]:
        """What all members hold is in the model; DONE grows."""
        committed = self.group.progress(message)
        if committed is None:
            return []
        self.step = max(self.step, self.group.step)
        self.ledger.advance(committed)
        return self._make_safe()

    def restore_group(self) -> list[Instruction]:
        """Nobody holds state: begin an epoch from the newest cut."""
        newest = self.cuts.valid[-1] if self.cuts.valid else None
        done = self._in_group(self.group.restore(newest))
        self.complete.clear()
        self.cuts.forget()
        return done

    def form_group(self) -> list[Instruction]:
        """Form the group that is due: nobody else is waited for."""
        return self._in_group(self.group.form())

    @property
    def phase(self) -> str:
        """See `MasterState.phase`."""
        if not self.group.number:
            return "starting"
        return "training" if self.group.running else "forming"

    @property
    def is_training(self) -> bool:
        """See `MasterState.is_training`."""
        return self.group.running

    @property
    def has_model(self) -> bool:
        """See `MasterState.has_model`."""
        return self.group.number > 0

    # ------------------------------------------------------------------ workers

    def is_given_up(self, inc: int) -> bool:
        """See `MasterState.is_given_up`."""
        return super().is_given_up(inc) or inc in self.group.gone

    def worker_lost(self, inc: int, *, returned: bool = False) -> list[Instruction]:
        """See `MasterState.worker_lost`: others evaluate its samples, and train without it."""
        self._forget_worker(inc)
        self.leaving.discard(inc)
        back = [self._record(Returned(inc=inc))] if inc in self.ledger.leases else []
        left = self._in_group(self.group.leave(inc, returned=returned))
        return [*left, *back, *self._serve()]

    def _is_fenced(self, inc: int) -> bool:
        return False

    def _tell_epoch(self, inc: int) -> list[Instruction]:
        return []  # the group does

    def _feed_opened(self, inc: int, feed: Feed) -> FeedOpened:
        opened = super()._feed_opened(inc, feed)
        stored = [cut.cut for cut in self.cuts.valid if not cut.cut.in_memory]
        cut = stored[-1] if opened.complete and stored else None
        return msgspec.structs.replace(opened, cut=cut, trains=self.group.running)

    # ------------------------------------------------------------------ plans

    def carry_out(self, action: GlobalAction, lead: int) -> list[Instruction]:
        """See `MasterState.carry_out`; the members find the step by themselves."""
        if self.group.sharded:
            raise ConfigError(
                f"{type(action).__name__} with strategy fsdp: torch weighs all workers alike, so "
                "their shares stay even; run the job with --solution none"
            )
        return super().carry_out(action, 0)

    def plan_in_force(self) -> Planned:
        """The newest plan by which all members divide their steps, and since when."""
        held = [one for one in self.plans.known if one.plan.no <= self.group.divides_by]
        return held[-1] if held else NO_PLAN

    def _plan_committed(self) -> list[Instruction]:
        return self.group.divide()

    # ------------------------------------------------------------------ cuts

    @property
    def wants_cut(self) -> bool:
        """Whether a worker asks for a cut; members wait for its step."""
        return bool(self.cuts.wanted)

    def cut_wanted(self, message: AskCut) -> list[Instruction]:
        """See `MasterState.cut_wanted`.

        A member that leaves copies what it holds itself: the others may wait for it in their step,
        or do one more.
        """
        inc, knows = message.inc, self.group.knows(message.inc)
        if message.leaves and knows and message.epoch_no == self.epoch_no:
            self.leaving.add(inc)
            # What is copied already comes to disk whatever the training thread does.
            if self.holder not in self.leaving and self.cuts.storing is None:
                self.holder = inc
                self.cuts.begin_again()
        return super().cut_wanted(message)

    def _holders(self) -> tuple[int, ...]:
        """One member is enough, as long as it is there: all hold the same. Sharded: all of them.

        Not a guest: what it writes is on another machine.
        """
        group = self.group
        if group.sharded:
            whole = group.running and not group.lost
            return tuple(one.inc for one in group.members) if whole else ()
        lost = group.lost
        living = [one.inc for one in group.members if one.inc not in lost and not one.guest]
        if self.holder not in living:  # while a group forms it writes on
            self.holder = next((inc for inc in living if inc in self.leaving), 0)
            self.cuts.forget()
        if not (group.running and living):
            return ()
        self.holder = self.holder or living[0]
        return (self.holder,)

    def _may_copy(self, inc: int) -> bool:
        if self.group.sharded:  # of who has left meanwhile, too: it said it before
            return self.group.running and self.group.knows(inc)
        return inc == self.holder

    def _cut_valid(self, valid: CutValid) -> list[Instruction]:
        if self.group.sharded:  # all members hold what they have copied
            self.step = max(self.step, valid.step)
            self.ledger.advance(valid.committed)
        # Their word is not journalled.
        proven = GroupProgressed(step=self.step, committed=self.ledger.done.spans())
        return [self._record(proven), self._record(valid), *self._tell_safe()]

    def _cut_stored(self) -> list[Instruction]:
        return [*self._tell_safe(), *self._make_safe()]

    def _tell_safe(self) -> list[Instruction]:
        """Of a feed that is on disk, too, nothing can come again."""
        fresh = sorted(self.cuts.safe - self.complete)
        self.complete.update(fresh)
        told = [
            Send(inc, self._feed_opened(inc, self.ledger.feeds[feed]))
            for feed in fresh
            for inc in sorted(self.workers)
        ]
        return [*map(FeedDone, fresh), *told]

    def _make_safe(self) -> list[Instruction]:
        """Have a feed that is complete in a cut on disk: its workers wait for that."""
        done = any(self.ledger.is_complete(feed.feed) for feed in self._not_kept())
        return self.take_cut() if done else []

    def _not_kept(self) -> list[Feed]:
        """Feeds to train on that are not wholly in a cut on disk."""
        feeds = self.ledger.feeds.values()
        return [one for one in feeds if one.purpose == "train" and one.feed not in self.cuts.safe]

    @property
    def is_all_kept(self) -> bool:
        """Whether all that was to be trained so far is in a cut on disk."""
        return not self._not_kept()

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        """See `MasterState.resend`."""
        return [*super().resend(), *self.group.resend(), *self._make_safe()]
