"""The edge around `MasterState`: what it needs to know beside the messages, and what it orders.

Grant sizes, cuts on disk, results of evaluations, the choice of the cut that an epoch starts from.
Handling a message never waits; verifying a cut, which reads it whole, happens in a thread.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, assert_never

import msgspec

from paceline.base.disk import describe
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.samples import num_samples
from paceline.cuts.manifest import patience_s
from paceline.master.cut_folders import CutFolders
from paceline.master.evaluations import Evaluations
from paceline.master.holding.edge import RESEND_S, HolderEdge
from paceline.master.monitor import Monitor
from paceline.master.outbox import Outbox
from paceline.master.reporting import last_measured
from paceline.master.status import count_committed
from paceline.policy.straggler.actions import AnyAction, KillRestart, Profile
from paceline.protocol.acts import (
    Fail,
    FeedDone,
    Instruction,
    Moved,
    NotMoved,
    Seal,
    Send,
    WorkerRefused,
    WriteAhead,
)
from paceline.protocol.cuts.cadence import Cadence
from paceline.protocol.holding.group.profiling import Profiling
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.records import (
    CutStored,
    CutValid,
    Planned,
    Records,
)
from paceline.protocol.samples.grant_size import (
    Sizing,
    lease_samples,
    lease_steps,
    plan_lead,
    planned_speed,
)
from paceline.protocol.training import MasterState
from paceline.wire.events.checks import PlanEvent
from paceline.wire.events.job import DiskHealsEvent, DiskRefusesEvent, NotKeptEvent
from paceline.wire.events.nodes import FencedEvent
from paceline.wire.events.state import (
    CutDamagedEvent,
    CutStoredEvent,
    CutValidEvent,
    EpochEvent,
    FeedCompleteEvent,
    FeedOpenedEvent,
)
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import Profiled
from paceline.wire.messages.node import (
    AskCut,
    Copied,
    CutDelayed,
    Evaluated,
    EvaluateResult,
    GiveBack,
    LeaseRequest,
    NodeUp,
    OpenFeed,
)
from paceline.wire.spec import JobSpec

DELAYED_S = 5.0
"""A disk that was last said to refuse a cut so long ago may have taken it."""

_log = logging.getLogger(__name__)


class CutChosen(msgspec.Struct, frozen=True):
    """The cuts on disk were looked at: where the next epoch starts."""

    cut_no: int | None
    damaged: list[tuple[int, str]]


class TrainingParts(NamedTuple):
    """What of the master a `Training` works with."""

    job: JobDir
    spec: JobSpec
    members: Membership
    monitor: Monitor
    outbox: Outbox
    fail: Callable[[str], None]
    """End the job for this reason."""
    moved: Callable[[Moved | NotMoved], None]
    """A move of buckets is over."""
    refused: Callable[[WorkerRefused], None]
    """A worker must not take part."""


class Training:
    """Feeds messages to the state machine and carries out its instructions."""

    def __init__(self, parts: TrainingParts, edge: HolderEdge) -> None:
        job, spec = parts.job, parts.spec
        self.edge, edge.training = edge, self
        self.state = MasterState(
            edge.holder, mode=spec.mode, samples=spec.samples, whole_steps=spec.deterministic
        )
        self._spec, self.members, self.monitor = spec, parts.members, parts.monitor
        self.outbox, self.fail = parts.outbox, parts.fail
        self._moved, self._refuse = parts.moved, parts.refused
        self._job = job
        self.cuts = CutFolders.of(job, spec)
        self._evaluations = Evaluations(job)
        self.uploading: int | None = None
        """A cut that is being copied elsewhere: it stays."""
        #: Feeds of which a result was dropped.
        self._dropped: set[int] = set()
        self.cadence = Cadence(spec.checkpoint)
        self._last_resend_s = 0.0
        #: A cut whose manifest is still to be written, why it was not, and since when.
        self._unsealed: Seal | None = None
        self._refused: OSError | None = None
        self._refused_s: float | None = None
        #: The cut that a disk refuses, and when it was last said.
        self._delayed_no: int | None = None
        self._delayed_s = self._delayed_since_s = -math.inf
        #: Cuts that were just written and never read: no need to verify them.
        self._trusted: set[int] = set()
        #: No epoch has begun since the job was resumed after its end: nothing has failed.
        self._begins_anew = False
        self.choosing = False
        """Cuts are being verified for the next epoch."""
        #: Samples in the model just before the newest epoch began.
        self._trained = 0
        #: The same as the master before this one measured it; 0 once an epoch has begun.
        self._measured = 0
        self.profiling = Profiling()

    def resume(self, *, ended: bool = False) -> None:
        """After the journal was applied; ``ended``: the job had come to an end, in order."""
        self._begins_anew = ended
        measured = last_measured(self._job)
        if measured is not None and measured.epoch_no == self.state.epoch_no:
            # The journal has only what cuts hold. Members that live say the rest again; where all
            # have died, nobody does.
            self._measured = measured.committed
        for feed, span in self._evaluations.stored(self.state.epoch_no):
            self.do(self.state.evaluated(feed, span))
        self.do(self.state.resume())
        # A fence may have been under way, or a life have ended, when the master died.
        # One without a lease counts, too: in SSP its clock would hold the others back.
        for inc in sorted(self.known() - self.state.gone):
            node = self.members.node_of(inc)
            if node is None or not node.alive:
                self.outbox.tell(FencedEvent(inc=inc, before_restart=True))
                self.worker_lost(inc)

    def known(self) -> set[int]:
        """Workers of which the journal tells that they take part."""
        return set(self.state.grants) | set(self.state.ledger.leases) | self.edge.known()

    # ------------------------------------------------------------------ messages

    def handle(self, node: str, message: NodeUp, now_s: float) -> None:  # noqa: C901
        """A message of a live process of ``node``."""
        if self.edge.handle(node, message, now_s):
            return
        state = self.state
        match message:
            case LeaseRequest():
                if message.feed in state.ledger.feeds:
                    self.do(state.request(message, self._sizing(node, message)))
            case OpenFeed():
                self._open_feed(message)
            case GiveBack():
                self.do(state.given_back(message))
            case AskCut():
                self.do(state.cut_wanted(message))
            case Copied():
                self.do(state.copy_said(message))
                self._note_cut(now_s)
            case CutDelayed():
                self.delayed(message.cut_no, message.reason, now_s)
            case Profiled():
                self.profiling.heard(message)
                self.monitor.profiled(node, message)
            case EvaluateResult():
                self._evaluated(message)
            case _:
                pass

    def worker_up(self, inc: int) -> None:
        """A worker's process is there."""
        node = self.members.node_of(inc)
        self.do(self.state.worker_up(inc, node.name if node is not None else ""))

    def worker_lost(self, inc: int) -> None:
        """Nothing of this worker may count from here on."""
        node = self.members.node_of(inc)
        returned = node is not None and node.returned
        self.profiling.lost(inc)
        self.do(self.state.worker_lost(inc, returned=returned))

    def carry_out(self, action: AnyAction) -> None:
        """Set a global action, or a `Profile`, going.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        if isinstance(action, KillRestart):
            raise ConfigError("KillRestart is no global action")
        if isinstance(action, Profile):
            self.edge.profile(action)
            return
        self.do(self.state.carry_out(action, plan_lead(self.monitor.step_s())))

    def stop(self) -> None:
        """Ask all workers to leave; those who hold the state keep it before."""
        self.edge.before_stop()
        self.do(self.state.stop())

    def _sizing(self, node: str, request: LeaseRequest) -> Sizing:
        """How much this worker should get now."""
        feed = self.state.ledger.feeds[request.feed]
        share, own = self.state.share_of(request.inc), self.monitor.speed(node)
        workers = self.state.training_workers()
        speeds = map(self.monitor.speed, workers.values())
        num_workers = max(1, len(workers))
        together = self._spec.mode == "bsp" or feed.purpose != "train"
        return Sizing(
            samples=lease_samples(
                speed=planned_speed(own, share, speeds),
                batch_size=feed.batch_size if together else max(1, feed.batch_size // num_workers),
                remaining=self.state.ledger.num_to_do(request.feed, request.ends),
                num_workers=num_workers,
                shard_size=self._spec.data.shard_size,
                held=self._held(request, feed),
                share=share,
            ),
            steps=lease_steps(self.monitor.step_s(), complete=self._is_complete()),
            speed=own,
        )

    def _is_complete(self) -> bool:
        present = set(self.state.training_workers().values())
        return all(node.name in present for node in self.members.wanted_workers())

    def _held(self, request: LeaseRequest, feed: Feed) -> int:
        """Samples that the worker still has, if it asks before it runs out (asynchronous)."""
        if request.starving or (self._spec.mode == "bsp" and feed.purpose == "train"):
            return 0
        return self.state.ledger.lease_size(request.inc, feed.feed)

    def _open_feed(self, message: OpenFeed) -> None:
        feed = message.feed
        if feed.feed not in self.state.ledger.feeds:
            self.outbox.tell(FeedOpenedEvent(feed=feed.feed, purpose=feed.purpose))
        self.do(self.state.open_feed(message))

    def _evaluated(self, result: EvaluateResult) -> None:
        """Store a part and answer; an empty one asks whether all parts are there."""
        state = self.state
        # Who came when all was evaluated is in no epoch, and only asks.
        asks = len(result.span) == 0
        known = result.epoch_no == state.epoch_no or (asks and result.epoch_no == 0)
        if not known or result.feed not in state.ledger.feeds:
            return
        stored = True
        if asks:
            stored = state.ledger.is_complete(result.feed)
        elif state.ledger.done.missing(result.span):
            lease = state.ledger.leases.get(result.inc)
            if lease is None or lease.missing(result.span):
                self._drop(result)
                return
            if not self._store(result):
                return
            self.do(state.evaluated(result.feed, result.span))
        answer = Evaluated(
            inc=result.inc,
            feed=result.feed,
            span=result.span,
            stored=stored,
            epoch_no=state.epoch_no,
        )
        self.outbox.to_process(result.inc, answer)

    def _drop(self, result: EvaluateResult) -> None:
        """Say once per feed that who has no lease of a span has handed in its result."""
        if result.feed not in self._dropped:
            self._dropped.add(result.feed)
            _log.warning(
                "evaluation_dropped feed=%d inc=%d span=%s: not leased to it",
                result.feed,
                result.inc,
                result.span,
            )

    def _store(self, result: EvaluateResult) -> bool:
        try:
            self._evaluations.store(result)
        except OSError as error:
            where = self._evaluations.where(result.epoch_no, result.feed)
            self.fail(
                f"cannot store the results of job.evaluate in {where}: {error.strerror}; make "
                "room there, or set PACELINE_HOME to a place that has it, and start the job again"
            )
            return False
        return True

    def close(self) -> None:
        """The job has ended: nobody will read what was evaluated."""
        self._evaluations.delete()

    # ------------------------------------------------------------------ instructions

    def do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(inc=inc, message=message):
                    self.outbox.to_process(inc, message)
                case WriteAhead(record=record):
                    self._before_record(record)
                    self.outbox.record(record)
                case Seal():
                    self._unsealed = instruction
                    self._seal()
                case Moved() | NotMoved():
                    self._moved(instruction)
                case WorkerRefused():
                    self._refuse(instruction)
                case FeedDone(feed=feed):
                    self.outbox.tell(FeedCompleteEvent(feed=feed))
                case Fail(reason=reason):
                    self.fail(reason)
                case _:
                    assert_never(instruction)

    def _before_record(self, record: Records) -> None:
        self.edge.before_record(record)
        match record:
            case CutValid(cut=cut):
                self._trusted.add(cut.cut_no)
                self.outbox.tell(CutValidEvent(cut_no=cut.cut_no, step=record.step))
                if not cut.in_memory:
                    self._note_stored(cut)
            case CutStored(cut=cut):
                self.outbox.tell(CutStoredEvent(cut_no=cut.cut_no))
                self._note_stored(cut)
            case Planned(plan=plan, step=step):
                self.outbox.tell(PlanEvent(plan_no=plan.no, step=step))
            case _:
                pass

    def tell_epoch(self, epoch_no: int, cut: CutRef | None) -> None:
        """An epoch begins, from this cut or from what the script has built."""
        number = cut.cut_no if cut is not None else 0
        self._trusted.discard(number)
        self.outbox.tell(
            EpochEvent(
                epoch_no=epoch_no,
                cut_no=number,
                undone=max(self._trained - count_committed(self.state), 0),
                in_memory=cut is not None and cut.in_memory,
            )
        )
        self._measured = 0
        # A worker may be reading those of the epoch before.
        self._evaluations.delete(before=epoch_no - 1)

    def facts_of(self, incs: Iterable[int]) -> dict[str, NodeFacts]:
        """The newest report of each of these lives whose script has not returned."""
        found = {}
        for inc in incs:
            node = self.members.node_of(inc)
            seen = self.monitor.nodes.get(node.name) if node else None
            if node and not node.returned and seen and seen.facts.inc == inc:
                found[node.name] = seen.facts
        return found

    # ------------------------------------------------------------------ cuts

    def _seal(self) -> None:
        """Make the cut one that can be loaded; on a disk that refuses it again with each tick."""
        if self._unsealed is None or self.state.model is None:
            return
        valid, copies = self._unsealed.valid, self._unsealed.copies
        if not self.state.awaits(valid) or copies != self.state.cuts.sealed:
            self._unsealed = self._refused = self._refused_s = None
            return  # who made it is gone, and another cut may have its number
        try:
            self.cuts.seal(valid, copies, self.state.model)
        except OSError as error:
            if self._refused is None:
                where = self.cuts.sealed_at(valid.cut)
                _log.warning("no_manifest path=%s error=%s: tried again", where, error.strerror)
            self._refused = error
            return
        self._unsealed = self._refused = self._refused_s = None
        self.do(self.state.cut_sealed(valid))
        if not valid.cut.in_memory:
            self.cadence.cost(max(copied.cost_s for copied in copies))
            self.outbox.later(self._delete_cuts)

    def delayed(self, cut_no: int, reason: str, now_s: float) -> None:
        """A disk refuses something of a cut: say so once, and wait."""
        disk_s = self._spec.timeouts.disk_s
        if cut_no != self._delayed_no:
            self._delayed_since_s = now_s
            self.outbox.tell(DiskRefusesEvent(error=reason, waits="cuts", for_s=disk_s))
        elif now_s - self._delayed_since_s > disk_s + DELAYED_S:
            self.fail(f"{reason}, for {disk_s:.0f} s; make room there and resume the job")
        self._delayed_no, self._delayed_s = cut_no, now_s

    def check_may_leave(self, now_s: float) -> None:
        """Raises ConfigError while a worker that leaves would wait for a disk, and all for it."""
        if self.waits_for_disk(now_s):
            raise ConfigError("a disk refuses a cut, which a worker that leaves would wait for")

    def _note_stored(self, cut: CutRef) -> None:
        """A cut is on disk: one that refused it does so no longer."""
        if self._delayed_no is not None:
            self._delayed_no = None
            self.outbox.tell(DiskHealsEvent(waited="cuts", cut_no=cut.cut_no))

    def waits_for_disk(self, now_s: float) -> bool:
        """Whether a disk refuses the cut that is under way."""
        waits = self.state.cuts.under_way or self._delayed_no == 0
        return waits and now_s - self._delayed_s < DELAYED_S

    def _seal_again(self, cut: CutRef, now_s: float) -> None:
        """Somebody may make room; the cuts before it are what the job is resumed from."""
        if self._refused_s is None:
            self._refused_s = now_s
        if self._refused is not None:
            why = describe(self._refused, self.cuts.sealed_at(cut))
            reason = f"the manifest of cut {cut.cut_no} is not stored: {why}"
            if now_s - self._refused_s > self._spec.timeouts.disk_s:
                self.fail(f"{reason}; make room there and resume the job")
                return
            self.delayed(cut.cut_no, reason, now_s)
        self._seal()
        self._note_cut(now_s)

    def _note_cut(self, now_s: float) -> None:
        """The time between cuts runs from the end of one to the start of the next."""
        if not self.state.cuts.under_way:
            self.cadence.ended(now_s)

    def _delete_cuts(self) -> None:
        """The newest cut is on disk: older ones may go, and those that never got there."""
        cuts = self.state.cuts.valid
        newest = cuts[-1].cut.cut_no
        stored = [cut.cut.cut_no for cut in cuts if not cut.cut.in_memory]
        keep = set(stored[-self._spec.checkpoint.keep :])
        keep |= self.edge.being_loaded()
        if self.uploading is not None:
            keep.add(self.uploading)
        for cut in cuts:
            if cut.cut.cut_no not in keep:
                self.do(self.state.cut_gone(cut.cut.cut_no))
        self.cuts.delete_others(keep, newest)

    @property
    def last_cut_s(self) -> float:
        """What a cut may take, by the size of the last one."""
        sealed = self.state.cuts.sealed
        return patience_s(max((copied.num_bytes for copied in sealed), default=0))

    def newest_stored(self) -> CutRef | None:
        """The newest cut on disk."""
        newest = self._newest_stored()
        return newest.cut if newest is not None else None

    def _newest_stored(self) -> CutValid | None:
        valid = reversed(self.state.cuts.valid)
        return next((cut for cut in valid if not cut.cut.in_memory), None)

    def not_kept(self) -> NotKeptEvent | None:
        """Count what is in the model and in no cut on disk; None: nothing."""
        newest = self._newest_stored()
        held = num_samples(newest.committed) if newest is not None else 0
        missing = count_committed(self.state) - held
        cut_no = newest.cut.cut_no if newest is not None else None
        return NotKeptEvent(samples=missing, cut_no=cut_no) if missing > 0 else None

    # ------------------------------------------------------------------ epochs

    async def choose_cut(self) -> CutChosen:
        """Find the newest undamaged cut."""
        self.choosing = True
        cuts, look = tuple(reversed(self.state.cuts.valid)), self.cuts.first_undamaged
        return CutChosen(*await asyncio.to_thread(look, cuts, frozenset(self._trusted)))

    def start_epoch(self, chosen: CutChosen, now_s: float) -> None:
        """Start an epoch from this cut, if the servers are all still up.

        None was undamaged: choose again if another one has become valid meanwhile.
        """
        self.choosing = False
        for cut_no, error in chosen.damaged:
            self.outbox.tell(CutDamagedEvent(cut_no=cut_no, reason=error))
            self.do(self.state.cut_gone(cut_no))
        if chosen.damaged and not self.state.cuts.valid:
            errors = "; ".join(error for _, error in chosen.damaged)
            self.fail(f"no cut can be loaded, the job cannot go on: {errors}")
            return
        before = self.state.epoch_no
        self._trained = max(count_committed(self.state), self._measured)
        self.edge.begin_epoch(chosen, now_s)
        if 0 < before < self.state.epoch_no:
            if self._begins_anew:
                self.cadence.ended(now_s)
            else:
                self.cadence.went_back(now_s)
            self._begins_anew = False

    # ------------------------------------------------------------------ the clock

    def tick(self, now_s: float, *, cuts: bool) -> None:
        """Repeat what is unanswered; ask for a cut when one is due (and ``cuts``)."""
        if now_s - self._last_resend_s >= RESEND_S:
            self._last_resend_s = now_s
            self.do([*self.state.resend(), *self.profiling.resend()])
        self.edge.watch(now_s)
        if self._unsealed is not None:
            self._seal_again(self._unsealed.valid.cut, now_s)
        held = self.state.cuts.valid[-1].step if self.state.cuts.valid else 0
        due = self.cadence.is_due(now_s, self.state.step - held)
        if note := self.cadence.note():
            self.outbox.tell(note)
        if cuts and (self.state.holder.wants_cut or (due and self._has_changed())):
            self.do(self.state.take_cut())

    def _has_changed(self) -> bool:
        if not self.state.cuts.valid:
            return bool(self.state.ledger.done)
        if self.state.cuts.valid[-1].cut.in_memory:  # restored from there: it never comes to disk
            return True
        return count_committed(self.state) > num_samples(self.state.cuts.valid[-1].committed)
