"""The master's part of the integrity protocol, as a pure state machine.

What must survive the master's death is changed by *records* only: `_record` appends one to the
answer and applies it, the edge journals it before any message of the same answer leaves, and a
restarted master applies the journal to a fresh `MasterState`. Everything else is memory and may
vanish (docs/protocols/integrity.md, section 2). The explorer in ``tests/model`` drives this class
and models the master's death as exactly that: the records, applied again.
"""

import msgspec

from paceline.base.samples import SampleSet, Span
from paceline.master.cuts import Cuts, common
from paceline.master.dealing import Deal, standing
from paceline.master.group import Group
from paceline.master.instructions import (
    Fail,
    FeedDone,
    Instruction,
    Journal,
    Moved,
    NotMoved,
    Seal,
    Send,
)
from paceline.master.moving import Moving
from paceline.master.plans import NO_PLAN, GlobalAction, Plans, portion_of
from paceline.master.reasons import feed_difference, late_records, schema_difference
from paceline.master.records import (
    CutGone,
    CutStored,
    CutValid,
    EpochStarted,
    Extended,
    FeedAdded,
    GaveBack,
    Granted,
    GroupBegun,
    GroupFormed,
    GroupProgressed,
    GroupRestored,
    MapChanged,
    MoveBegun,
    MoveEnded,
    Planned,
    Records,
    Returned,
    SchemaFixed,
)
from paceline.master.shards.ledger import Ledger
from paceline.master.sizing import MIN_STEPS, Sizing, tail_share
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.feeds import LINES_PER_FEED, Feed, Slice, feed_of
from paceline.wire.messages.group import Broken, GroupUp, JoinGroup, Progress, Stopped
from paceline.wire.messages.node import (
    AskCut,
    ChangeMap,
    Committed,
    Copied,
    CutMade,
    FeedOpened,
    Fence,
    FenceAnswer,
    GiveBack,
    GivenBack,
    Grant,
    InitialWritten,
    Joined,
    JoinServers,
    LeaseRequest,
    MapSet,
    NewEpoch,
    NewMap,
    NewRate,
    OpenFeed,
    Prepared,
    Recall,
    Restore,
    Restored,
    Stop,
    TakeCut,
    WriteInitial,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import NUM_BUCKETS, ModelSchema


class MasterState:
    """Epochs, cuts, leases and fences of one job."""

    def __init__(
        self,
        *,
        mode: str,
        samples: str,
        staleness: int = 0,
        min_members: int | None = None,
        check: bool = False,
        whole_steps: bool = False,
        sharded: bool = False,
    ) -> None:
        """``min_members``: of a group that trains by all-reduce; None: there are servers.

        ``check``: its first members measure their links. ``whole_steps``: none lacks a sample, and
        who joins copies before it.
        ``sharded``: see `Group`.
        """
        self.mode, self.samples, self.staleness = mode, samples, staleness
        # Durable: changed by records only.
        self.ledger = Ledger()
        self.model: ModelSchema | None = None
        self.epoch_no = 0
        self.map: ServerMap | None = None
        self.start: EpochStarted | None = None
        self.cuts = Cuts()
        #: Last answered request per incarnation of this epoch.
        self.grants: dict[int, Grant] = {}
        #: Incarnations whose leases were taken back in this epoch.
        self.gone: set[int] = set()
        self.moving = Moving()
        #: All-reduce: who trains together.
        self.group: Group | None = None
        if min_members is not None:
            self.group = Group(
                min_members=min_members,
                check=check,
                sharded=sharded,
                copies_at_rest=whole_steps,
            )
            self.model = ModelSchema()
        #: Number of the last thing that an incarnation of this epoch gave back.
        self.gave_back: dict[int, int] = {}
        #: Which plan holds where.
        self.plans = Plans(
            self.ledger,
            synchronous=mode == "bsp",
            granted=self.group is None,
            whole=whole_steps,
        )
        # Volatile.
        self.waiting: dict[int, LeaseRequest] = {}
        self.fencing: set[int] = set()
        #: Servers of the present epoch that have not said `restored`.
        self.restoring: set[int] = set()
        #: How large the next grant of an incarnation should be, as last told.
        self.sizes: dict[int, Sizing] = {}
        #: Workers that are alive: incarnation -> node.
        self.workers: dict[int, str] = {}
        #: Workers not known to be in this epoch.
        self.untold: set[int] = set()
        self.writer: int | None = None
        self.prepared: set[int] = set()
        #: Told as done: feeds.
        self.complete: set[int] = set()
        self.step = 0
        #: All-reduce, not sharded: the member that copies cuts.
        self.holder = 0
        #: The leader's last word.
        self.heard: Committed | None = None

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> None:
        """The only way durable state changes."""
        match record:
            case SchemaFixed():
                self.model = record.model
            case EpochStarted():
                self._apply_epoch(record)
            case MapChanged():
                self.map = record.map
                # A cut that was asked for before may be one of servers that are gone since.
                self.cuts.last_no += 1
            case MoveBegun() | MoveEnded():
                self.moving.begun = record if isinstance(record, MoveBegun) else None
            case Planned():
                self.plans.apply(record)
                if self.group is not None:
                    self.group.plan = record.plan
            case CutValid():
                self._apply_valid(record)
            case CutStored() | CutGone():
                self.cuts.apply(record)
            case GroupFormed() | GroupRestored() | GroupBegun():
                self._apply_to_group(record)
            case GroupProgressed():
                self.step = max(self.step, record.step)
                self.ledger.advance(record.committed)
            case _:
                self._apply_to_ledger(record)

    def _apply_to_ledger(
        self, record: FeedAdded | Extended | Granted | Returned | GaveBack
    ) -> None:
        match record:
            case FeedAdded():
                self.ledger.open(record.feed)
            case Extended():
                self.ledger.extend(record.feed, record.ends, finished=record.finished)
            case Granted(grant=grant):
                self.ledger.commit(record.handled)
                self.ledger.grant(grant.inc, grant.spans)
                self.grants[grant.inc] = grant
            case Returned():
                self.ledger.commit(record.committed)
                self.ledger.lose(record.inc, again=self.samples != "at-most-once")
                self.gone.add(record.inc)
            case GaveBack():
                self.ledger.give_back(record.inc, record.spans)
                self.gave_back[record.inc] = record.r

    def _apply_to_group(self, record: GroupFormed | GroupRestored | GroupBegun) -> None:
        if self.group is not None:
            self.group.apply(record)
        self._follow_group(record)

    def _follow_group(self, record: GroupFormed | GroupRestored | GroupBegun) -> None:
        match record:
            case GroupRestored():
                self.epoch_no, self.step = record.epoch_no, record.step
                self.ledger.restore(record.committed)
                self.grants.clear()
                self.gone.clear()
                self.cuts.covered.clear()
                safe = self.cuts.safe
                self.cuts.safe = {feed for feed in safe if self.ledger.is_complete(feed)}
            case GroupBegun():
                self.step = record.step
                self.ledger.advance(record.committed)
            case _:
                pass

    def _apply_epoch(self, record: EpochStarted) -> None:
        self.start, self.map = record, record.map
        self.epoch_no, self.step = record.epoch_no, record.step
        self.ledger.restore(record.committed, again=self.samples != "at-most-once")
        self.grants.clear()
        self.gone.clear()
        self.gave_back.clear()
        self.cuts.covered.clear()
        self.plans.restart(record.step)
        self.moving.begun = None
        # A cut that was damaged no longer holds what it made safe.
        safe = self.cuts.safe
        self.cuts.safe = {feed for feed in safe if self.ledger.is_complete(feed)}

    def _apply_valid(self, record: CutValid) -> None:
        # Of a group others may not hold the step yet.
        if record.epoch_no == self.epoch_no and self.group is None:
            # The leader's word is not journalled; without this a restarted master would not know
            # that the feed is safe.
            self.ledger.commit(record.committed)
            self.step = max(self.step, record.step)
        self.cuts.add(record, (feed for feed in self.ledger.feeds if self._covers(record, feed)))

    def _covers(self, cut: CutValid, feed: int) -> bool:
        """Whether no restore can take samples of this complete feed out of the model again."""
        if self.ledger.feeds[feed].purpose != "train":
            return True
        if self.samples == "at-most-once":
            return cut.epoch_no == self.epoch_no and self.ledger.is_complete(feed)
        held = SampleSet(cut.committed)
        return self.ledger.is_complete(feed) and all(
            not held.missing(Span(line, 0, state.end))
            for line, state in self.ledger.lines.items()
            if feed_of(line) == feed
        )

    def _record(self, record: Records) -> Journal:
        self.apply(record)
        return Journal(record)

    # ------------------------------------------------------------------ start

    def prepare(self, message: Prepared, directory: str) -> list[Instruction]:
        """A worker has a model; the first one writes the initial values as cut 0."""
        self.prepared.add(message.inc)
        done: list[Instruction] = []
        if self.model is None:
            done.append(self._record(SchemaFixed(model=message.schema)))
        elif self.model != message.schema:
            return [Fail(schema_difference(self.model, message.schema))]
        if self.cuts.valid:
            return [*done, *self._tell_epoch(message.inc)]
        if self.writer is None:
            self.writer = message.inc
        if self.writer == message.inc:
            done.append(Send(message.inc, WriteInitial(inc=message.inc, directory=directory)))
        return done

    def initial_written(self, message: InitialWritten, directory: str) -> list[Instruction]:
        """Cut 0 is there: the model before any sample."""
        if self.cuts.valid or message.inc != self.writer:
            return []
        cut = CutRef(cut_no=0, directory=directory)
        return [self._record(CutValid(cut=cut, step=0, committed=(), epoch_no=0))]

    def start_epoch(self, servers: tuple[Server, ...]) -> list[Instruction]:
        """All servers are up and one of them is new: back to the last valid cut."""
        valid = self.cuts.valid[-1]
        version = self.map.version + 1 if self.map else 1
        owners = tuple(bucket % len(servers) for bucket in range(NUM_BUCKETS))
        begun = self.moving.begun
        not_moved = [NotMoved(begun.new.inc, futile=False)] if begun else []
        record = EpochStarted(
            epoch_no=self.epoch_no + 1,
            cut=valid.cut,
            step=valid.step,
            committed=valid.committed,
            map=ServerMap(version=version, servers=servers, owners=owners),
            short_steps=self.short_steps,
            left_out=self.left_out,
        )
        journal = self._record(record)
        self._forget_epoch()
        self.plans.move(self.step + 1, (), free=True)
        return [journal, *not_moved, *self._commit_plan(), *self._restore()]

    def _forget_epoch(self) -> None:
        self.waiting.clear()
        self.fencing.clear()
        self.complete.clear()
        self.heard = None
        self.cuts.forget()
        self.moving.forget()
        self.untold = set(self.workers)
        self.restoring = {server.inc for server in self.map.servers} if self.map else set()

    def resume(self) -> list[Instruction]:
        """After the journal was applied: which messages of this epoch have arrived is unknown."""
        if self.group is not None:
            self.group.resume()
        if self.map:
            self.restoring = set(self.map.sharers)
        if self.mode == "ssp" and self.samples != "exactly-once":
            self.fencing = set(self.gone)
        newest = self.cuts.valid[-1] if self.cuts.valid else None
        if newest is not None and newest.cut.in_memory and newest.epoch_no == self.epoch_no:
            self.cuts.storing = newest.cut.cut_no
        return self._restore()

    def _restore(self) -> list[Instruction]:
        return [Send(inc, self._restore_message(inc)) for inc in sorted(self.restoring)]

    def _restore_message(self, inc: int) -> Restore:
        assert self.start is not None and self.map is not None
        return Restore(
            epoch_no=self.epoch_no,
            inc=inc,
            cut=self.start.cut,
            map=self.map,
            mode=self.mode,
            samples=self.samples,
            staleness=self.staleness,
        )

    def restored(self, message: Restored) -> list[Instruction]:
        """A server is in this epoch; when all are, the workers may start."""
        if message.epoch_no != self.epoch_no or message.inc not in self.restoring:
            return []
        self.restoring.discard(message.inc)
        if self.restoring:
            return []
        told = [told for inc in sorted(self.untold) for told in self._tell_epoch(inc)]
        return [*self._allow(), *told]

    def _tell_epoch(self, inc: int) -> list[Instruction]:
        if self.restoring or self.start is None or self.map is None or inc not in self.prepared:
            return []
        step = max(self.step, self.start.step)
        return [
            Send(inc, NewEpoch(epoch_no=self.epoch_no, inc=inc, map=self.map, step=step)),
        ]

    # ------------------------------------------------------------------ members

    def worker_up(self, inc: int, node: str = "") -> list[Instruction]:
        """A worker's process is alive; one that was given up in this epoch is told to leave."""
        if self.is_given_up(inc):
            return [Send(inc, Stop(inc=inc))]
        self.workers[inc] = node
        self.untold.add(inc)
        return []

    def is_given_up(self, inc: int) -> bool:
        """Whether others go on without this worker, and it must not come back."""
        return inc in self.gone or (self.group is not None and inc in self.group.gone)

    def worker_lost(self, inc: int, *, returned: bool = False) -> list[Instruction]:
        """A worker is dead, or silent for too long: nothing of it may count from here on.

        ``returned``: its script had come to its end.
        """
        self.workers.pop(inc, None)
        self.untold.discard(inc)
        self.prepared.discard(inc)
        self.waiting.pop(inc, None)
        self.sizes.pop(inc, None)
        self.cuts.wanted.pop(inc, None)
        if self.writer == inc:
            self.writer = None
        if self.group is not None:
            return self._member_lost(self.group, inc, returned=returned)
        if self.map is None or (inc in self.gone and inc not in self.ledger.leases):
            return []
        if self.samples == "exactly-once":
            self.fencing.add(inc)
            return self._fence(inc)
        back = self._record(Returned(inc=inc))
        if self.mode == "ssp":  # the others would wait for it at the leader
            self.fencing.add(inc)
        return [back, *self._fence_all(), *self._serve()]

    def _fence_all(self) -> list[Instruction]:
        return [one for inc in sorted(self.fencing) for one in self._fence(inc)]

    def _fence(self, inc: int) -> list[Instruction]:
        if self.map is None or self.restoring:
            return []
        leader = self.map.servers[0].inc
        return [Send(leader, Fence(epoch_no=self.epoch_no, inc=leader, fenced=inc))]

    def fence_answer(self, message: FenceAnswer) -> list[Instruction]:
        """The leader's word: the rest of the lost worker's leases goes back."""
        if message.epoch_no != self.epoch_no or message.fenced not in self.fencing:
            return []
        self.fencing.discard(message.fenced)
        if self.samples != "exactly-once":
            return []  # what it left went back at once
        returned = Returned(inc=message.fenced, committed=message.committed)
        # Who waits gets of it what is urgent, and asks again: its owner may come back.
        for inc in self.waiting:
            size = self.sizes[inc]
            self.sizes[inc] = msgspec.structs.replace(size, steps=min(size.steps, MIN_STEPS))
        return [self._record(returned), *self._commit_plan(), *self._serve()]

    # ------------------------------------------------------------------ feeds and leases

    def open_feed(self, message: OpenFeed) -> list[Instruction]:
        """The first worker defines the feed; the others must mean the same."""
        feed = message.feed
        known = self.ledger.feeds.get(feed.feed)
        if known is None:
            before = [f.last_step for f in self.ledger.feeds.values() if f.purpose == "train"]
            known = msgspec.structs.replace(feed, first_step=max([self.step, *before]))
            journal = self._record(FeedAdded(feed=known))
            return [journal, Send(message.inc, FeedOpened(inc=message.inc, feed=known))]
        if msgspec.structs.replace(feed, first_step=known.first_step) != known:
            return [Fail(feed_difference(known, feed))]
        return [self._feed_opened(message.inc, known)]

    def _feed_opened(self, inc: int, feed: Feed) -> Send:
        """The feed, and whether a worker that opens it has nothing to do with it."""
        kept = feed.purpose != "train" or feed.feed in self.cuts.safe
        complete = kept and self.ledger.is_complete(feed.feed)
        stored = [cut.cut for cut in self.cuts.valid if not cut.cut.in_memory]
        cut = stored[-1] if complete and stored and self.group is not None else None
        trains = self.group is not None and self.group.running
        opened = FeedOpened(inc=inc, feed=feed, complete=complete, cut=cut, trains=trains)
        return Send(inc, opened)

    def request(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        """Grant, or keep the request open until there is something to grant."""
        inc = message.inc
        if inc in self.gone:
            return [Send(inc, Stop(inc=inc))]
        if inc not in self.workers or inc in self.fencing:
            return []
        self.prepared.add(inc)
        if message.epoch_no != self.epoch_no:
            return self._tell_epoch(inc) if message.epoch_no < self.epoch_no else []
        self.untold.discard(inc)
        return [*self._hint(message), *self._request(message, sizing)]

    def _request(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        inc = message.inc
        last = self.grants.get(inc)
        if last is not None and message.n == last.n:
            return [Send(inc, last)]
        if message.n != (last.n if last else 0) + 1 or message.feed not in self.ledger.feeds:
            return []
        if message.handled:
            self.ledger.commit(message.handled)
        grown = self._extend(message) if message.feed in self.ledger.names else []
        done = [*grown]
        if sizing.samples:
            self.waiting[inc], self.sizes[inc] = message, sizing
            if message.starving:  # nobody is to starve where a plan is to begin
                done += self._move_plan(message.step, message.slice)
            if inc in self.waiting:
                done += self._grant(message, sizing)
        if message.handled or grown:
            done += self._serve()
        return done

    def _extend(self, message: LeaseRequest) -> list[Instruction]:
        """The source of a feed of unknown length, as this worker sees it now."""
        ledger, feed = self.ledger, message.feed
        news = ledger.news(feed, message.ends)
        if feed in ledger.finished:
            return [Fail(late_records(ledger, feed, *news[0]))] if news else []
        if len({*ledger.names[feed], *(name for name, _ in news)}) > LINES_PER_FEED:
            return [Fail(f"feed {feed} has more than {LINES_PER_FEED} partitions; use fewer")]
        if not news and not message.finished:
            return []
        return [self._record(Extended(feed=feed, ends=news, finished=message.finished))]

    def _grant(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        feed, inc = message.feed, message.inc
        workers = self.training_workers()
        deal = Deal(self.ledger, self.plans, message, workers=workers, step=self.step)
        spans = deal.pick(sizing)
        end = not spans and self.ledger.is_complete(feed)
        if end and self.ledger.feeds[feed].purpose == "train" and feed not in self.cuts.safe:
            return self.take_cut()
        if not spans and not end:
            return self._recall_tail(message)
        del self.waiting[inc]
        grant = Grant(
            epoch_no=self.epoch_no,
            inc=inc,
            n=message.n,
            feed=feed,
            spans=tuple(spans),
            end=end,
            lines=self.ledger.source_lines(spans) if feed in self.ledger.names else (),
            batching=deal.batching(),
            rate=self.plans.newest.rate_of(self.workers[inc]),
        )
        granted = Granted(grant=grant, handled=message.handled)
        done: list[Instruction] = [self._record(granted), Send(inc, grant)]
        if end and feed not in self.complete:
            self.complete.add(feed)
            done.append(FeedDone(feed))
        return [*done, *self._recall(inc)]

    def training_workers(self) -> dict[int, str]:
        """The workers that can train, and their nodes: one whose script still prepares cannot."""
        prepared, grants = self.prepared, self.grants
        return {inc: node for inc, node in self.workers.items() if inc in prepared or inc in grants}

    @property
    def is_training(self) -> bool:
        """Whether somebody holds the model, so that workers can train."""
        if self.group is not None:
            return self.group.running
        return self.map is not None and not self.restoring

    def _recall_tail(self, message: LeaseRequest) -> list[Instruction]:
        """Nothing is to do, and a worker starves: have the slowest one share what it holds."""
        feed, asker = self.ledger.feeds[message.feed], message.inc
        if not message.starving or self.plans.in_steps(feed) or self.plans.has_fixed_parts(feed):
            return []
        leases = {
            inc: size
            for inc in self.workers
            if inc != asker and (size := self.ledger.lease_size(inc, feed.feed))
        }
        speeds = {inc: self.sizes[inc].speed for inc in (*leases, asker) if inc in self.sizes}
        batch_size = max(1, feed.batch_size // max(1, len(self.training_workers())))
        found = tail_share(leases, speeds, asker, batch_size)
        if found is None:
            return []
        inc, keep = found
        n = self.grants[inc].n
        recall = Recall(epoch_no=self.epoch_no, inc=inc, n=n, feed=feed.feed, keep=keep)
        return [Send(inc, recall)]

    def _serve(self) -> list[Instruction]:
        """Something came back or was completed: look at the open requests again."""
        return [
            done
            for inc in sorted(self.waiting)
            for done in self._grant(self.waiting[inc], self.sizes[inc])
        ]

    def evaluated(self, feed: int, span: Span) -> list[Instruction]:
        """The results of this span of an evaluation are stored."""
        if feed not in self.ledger.feeds:
            return []
        self.ledger.commit([span])
        return self._serve()

    def committed(self, message: Committed) -> list[Instruction]:
        """The leader's word of what is in the model; leases shrink, DONE grows."""
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        if message.inc != self.map.servers[0].inc or self.restoring:
            return []
        self.step = max(self.step, message.step)
        if self.heard is None or _later(message, self.heard):
            self.heard = message
        self.ledger.commit(message.committed)
        return [*self._move_plan(self.step + 1), *self._serve()]

    # ------------------------------------------------------------------ plans

    def carry_out(self, action: GlobalAction, lead: int) -> list[Instruction]:
        """Have a global action take effect, on all workers from the same step on.

        Asynchronous: at once. A later call replaces an earlier one that is still on its way.

        Args:
            action: it makes a new plan of the last one.
            lead: steps from the undecided one to that from which on it is to hold.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        if self.group is not None:
            lead = 0  # the members find the step by themselves
        self.plans.prepare(action, lead, self.step + 1, list(self.training_workers().values()))
        return self._go_on_with_plan()

    def share_of(self, inc: int) -> float | None:
        """A worker's part of what all compute, by the plan in force; None: all compute alike."""
        plan = self.plan_in_force().plan
        workers = self.training_workers()
        if not plan.shares or inc not in workers:
            return None
        return portion_of(plan, *standing(workers, inc)).share

    @property
    def short_steps(self) -> int:
        """Steps that were decided while something of them was missing, restored ones included."""
        before = self.start.short_steps if self.start is not None else 0
        return before + (self.heard.short_steps if self.heard is not None else 0)

    @property
    def left_out(self) -> int:
        """Samples that were missing in them."""
        before = self.start.left_out if self.start is not None else 0
        return before + (self.heard.left_out if self.heard is not None else 0)

    def _allow(self) -> list[Instruction]:
        """Tell the leader what may be left out, unless it has said that it knows."""
        allowed, feed = self.plans.allowed(), self.plans.in_training()
        if allowed is None or feed is None or self.map is None or self.restoring:
            return []
        if self.heard is not None and self.heard.allow >= allowed.plan.allow:
            return []
        leader = self.map.servers[0].inc
        allow = Allow(
            epoch_no=self.epoch_no,
            inc=leader,
            no=allowed.plan.allow,
            step=allowed.step,
            left_out=allowed.plan.left_out,
            of=feed.batch_size,
            late=allowed.plan.late,
            grace_s=allowed.plan.grace_s,
        )
        return [Send(leader, allow)]

    def plan_in_force(self) -> Planned:
        """The plan of the undecided step, and since when it holds."""
        if self.group is not None:
            held = [one for one in self.plans.known if one.plan.no <= self.group.divides_by]
            return held[-1] if held else NO_PLAN
        return self.plans.record_at(self.plans.place(self.plans.undecided()))

    def holds(self, action: GlobalAction) -> bool:
        """Whether this is part of the plan in force."""
        plan = self.plan_in_force().plan
        return self.plans.amended(plan, action, list(self.training_workers().values())) == plan

    def _go_on_with_plan(self) -> list[Instruction]:
        """A plan was prepared or moved: commit it, or recall what is in its way."""
        return [*self._commit_plan(), *self._recall(), *self._serve()]

    def _move_plan(self, undecided: int, whole: Slice = ()) -> list[Instruction]:
        """A step was decided, or somebody starves in it: the plan on its way may be overdue."""
        if self.plans.move(undecided, whole):
            return self._go_on_with_plan()
        return self._commit_plan()

    def _commit_plan(self) -> list[Instruction]:
        record = self.plans.committable()
        if record is None:
            return []
        done: list[Instruction] = [self._record(record)]
        if self.group is not None:
            done += self.group.divide()
        return [*done, *self._allow(), *self._tell_rates()]

    def _tell_rates(self) -> list[Instruction]:
        if self.mode == "bsp":
            return []
        newest = self.plans.newest
        return [
            Send(inc, NewRate(epoch_no=self.epoch_no, inc=inc, rate=newest.rate_of(node)))
            for inc, node in sorted(self.workers.items())
            if inc not in self.untold
        ]

    def _recall(self, only: int | None = None) -> list[Instruction]:
        """Ask for what is held from the place on where the new plan begins."""
        done: list[Instruction] = []
        for inc in self.plans.holders():
            if inc in self.workers and only in (None, inc):
                done.append(Send(inc, self._recall_message(inc)))
        return done

    def _recall_message(self, inc: int) -> Recall:
        assert self.plans.preparing is not None
        since, n = self.plans.preparing.since, self.grants[inc].n
        feed = feed_of(since.line)
        return Recall(epoch_no=self.epoch_no, inc=inc, n=n, feed=feed, start=since.position)

    def given_back(self, message: GiveBack) -> list[Instruction]:
        """A worker has forgotten a part of its lease: it is to do, once."""
        inc, r = message.inc, message.r
        if message.epoch_no != self.epoch_no or inc not in self.workers or inc in self.fencing:
            return []
        known = self.gave_back.get(inc, 0)
        if r > known + 1:
            return []
        done: list[Instruction] = []
        if r == known + 1:
            done.append(self._record(GaveBack(inc=inc, r=r, spans=message.spans)))
            done += [*self._commit_plan(), *self._serve()]
        return [*done, Send(inc, GivenBack(epoch_no=self.epoch_no, inc=inc, r=r))]

    # ------------------------------------------------------------------ cuts

    def take_cut(self) -> list[Instruction]:
        """Ask for a cut, unless one is under way or servers are being restored."""
        if self.cuts.under_way or not self._holders():
            return []
        self.cuts.begin(self.step)
        return self._ask_cut()

    def cut_wanted(self, message: AskCut) -> list[Instruction]:
        """A worker asks for a cut, which is made as soon as it can hold what is to be in it."""
        if message.epoch_no != self.epoch_no or message.inc not in self.workers:
            return []
        self.cuts.want(message)
        return self._tell_made()

    @property
    def wants_cut(self) -> bool:
        """Whether a worker asks for a cut that can be made now; members wait for its step."""
        at_once = self.group is not None
        return any(at_once or one.step <= self.step for one in self.cuts.wanted.values())

    def _tell_made(self) -> list[Instruction]:
        return [Send(inc, CutMade(inc=inc, n=n)) for inc, n in self.cuts.take_met()]

    def _holders(self) -> tuple[int, ...]:
        """Who holds the state, and so copies it for a cut; none: nobody can now.

        Of a group one member is enough, as long as it is there: all hold the same. Sharded, all are
        needed.
        """
        if self.group is not None:
            group = self.group
            if group.sharded:
                whole = group.running and not group.lost
                return tuple(one.inc for one in group.members) if whole else ()
            living = [one.inc for one in group.members if one.inc not in group.lost]
            members = living if group.running else []
            if self.holder not in members:
                self.holder = members[0] if members else 0
                self.cuts.forget()
            return (self.holder,) if members else ()
        if self.map is None or self.restoring:
            return ()
        return tuple(dict.fromkeys((*self.map.sharers, *self.serving)))

    def _ask_cut(self) -> list[Instruction]:
        asked = self.cuts.awaited(self._holders())
        if asked is None:
            return []
        number, holders = asked
        # A member may be a step behind the one whose word we have.
        step = max([self.cuts.least_step, *(one.step for one in self.cuts.wanted.values())])
        return [
            Send(inc, TakeCut(epoch_no=self.epoch_no, inc=inc, cut_no=number, step=step))
            for inc in holders
        ]

    def copy_said(self, message: Copied, directory: str, memory: str) -> list[Instruction]:
        """A cut is whole when all servers of the map have said it with equal steps and sets.

        Args:
            message: what a server says.
            directory: of the cut.
            memory: where its files are that are not there yet.

        Returns:
            Have it sealed, once it is; nothing else has changed before it is.
        """
        if message.epoch_no != self.epoch_no or not self._may_copy(message.inc):
            return []
        if not self.cuts.heard(message):
            return []
        where = "" if self.cuts.all_stored else memory
        cut = CutRef(cut_no=message.cut_no, directory=directory, memory=where)
        if self.cuts.copying is None:
            (valid,) = (one for one in self.cuts.valid if one.cut.cut_no == cut.cut_no)
            return [Seal(msgspec.structs.replace(valid, cut=cut), self.cuts.sealed)]
        said = {(copied.step, copied.committed) for copied in self.cuts.sealed}
        step, committed = next(iter(said))
        if len(said) > 1:
            if self.samples == "exactly-once":
                return [Fail(f"servers disagree on the content of cut {cut.cut_no}")]
            committed = common(copied.committed for copied in self.cuts.sealed)
        valid = CutValid(cut=cut, step=step, committed=committed, epoch_no=self.epoch_no)
        return [Seal(valid, self.cuts.sealed)]

    def awaits(self, valid: CutValid) -> bool:
        """Whether this cut is the one on its way."""
        return valid.epoch_no == self.epoch_no and valid.cut.cut_no == self.cuts.on_its_way

    def cut_sealed(self, valid: CutValid) -> list[Instruction]:
        """The manifest is written: the cut is valid, or stored."""
        if not self.awaits(valid):
            return []
        if self.cuts.advance():
            return [*self._cut_valid(valid), *self._tell_made()]
        stored = [self._record(CutStored(cut=valid.cut)), *self._tell_made()]
        if self.group is not None:
            return [*stored, *self._tell_safe(), *self._make_safe()]
        return [*stored, *self._serve(), *self._go_on_moving()]

    def _may_copy(self, inc: int) -> bool:
        """Whether this incarnation's word about a cut counts.

        Of servers that of one that has left the map since, too: the cut says whose copies make it.
        """
        if self.group is not None:
            # Sharded: of who has left meanwhile, too: it said it before.
            knows = self.group.running and self.group.knows(inc)
            return knows if self.group.sharded else inc == self.holder
        return self.map is not None and not self.restoring

    def _tell_safe(self) -> list[Instruction]:
        """All-reduce: of a feed that is on disk, too, nothing can come again."""
        fresh = sorted(self.cuts.safe - self.complete)
        self.complete.update(fresh)
        told = [
            self._feed_opened(inc, self.ledger.feeds[feed])
            for feed in fresh
            for inc in sorted(self.workers)
        ]
        return [*map(FeedDone, fresh), *told]

    def _cut_valid(self, valid: CutValid) -> list[Instruction]:
        if self.group is not None:  # whose word is not journalled either
            if self.group.sharded:  # all members hold what they have copied
                self.step = max(self.step, valid.step)
                self.ledger.advance(valid.committed)
            proven = GroupProgressed(step=self.step, committed=self.ledger.done.spans())
            return [self._record(proven), self._record(valid), *self._tell_safe()]
        return [self._record(valid), *self._serve()]

    def cut_gone(self, cut_no: int) -> list[Instruction]:
        """The cut's files are deleted or damaged."""
        return [self._record(CutGone(cut_no=cut_no))]

    # ------------------------------------------------------------------ moving buckets

    @property
    def serving(self) -> tuple[int, ...]:
        """The servers without which a new epoch must begin."""
        return self.moving.serving(self.map) if self.map else ()

    def replace(self, old: int, new: Server) -> list[Instruction]:
        """Move all buckets of a server to a fresh one while training goes on.

        Not while servers are being restored, or without an order (``samples``): then nothing.
        """
        if self.map is None or self.restoring or self.samples != "exactly-once":
            return []
        if self.moving.begun or old not in self.map.sharers or self.map.index(new.inc) >= 0:
            return []
        self.moving.forget()
        begun = MoveBegun(old=old, new=new, version=self.map.version)
        return [self._record(begun), *self._ask_move()]

    def joiner_lost(self, inc: int) -> list[Instruction]:
        """The new server is dead: as a server if the buckets are its own already."""
        begun = self.moving.begun
        if begun is None or begun.new.inc != inc:
            return []
        self.moving.lost = True
        return self.give_up_move()

    def give_up_move(self) -> list[Instruction]:
        """Leave the buckets where they are, unless the leader has moved them meanwhile."""
        self.moving.given_up = True
        return self._go_on_moving()

    def server_said(self, message: Joined | MapSet) -> list[Instruction]:
        """A server's word about the move, or which map the order holds: a later one is true."""
        if message.epoch_no != self.epoch_no or self.map is None or self.restoring:
            return []
        if isinstance(message, Joined):
            return self._go_on_moving() if self.moving.heard(message) else []
        done: list[Instruction] = []
        if message.map.version > self.map.version:
            self.moving.settled = False
            done = [self._record(MapChanged(map=message.map)), *self._fence_all()]
        if message.map.version == self.map.version and message.settled:
            self.moving.settled = True
        return [*done, *self._go_on_moving()]

    def _go_on_moving(self) -> list[Instruction]:
        """End the move if it is over, else ask for what comes next."""
        begun, now = self.moving.begun, self.map
        if begun is None or now is None or self.restoring:
            return []
        if not self.moving.is_over(now, cut_under_way=self.cuts.under_way):
            return self._ask_move()
        moved = self.moving.has_switched(now)
        old, new = begun.old, begun.new.inc
        end = Moved(old, new) if moved else NotMoved(new, futile=True)
        return [self._record(MoveEnded()), end]

    def _ask_move(self) -> list[Instruction]:
        begun, now = self.moving.begun, self.map
        if begun is None or now is None or self.model is None:
            return []
        asked: list[Instruction] = []
        joining = self.moving.joining_map(now)
        if joining is not None:
            join = JoinServers(
                epoch_no=self.epoch_no,
                inc=begun.new.inc,
                map=joining,
                model=self.model,
                mode=self.mode,
                staleness=self.staleness,
            )
            asked.append(Send(join.inc, join))
        wanted = self.moving.wanted_map(now)
        if wanted is not None:
            leader = now.servers[0].inc
            change = ChangeMap(epoch_no=self.epoch_no, inc=leader, map=wanted)
            asked.append(Send(leader, change))
        return asked

    def _hint(self, message: LeaseRequest) -> list[Instruction]:
        """A worker that has missed a change of the map, and may not know who leads now."""
        if self.map is None or self.restoring or message.map_version >= self.map.version:
            return []
        inc = message.inc
        return [Send(inc, NewMap(epoch_no=self.epoch_no, inc=inc, map=self.map))]

    # ------------------------------------------------------------------ all-reduce

    def _in_group(self, done: list[Instruction]) -> list[Instruction]:
        """What the group has decided, with what follows from it for the ledger."""
        for one in done:
            if isinstance(one, Journal):
                match one.record:
                    case GroupFormed() | GroupRestored() | GroupBegun():
                        self._follow_group(one.record)
                    case _:
                        pass
        return done

    def member_said(
        self, group: Group, message: GroupUp, *, node: str = "", expected: int = 0
    ) -> list[Instruction]:
        """A worker's word about the group.

        Args:
            group: of this job.
            message: what it says.
            node: where it lives.
            expected: workers for which a first group waits.
        """
        inc = message.inc
        if self.is_given_up(inc):
            return [Send(inc, Stop(inc=inc))]
        if inc not in self.workers:
            return []
        match message:
            case JoinGroup():
                self.prepared.add(inc)
                return self._in_group(group.join(message, node, expected=expected))
            case Stopped():
                return self._in_group(group.stopped_said(message))
            case Broken():
                return self._in_group(group.broken_said(message))
            case Progress():
                return self._progress(group, message)

    def _progress(self, group: Group, message: Progress) -> list[Instruction]:
        """What all members hold is in the model; DONE grows."""
        committed = group.progress(message)
        if committed is None:
            return []
        self.step = max(self.step, group.step)
        self.ledger.advance(committed)
        return self._make_safe()

    def _make_safe(self) -> list[Instruction]:
        """Have a feed that is complete in a cut on disk: its workers wait for that."""
        feeds = [feed for feed in self.ledger.feeds.values() if feed.purpose == "train"]
        lacking = [feed for feed in feeds if feed.feed not in self.cuts.safe]
        return self.take_cut() if any(self.ledger.is_complete(f.feed) for f in lacking) else []

    def restore_group(self, group: Group) -> list[Instruction]:
        """Nobody holds state: begin an epoch from the newest cut."""
        newest = self.cuts.valid[-1] if self.cuts.valid else None
        done = self._in_group(group.restore(newest))
        self.complete.clear()
        self.cuts.forget()
        return done

    def form_group(self, group: Group) -> list[Instruction]:
        """Form the group that is due: nobody else is waited for."""
        return self._in_group(group.form())

    def _member_lost(self, group: Group, inc: int, *, returned: bool) -> list[Instruction]:
        """What it was to evaluate goes back, and the others go on without it."""
        back = [self._record(Returned(inc=inc))] if inc in self.ledger.leases else []
        return [*self._in_group(group.leave(inc, returned=returned)), *back, *self._serve()]

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        """Everything of ours that is unanswered, once more."""
        again = [*self._restore(), *self._ask_cut(), *self._fence_all(), *self._recall()]
        again += [*self._allow(), *self._go_on_moving()]
        if self.group is not None:
            again += [*self.group.resend(), *self._make_safe()]
        for inc in sorted(self.waiting):
            again += self._recall_tail(self.waiting[inc])
        for inc in sorted(self.untold):
            again += self._tell_epoch(inc)
        return again

    def stop(self) -> list[Instruction]:
        """Ask every worker to leave after its step."""
        return [Send(inc, Stop(inc=inc)) for inc in sorted(self.workers)]


def _later(one: Committed, other: Committed) -> bool:
    """Whether this was said after that."""
    return (one.step, one.allow) > (other.step, other.allow)
