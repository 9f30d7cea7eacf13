"""The master's part of the integrity protocol, as a pure state machine: what is true of every job.

Feeds, leases, plans and cuts. Who holds the model, and so how an epoch begins, what a lost worker
leaves behind and whose copies make a cut, is the answer of its `Holder`
(``holding/servers/master.py``, ``holding/group/master.py``).

What must survive the master's death is changed by *records* only: `record` appends one to the
answer and applies it, the edge journals it before any message of the same answer leaves, and a
restarted master applies the journal to a fresh machine. Everything else is memory and may vanish
(docs/protocols/integrity.md, section 2). The explorer in ``tests/model`` drives these classes and
models the master's death as exactly that: the records, applied again.
"""

from typing import assert_never

import msgspec

from paceline.base.errors import InternalError
from paceline.base.numbering import NO_EPOCH, START, CutNo, Inc, StepNo, step_after
from paceline.base.samples import SampleSet, Span, num_samples
from paceline.protocol.acts import (
    Fail,
    FeedDone,
    Instruction,
    Seal,
    Send,
    WorkerRefused,
    WriteAhead,
)
from paceline.protocol.cuts.valid import Cuts
from paceline.protocol.holding.holder import Holder
from paceline.protocol.reasons import feed_difference, late_records
from paceline.protocol.records import (
    Agreed,
    CutGone,
    CutStored,
    CutValid,
    Extended,
    FeedAdded,
    GaveBack,
    Granted,
    LoopEnded,
    Planned,
    Records,
    Returned,
    SchemaFixed,
)
from paceline.protocol.samples.grant_size import Sizing, tail_share
from paceline.protocol.samples.grants import Deal, Dealt, standing
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.left_loops import LeftLoops
from paceline.protocol.samples.plans import GlobalAction, Plans, portion_of
from paceline.wire.messages.feeds import BEHIND, LINES_PER_FEED, Feed, Slice, feed_of
from paceline.wire.messages.node import (
    AgreeOn,
    AskCut,
    AskPlace,
    Copied,
    CutMade,
    FeedOpened,
    GiveBack,
    GivenBack,
    GivenUp,
    Grant,
    LeaseRequest,
    LoopLeft,
    OpenFeed,
    PlaceIs,
    Recall,
    Stop,
    TakeCut,
)
from paceline.wire.schema import ModelSchema

CoreRecordsTakes = (
    SchemaFixed
    | FeedAdded
    | LoopEnded
    | Agreed
    | Extended
    | Granted
    | Returned
    | GaveBack
    | Planned
    | CutValid
    | CutStored
    | CutGone
)
"""Records that are true of every job, whoever holds the model."""


class MasterState:
    """Feeds, leases, plans and cuts of one job."""

    def __init__(
        self, holder: Holder, *, mode: str, samples: str, whole_steps: bool = False
    ) -> None:
        """``whole_steps``: no step lacks a sample."""
        self.holder, self.mode, self.samples = holder, mode, samples
        holder.core = self
        # Durable: changed by records only.
        self.ledger = Ledger()
        self.model: ModelSchema | None = holder.model
        self.epoch_no = NO_EPOCH
        self.cuts = Cuts()
        #: Last answered request per incarnation of this epoch.
        self.grants: dict[Inc, Grant] = {}
        #: Incarnations whose leases were taken back in this epoch.
        self.gone: set[Inc] = set()
        #: Number of the last thing that an incarnation of this epoch gave back.
        self.gave_back: dict[Inc, int] = {}
        #: Which plan holds where.
        self.plans = Plans(
            self.ledger,
            synchronous=mode == "bsp",
            granted=holder.leases_training,
            whole=whole_steps,
        )
        # Volatile.
        self.waiting: dict[Inc, LeaseRequest] = {}
        #: How large the next grant of an incarnation should be, as last told.
        self.sizes: dict[Inc, Sizing] = {}
        #: How far each incarnation has been dealt its parts of the slices to come.
        self.dealt: dict[Inc, Dealt] = {}
        #: Workers that are alive: incarnation -> node.
        self.workers: dict[Inc, str] = {}
        self.prepared: set[Inc] = set()
        #: Feed -> the worker that defined it, in words; of this master's time.
        self.opened_by: dict[int, str] = {}
        #: The newest feed to train on that each worker has opened.
        self.trains_on: dict[Inc, int] = {}
        #: Lives for which others wait before they begin their next loop.
        self.awaited: set[Inc] = set()
        #: Lives that have had no batch of the newest loop, and wait for the next one of others.
        self._standing: set[Inc] = set()
        #: Lives that go on behind the newest loop, since all who hold the model waited there.
        self._freed: set[Inc] = set()
        #: Loops that workers of servers have left.
        self.left_loops = LeftLoops()
        #: Whether the script of a worker has come to its end.
        self.has_returned = False
        #: Told as done: feeds.
        self.complete: set[int] = set()
        self.step = START

    # ------------------------------------------------------------------ who holds the model

    @property
    def phase(self) -> str:
        return self.holder.phase

    @property
    def is_training(self) -> bool:
        return self.holder.is_training

    def worker_lost(self, inc: Inc, *, returned: bool = False) -> list[Instruction]:
        self.ledger.agreements.left(inc)
        self.has_returned |= returned
        ended = self.left_loops.gone(inc, samples=self._trained() if returned else None)
        done: list[Instruction] = [] if ended is None else [self.record(ended)]
        return [*done, *self.holder.lost(inc, returned=returned), *self._meet(), *self.serve()]

    # ------------------------------------------------------------------ records

    def apply(self, record: Records) -> None:
        """The only way durable state changes."""
        if self.holder.apply(record):
            return
        if not isinstance(record, CoreRecordsTakes):
            raise InternalError(f"{record!r} is no record of a job like this one")
        match record:
            case SchemaFixed():
                self.model = record.model
            case Planned():
                self.plans.apply(record)
            case CutValid():
                self._apply_valid(record)
            case Agreed():
                self.ledger.agreements.apply(record)
            case CutStored() | CutGone():
                self.cuts.apply(record)
            case LoopEnded():
                self.left_loops.apply(record)
            case FeedAdded() | Extended() | Granted() | Returned() | GaveBack():
                self._apply_to_ledger(record)
            case _:
                assert_never(record)
        self.holder.applied(record)

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
            case _:
                assert_never(record)

    def go_back(self, committed: tuple[Span, ...]) -> None:
        """Begin an epoch: this is in the model, and nothing is leased."""
        self.left_loops.go_back(num_samples(committed))
        self.ledger.restore(committed, again=self.samples != "at-most-once")
        self.grants.clear()
        self.gone.clear()
        self.gave_back.clear()
        self.cuts.covered.clear()
        # A cut that was damaged no longer holds what it made safe.
        safe = self.cuts.safe
        self.cuts.safe = {feed for feed in safe if self.ledger.is_complete(feed)}

    def _apply_valid(self, record: CutValid) -> None:
        self.holder.proven_by(record)
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

    def record(self, record: Records) -> WriteAhead:
        """Apply a record and have it journalled."""
        self.apply(record)
        return WriteAhead(record)

    def resume(self) -> list[Instruction]:
        """After the journal was applied: which messages of this epoch have arrived is unknown."""
        newest = self.cuts.valid[-1] if self.cuts.valid else None
        if newest is not None and newest.cut.in_memory and newest.epoch_no == self.epoch_no:
            self.cuts.storing = newest.cut.cut_no
        return self.holder.resume()

    # ------------------------------------------------------------------ workers

    def worker_up(self, inc: Inc, node: str = "") -> list[Instruction]:
        """Take in that a worker's process lives; one that was given up in this epoch must leave."""
        if self.is_given_up(inc):
            return [Send(inc, GivenUp(inc=inc))]
        self.workers[inc] = node
        self.ledger.agreements.came(inc)
        self.holder.came(inc)
        return []

    def is_given_up(self, inc: Inc) -> bool:
        """Whether others go on without this worker, and it must not come back."""
        return inc in self.gone or self.holder.is_given_up(inc)

    def forget_worker(self, inc: Inc) -> None:
        """Drop what is known of a worker that is gone."""
        self.workers.pop(inc, None)
        self.prepared.discard(inc)
        self.trains_on.pop(inc, None)
        self._standing.discard(inc)
        self._freed.discard(inc)
        self.waiting.pop(inc, None)
        self.sizes.pop(inc, None)
        self.dealt.pop(inc, None)
        self.cuts.wanted.pop(inc, None)

    def training_workers(self) -> dict[Inc, str]:
        """The workers that can train, and their nodes: one whose script still prepares cannot."""
        prepared, grants = self.prepared, self.grants
        return {inc: node for inc, node in self.workers.items() if inc in prepared or inc in grants}

    # ------------------------------------------------------------------ feeds and leases

    def open_feed(
        self, message: OpenFeed, who: str = "", *, spared: bool = False
    ) -> list[Instruction]:
        """The first worker defines the feed; the others must mean the same.

        Args:
            message: of a worker.
            who: the worker, in words.
            spared: if it means another feed, it is left out, and the job does not fail.
        """
        feed = message.feed
        if feed.purpose == "train":
            self._standing.discard(message.inc)
            self._freed.discard(message.inc)
        if message.inc in self.workers:
            self.ledger.agreements.came(message.inc)
        # What it evaluates behind its loop it can do alone.
        trains = feed.purpose == "train"
        freed = self._came_elsewhere(message.inc, trains=True) if trains else []
        return [*freed, *self._open(message, who, spared=spared)]

    def _came_elsewhere(self, inc: Inc, *, trains: bool = False) -> list[Instruction]:
        """A worker is at another place of its script than behind a loop: nobody waits for that."""
        return self.serve() if self.left_loops.elsewhere(inc, trains=trains) else []

    def _open(self, message: OpenFeed, who: str, *, spared: bool) -> list[Instruction]:
        feed = message.feed
        known = self.known_feed(feed)
        if known is None and self._is_behind_end(message):
            # Nobody else opens it: its number is one that no feed of the ledger has.
            behind = self.ledger.numbered(feed, BEHIND + feed.feed)
            opened = FeedOpened(inc=message.inc, feed=behind, complete=True, left=True)
            return [Send(message.inc, opened)]
        if known is None:
            feed = self.ledger.numbered(feed, self.number_of(feed))
            trained = [f for f in self.ledger.feeds.values() if f.purpose == "train"]
            before = [f.last_step for f in trained if not f.per_worker]
            known = msgspec.structs.replace(feed, first_step=max([self.step, *before]))
            journal = self.record(FeedAdded(feed=known))
            self._note_training(message.inc, known)
            self.opened_by[feed.feed] = who
            opened = FeedOpened(inc=message.inc, feed=known, begun=len(self.ledger.done))
            return [journal, Send(message.inc, opened)]
        self._note_training(message.inc, known)
        difference = feed_difference(known, feed, self.opened_by.get(feed.feed, ""), who)
        if difference:
            return [WorkerRefused(message.inc, difference) if spared else Fail(difference)]
        return [Send(message.inc, self.feed_opened(message.inc, known, since=message.since))]

    def _trained(self) -> int:
        """Samples in the model, as far as is journalled or told."""
        feeds = self.ledger.feeds
        spans = self.ledger.done.spans()
        return num_samples(one for one in spans if feeds[feed_of(one.line)].purpose == "train")

    def _is_behind_end(self, message: OpenFeed) -> bool:
        """Whether a loop would follow one that has ended for this worker."""
        trained = [feed.feed for feed in self.ledger.feeds.values() if feed.purpose == "train"]
        is_to_train = message.feed.purpose == "train" and trained
        return bool(is_to_train) and self.left_loops.is_over(max(trained), message.since)

    def loop_left(self, message: LoopLeft) -> None:
        """Take in that a worker of servers has left its loop, perhaps for good."""
        if message.inc in self.workers:
            self.left_loops.left(message)

    def _note_training(self, inc: Inc, feed: Feed) -> None:
        if feed.purpose == "train" and inc in self.workers:
            self.trains_on[inc] = feed.feed

    def known_feed(self, feed: Feed) -> Feed | None:
        """Return the feed that was opened at this place of the script; None: none was."""
        if not feed.place:
            return self.ledger.feeds.get(feed.feed)
        for one in self.ledger.feeds.values():
            if one.place == feed.place or (not one.place and one.feed == feed.feed):
                return one
        return None

    def number_of(self, feed: Feed) -> int:
        """Return the number that a feed gets, which nobody has opened so far."""
        return max(self.ledger.feeds, default=-1) + 1 if feed.place else feed.feed

    def place_asked(self, message: AskPlace) -> list[Instruction]:
        """Say how far the model is in the script: which feeds it has samples of."""
        met = self._stands_by(message.inc) if message.stands_by else []
        cut = self.holder.begins_with
        # A cut may hold a step that the ledger does not: what is proven comes a step later.
        held = {feed_of(one.line) for one in self.cuts.valid[-1].committed} if cut else set[int]()
        begun = [
            msgspec.structs.replace(feed, ends=())
            for feed in self.ledger.feeds.values()
            if feed.purpose == "train" and (self.ledger.is_begun(feed.feed) or feed.feed in held)
        ]
        at = tuple(self.ledger.next_to_do(feed.feed) for feed in begun)
        holders = self.holder.holders
        # What was opened before the job went back to a cut may be further than anybody is.
        opened = [self.trains_on[inc] for inc in holders if inc in self.trains_on]
        last = begun[-1] if begun else None
        newest = self.ledger.feeds[max(opened)] if opened else last
        answer = PlaceIs(
            inc=message.inc,
            begun=tuple(begun),
            at=at,
            cut=cut,
            newest=None if newest is None else msgspec.structs.replace(newest, ends=()),
            others=bool(holders - {message.inc}),
            returned=self.has_returned,
            awaited=message.inc in self.awaited | self._freed,
        )
        return [*met, Send(message.inc, answer)]

    def _stands_by(self, inc: Inc) -> list[Instruction]:
        """Have nobody wait for a worker that comes in later: see `AskPlace`.

        After a resume from the end of a loop all do: then each goes on behind it.
        """
        if inc in self._freed:
            return []
        self._standing.add(inc)
        if self.holder.holders <= self._standing:
            self._freed |= self._standing
            self._standing.clear()
            for one in self._freed:
                self.ledger.agreements.came(one)
            return []
        self.ledger.agreements.left(inc)
        return self._meet()

    def meet(self, message: AgreeOn) -> list[Instruction]:
        """Take in what a worker says at a place of its script."""
        if message.inc in self.gone:
            return [Send(message.inc, GivenUp(inc=message.inc))]
        self.ledger.agreements.meet(message)
        return [*self._meet(), *self._came_elsewhere(message.inc)]

    def in_no_step(self, inc: Inc) -> list[Instruction]:
        """Take in that a worker is in no step, or waits for others in it."""
        self.ledger.agreements.waits(inc)
        return self._meet()

    def _meet(self) -> list[Instruction]:
        """Say how those meetings ended that wait for nobody any more."""
        done: list[Instruction] = [
            self.record(one) for one in [*self.ledger.agreements.due(self.holder.in_steps)]
        ]
        return [*done, *(Send(one.inc, one) for one in self.ledger.agreements.answers())]

    def feed_opened(self, inc: Inc, feed: Feed, *, since: int = -1) -> FeedOpened:
        """Return the feed, and whether a worker that opens it has nothing to do with it."""
        begun = len(self.ledger.done)
        kept = feed.purpose != "train" or feed.feed in self.cuts.safe
        stored = self.cuts.on_disk
        over = bool(stored) and self.ledger.is_left(feed, stored[-1].step)
        complete = over or self.is_passed(feed) or (kept and self.ledger.is_complete(feed.feed))
        left = self.left_loops.is_over(feed.feed, begun if since < 0 else since)
        opened = FeedOpened(inc=inc, feed=feed, complete=complete or left, begun=begun, left=left)
        return self.holder.opened(opened)

    def is_passed(self, feed: Feed) -> bool:
        """Whether workers that are in step have left this loop for another one."""
        is_held = self.holder.is_held and self.plans.in_steps(feed)
        return is_held and self.ledger.is_passed(feed)

    def request(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        """Grant, or keep the request open until there is something to grant."""
        inc = message.inc
        if inc in self.gone:
            return [Send(inc, GivenUp(inc=inc))]
        if inc not in self.workers or self.holder.is_fenced(inc):
            return []
        self.prepared.add(inc)
        if message.epoch_no == self.epoch_no:
            return [*self.holder.asked(message), *self._request(message, sizing)]
        return self.holder.tell_epoch(inc) if message.epoch_no < self.epoch_no else []

    def is_new(self, message: LeaseRequest) -> bool:
        """Whether a request was not granted so far, and would be now."""
        last = self.grants.get(message.inc)
        return message.n == (last.n if last else 0) + 1

    def _request(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        inc = message.inc
        last = self.grants.get(inc)
        if last is not None and message.n == last.n:
            return [Send(inc, last)]
        if not self.is_new(message) or message.feed not in self.ledger.feeds:
            return []
        if message.handled:
            self.ledger.commit(message.handled)
        grown = self._extend(message) if message.feed in self.ledger.names else []
        done = [*grown]
        if sizing.samples:
            self.waiting[inc], self.sizes[inc] = message, sizing
            if message.starving:  # nobody is to starve where a plan is to begin
                done += self.move_plan(message.step, message.slice)
            if inc in self.waiting:
                done += self._grant(message, sizing)
        if message.handled or grown:
            done += self.serve()
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
        return [self.record(Extended(feed=feed, ends=news, finished=message.finished))]

    def _grant(self, message: LeaseRequest, sizing: Sizing) -> list[Instruction]:
        feed, inc = message.feed, message.inc
        workers = self.training_workers()
        deal = Deal(
            self.ledger,
            self.plans,
            message,
            workers=workers,
            step=self.step,
            dealt=self.dealt,
        )
        left = self.left_loops.is_over(feed, message.since)
        if not left and self.left_loops.holds(message):
            return []
        passed = left or self.is_passed(self.ledger.feeds[feed])
        spans = () if passed else deal.pick(sizing)
        end = not spans and self.ledger.is_complete(feed)
        if end and self.ledger.feeds[feed].purpose == "train" and feed not in self.cuts.safe:
            return self.take_cut()
        if not spans and not end and not passed:
            return self._recall_tail(message)
        del self.waiting[inc]
        grant = Grant(
            epoch_no=self.epoch_no,
            inc=inc,
            n=message.n,
            feed=feed,
            spans=tuple(spans),
            end=end or passed,
            left=left,
            batch_size=sizing.batch_size,
            lines=self.ledger.source_lines(spans) if feed in self.ledger.names else (),
            batching=deal.batching(),
            rate=self.plans.newest.rate_of(self.workers[inc]),
        )
        granted = Granted(grant=grant, handled=message.handled)
        done: list[Instruction] = [self.record(granted), Send(inc, grant)]
        if end and feed not in self.complete:
            self.complete.add(feed)
            done.append(FeedDone(feed))
        return [*done, *self._recall(inc)]

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
        # To evaluate, all compute batches of the same samples, however many they are.
        sharing = len(self.training_workers()) if feed.purpose == "train" else 1
        batch_size = max(1, feed.batch_size // max(1, sharing))
        found = tail_share(leases, speeds, asker, batch_size)
        if found is None:
            return []
        inc, keep = found
        n = self.grants[inc].n
        recall = Recall(epoch_no=self.epoch_no, inc=inc, n=n, feed=feed.feed, keep=keep)
        return [Send(inc, recall)]

    def serve(self) -> list[Instruction]:
        """Look at the open requests again: something came back or was completed."""
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
        return self.serve()

    def given_back(self, message: GiveBack) -> list[Instruction]:
        """A worker has forgotten a part of its lease: it is to do, once."""
        inc, r = message.inc, message.r
        if (
            message.epoch_no != self.epoch_no
            or inc not in self.workers
            or self.holder.is_fenced(inc)
        ):
            return []
        known = self.gave_back.get(inc, 0)
        if r > known + 1:
            return []
        done: list[Instruction] = []
        if r == known + 1:
            done.append(self.record(GaveBack(inc=inc, r=r, spans=message.spans)))
            done += [*self.commit_plan(), *self.serve()]
        return [*done, Send(inc, GivenBack(epoch_no=self.epoch_no, inc=inc, r=r))]

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
        lead = self.holder.lead(action, lead)
        self.plans.prepare(
            action, lead, step_after(self.step), list(self.training_workers().values())
        )
        return self._go_on_with_plan()

    def share_of(self, inc: Inc) -> float | None:
        """A worker's part of what all compute, by the plan in force; None: all compute alike."""
        plan = self.plan_in_force().plan
        workers = self.training_workers()
        if not plan.shares or inc not in workers:
            return None
        return portion_of(plan, *standing(workers, inc)).share

    def plan_in_force(self) -> Planned:
        return self.holder.plan_in_force()

    def holds(self, action: GlobalAction) -> bool:
        """Whether this is part of the plan in force."""
        plan = self.plan_in_force().plan
        return self.plans.amended(plan, action, list(self.training_workers().values())) == plan

    def _go_on_with_plan(self) -> list[Instruction]:
        """A plan was prepared or moved: commit it, or recall what is in its way."""
        return [*self.commit_plan(), *self._recall(), *self.serve()]

    def move_plan(self, undecided: StepNo, whole: Slice = ()) -> list[Instruction]:
        """Move the plan on its way if it is overdue: a step was decided, or a worker starves."""
        if self.plans.move(undecided, whole):
            return self._go_on_with_plan()
        return self.commit_plan()

    def commit_plan(self) -> list[Instruction]:
        """Commit the plan on its way if nothing stands against it."""
        record = self.plans.committable()
        if record is None:
            return []
        return [self.record(record), *self.holder.planned()]

    def _recall(self, only: Inc | None = None) -> list[Instruction]:
        """Ask for what is held from the place on where the new plan begins."""
        done: list[Instruction] = []
        for inc in self.plans.holders():
            if inc in self.workers and only in (None, inc):
                done.append(Send(inc, self._recall_message(inc)))
        return done

    def _recall_message(self, inc: Inc) -> Recall:
        assert self.plans.preparing is not None
        since, n = self.plans.preparing.since, self.grants[inc].n
        feed = feed_of(since.line)
        return Recall(epoch_no=self.epoch_no, inc=inc, n=n, feed=feed, start=since.position)

    # ------------------------------------------------------------------ cuts

    def take_cut(self) -> list[Instruction]:
        """Ask for a cut, unless one is under way or servers are being restored."""
        if self.cuts.under_way or not self.holder.copiers():
            return []
        self.cuts.begin(self.step)
        return self._ask_cut()

    def cut_wanted(self, message: AskCut) -> list[Instruction]:
        """A worker asks for a cut, which is made as soon as it can hold what is to be in it."""
        self.holder.cut_wanted(message)
        if message.epoch_no != self.epoch_no or message.inc not in self.workers:
            return []
        self.cuts.want(message)
        return self._tell_made()

    def _tell_made(self) -> list[Instruction]:
        return [Send(inc, CutMade(inc=inc, n=n)) for inc, n in self.cuts.take_met()]

    def _ask_cut(self) -> list[Instruction]:
        asked = self.cuts.awaited(self.holder.copiers())
        if asked is None:
            return []
        number, holders = asked
        # A member may be a step behind the one whose word we have.
        step = max([self.cuts.least_step, *(one.step for one in self.cuts.wanted.values())])
        behind = self.holder.wait_behind
        return [
            Send(
                inc,
                TakeCut(epoch_no=self.epoch_no, inc=inc, cut_no=number, step=step, behind=behind),
            )
            for inc in holders
        ]

    def copy_said(self, message: Copied) -> list[Instruction]:
        """A cut is whole when all servers of the map have said it with equal steps and sets.

        Returns:
            Have it sealed, once it is; nothing else has changed before it is.
        """
        if message.epoch_no != self.epoch_no or not self.holder.may_copy(message.inc):
            return []
        if not self.cuts.heard(message):
            return []
        valid = self.cuts.whole(message, exactly_once=self.samples == "exactly-once")
        if valid is None:
            return [Fail(f"servers disagree on the content of cut {message.cut_no}")]
        return [Seal(valid, self.cuts.sealed)]

    def awaits(self, valid: CutValid) -> bool:
        """Whether this cut is the one on its way."""
        return valid.epoch_no == self.epoch_no and valid.cut.cut_no == self.cuts.on_its_way

    def cut_sealed(self, valid: CutValid) -> list[Instruction]:
        """The manifest is written: the cut is valid, or stored."""
        if not self.awaits(valid):
            return []
        if self.cuts.advance():
            return [*self.holder.cut_valid(valid), *self._tell_made()]
        stored = self.record(CutStored(cut=valid.cut))
        return [stored, *self._tell_made(), *self.holder.cut_stored()]

    def cut_gone(self, cut_no: CutNo) -> list[Instruction]:
        """The cut's files are deleted or damaged."""
        return [self.record(CutGone(cut_no=cut_no))]

    # ------------------------------------------------------------------ loss of messages

    def resend(self) -> list[Instruction]:
        """Everything of ours that is unanswered, once more."""
        again = [*self.holder.resend(), *self._ask_cut(), *self._recall()]
        for inc in sorted(self.waiting):
            again += self._recall_tail(self.waiting[inc])
        return again

    def stop(self) -> list[Instruction]:
        """Ask every worker to leave after its step."""
        return [Send(inc, Stop(inc=inc)) for inc in sorted(self.workers)]
