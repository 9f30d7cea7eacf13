"""The edge around `MasterState`: what it needs to know beside the messages, and what it orders.

Grant sizes, cuts on disk, results of evaluations, the choice of the cut that an epoch starts from.
Handling a message never waits; verifying a cut, which reads it whole, happens in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.samples import SampleSet, Span
from paceline.master.cadence import Cadence
from paceline.master.cut_folders import CutFolders, first_undamaged
from paceline.master.evaluations import Evaluations
from paceline.master.group import Group
from paceline.master.hangs import Hang, find_hang, find_silent
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
from paceline.master.membership import Membership
from paceline.master.monitor import Monitor
from paceline.master.outbox import Outbox
from paceline.master.profiling import Profiling
from paceline.master.records import (
    CutStored,
    CutValid,
    EpochStarted,
    Granted,
    GroupBegun,
    GroupFormed,
    GroupRestored,
    Planned,
    Records,
)
from paceline.master.restarts import LostWork
from paceline.master.sizing import (
    Sizing,
    lease_samples,
    lease_steps,
    plan_lead,
    planned_speed,
)
from paceline.master.state import MasterState
from paceline.master.status import count_committed
from paceline.policy.straggler.actions import AnyAction, KillRestart, Profile
from paceline.wire.cut import places
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import CutRef, Server
from paceline.wire.messages.feeds import Feed, feed_of
from paceline.wire.messages.group import Broken, JoinGroup, Profiled, Progress, Stopped
from paceline.wire.messages.node import (
    AskCut,
    Committed,
    Copied,
    Evaluated,
    EvaluateResult,
    FenceAnswer,
    GiveBack,
    InitialWritten,
    Joined,
    LeaseRequest,
    MapSet,
    NodeUp,
    OpenFeed,
    Prepared,
    Restored,
)
from paceline.wire.spec import JobSpec

RESEND_S = 1.0
REFUSED_S = 60.0
"""A disk that refuses a manifest is asked again for so long."""
GATHER_S = 30.0
"""A first group of workers (all-reduce) waits so long for the others; later ones join it."""
MAX_FUTILE = 20
"""So often members that all live may fail to do a step together."""
BROKEN_S = 0.5
"""A member that cannot work in its group has a peer that is dead: its agent says so within this."""
MOVE_PATIENCE_S = 30.0
"""A server to which nothing of its share has come for so long is not to take another's place."""
ANSWER_PATIENCE_S = 4 * RESEND_S
"""Nor one that is asked every `RESEND_S` and says nothing for so long while every contribution
must be held by it, too: nobody trains meanwhile."""

_log = logging.getLogger(__name__)


class CutChosen(msgspec.Struct, frozen=True):
    """The cuts on disk were looked at: where the next epoch starts."""

    cut_no: int | None
    damaged: list[tuple[int, str]]


class Training:
    """Feeds messages to the state machine and carries out its instructions."""

    def __init__(
        self,
        job: JobDir,
        spec: JobSpec,
        members: Membership,
        monitor: Monitor,
        outbox: Outbox,
        fail: Callable[[str], None],
        moved: Callable[[Moved | NotMoved], None],
    ) -> None:
        """``fail``: end the job for this reason; ``moved``: a move is over."""
        self.state = MasterState(
            mode=spec.mode,
            samples=spec.samples,
            staleness=spec.staleness,
            min_members=spec.min_workers if spec.held_by_workers else None,
            check=spec.preflight and spec.strategy == "allreduce",
            sharded=spec.strategy == "fsdp",
            whole_steps=spec.deterministic,
        )
        #: The step at which members could not work together, and how often.
        self._futile = (0, 0)
        #: The group that forms, and since when.
        self._forming = (0, 0.0)
        #: Since when a group is due that waits for somebody.
        self._due_s: float | None = None
        self._spec, self._members, self._monitor = spec, members, monitor
        self._outbox, self._fail, self._moved = outbox, fail, moved
        #: Of the move: how far it was seen to be, and when that was new.
        self._move_progress: tuple[tuple[int, bool] | None, float] = (None, 0.0)
        #: When the server that joins has last answered, or when that began to matter.
        self._joiner_said_s = 0.0
        self._cuts = CutFolders(Path(spec.checkpoint.folder or job.cuts), job.memory)
        self._evaluations = Evaluations(job.evaluations)
        self.uploading: int | None = None
        """A cut that is being copied elsewhere: it stays."""
        #: Feeds of which a result was dropped.
        self._dropped: set[int] = set()
        self._cadence = Cadence(spec.checkpoint)
        self._last_resend_s = 0.0
        #: A cut whose manifest is still to be written, why it was not, and since when.
        self._unsealed: Seal | None = None
        self._refused: OSError | None = None
        self._refused_s: float | None = None
        #: Cuts that were just written and never read: no need to verify them.
        self._trusted: set[int] = set()
        #: No epoch has begun since the job was resumed after its end: nothing has failed.
        self._begins_anew = False
        self.choosing = False
        """Cuts are being verified for the next epoch."""
        self._lost_work = LostWork()
        self.profiling = Profiling()

    def resume(self, *, ended: bool = False) -> None:
        """After the journal was applied; ``ended``: the job had come to an end, in order."""
        self._begins_anew = ended
        for feed, span in self._evaluations.stored(self.state.epoch_no):
            self._do(self.state.evaluated(feed, span))
        self._do(self.state.resume())
        # A fence may have been under way, or a life have ended, when the master died.
        # One without a lease counts, too: in SSP its clock would hold the others back.
        known = set(self.state.grants) | set(self.state.ledger.leases)
        known |= set(self.state.group.ready) if self.state.group is not None else set()
        for inc in sorted(known - self.state.gone):
            node = self._members.node_of(inc)
            if node is None or not node.alive:
                self._outbox.tell("fenced", reason=f"incarnation {inc}, of before the restart")
                self.worker_lost(inc)

    # ------------------------------------------------------------------ messages

    def handle(self, node: str, message: NodeUp, now_s: float) -> None:
        """A message of a live process of ``node``."""
        state = self.state
        match message:
            case LeaseRequest():
                if message.feed in state.ledger.feeds:
                    self._do(state.request(message, self._sizing(node, message)))
            case Prepared():
                self._monitor.restarts.built(node, now_s)
                self._do(state.prepare(message, self._cuts.make(0)))
            case InitialWritten():
                self._do(state.initial_written(message, self._cuts.directory(0)))
            case OpenFeed():
                self._open_feed(message)
            case GiveBack():
                self._do(state.given_back(message))
            case JoinGroup() | Stopped() | Progress() | Broken():
                if state.group is not None:
                    expected = sum(1 for _ in self._members.wanted_workers())
                    self._do(state.member_said(state.group, message, node=node, expected=expected))
            case AskCut():
                self._do(self.state.cut_wanted(message))
            case Profiled():
                self.profiling.heard(message)
                self._monitor.profiled(node, message)
            case EvaluateResult():
                self._evaluated(message)
            case _:
                self._from_server(message, now_s)

    def _from_server(self, message: NodeUp, now_s: float) -> None:
        state = self.state
        match message:
            case Committed():
                self._do(state.committed(message))
            case FenceAnswer():
                self._note_lost_work(message)
                self._do(state.fence_answer(message))
            case Copied():
                number = message.cut_no
                directory, memory = self._cuts.directory(number), self._cuts.in_memory(number)
                self._do(state.copy_said(message, directory, memory))
                self._note_cut(now_s)
            case Restored():
                self._restored(message, now_s)
            case Joined() | MapSet():
                if isinstance(message, Joined):
                    self._joiner_said_s = now_s
                self._do(state.server_said(message))
            case _:
                pass

    def worker_up(self, inc: int) -> None:
        """A worker's process is there."""
        node = self._members.node_of(inc)
        self._do(self.state.worker_up(inc, node.name if node is not None else ""))

    def worker_lost(self, inc: int) -> None:
        """Nothing of this worker may count from here on."""
        node = self._members.node_of(inc)
        returned = node is not None and node.returned
        self.profiling.lost(inc)
        self._do(self.state.worker_lost(inc, returned=returned))

    def carry_out(self, action: AnyAction) -> None:
        """Set a global action, or a `Profile`, going.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        if isinstance(action, KillRestart):
            raise ConfigError("KillRestart is no global action")
        if isinstance(action, Profile):
            if self.state.group is None:
                raise ConfigError(
                    "Profile: with parameter servers every batch that a worker computes counts; "
                    "run the job with --strategy allreduce"
                )
            self._do(self.profiling.ask(action, self.state.training_workers()))
            return
        self._do(self.state.carry_out(action, plan_lead(self._monitor.step_s())))

    @property
    def last_cut_waits(self) -> bool:
        """Whether members have to stay: a cut of what they hold can be made after another one."""
        return self.state.group is not None and self.state.cuts.under_way

    def stop(self) -> None:
        """Ask all workers to leave; who holds the state keeps it before."""
        if self.state.group is not None:
            self._do(self.state.take_cut())
        self._do(self.state.stop())

    def _sizing(self, node: str, request: LeaseRequest) -> Sizing:
        """How much this worker should get now."""
        feed = self.state.ledger.feeds[request.feed]
        share, own = self.state.share_of(request.inc), self._monitor.speed(node)
        workers = self.state.training_workers()
        speeds = map(self._monitor.speed, workers.values())
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
            steps=lease_steps(self._monitor.step_s(), complete=self._is_complete()),
            speed=own,
        )

    def _is_complete(self) -> bool:
        present = set(self.state.training_workers().values())
        return all(node.name in present for node in self._members.wanted_workers())

    def _held(self, request: LeaseRequest, feed: Feed) -> int:
        """Samples that the worker still has, if it asks before it runs out (asynchronous)."""
        if request.starving or (self._spec.mode == "bsp" and feed.purpose == "train"):
            return 0
        return self.state.ledger.lease_size(request.inc, feed.feed)

    def _open_feed(self, message: OpenFeed) -> None:
        feed = message.feed
        if feed.feed not in self.state.ledger.feeds:
            self._outbox.tell("feed_opened", reason=f"feed {feed.feed} ({feed.purpose})")
        self._do(self.state.open_feed(message))

    def _evaluated(self, result: EvaluateResult) -> None:
        """Store a part and answer; an empty one asks whether all parts are there."""
        state = self.state
        # Who came when all was evaluated is in no epoch, and only asks.
        asks = len(result.span) == 0
        known = result.epoch_no == state.epoch_no or (asks and result.epoch_no == 0)
        if not known or result.feed not in state.ledger.feeds:
            return
        directory = str(self._evaluations.directory(state.epoch_no, result.feed))
        if asks:
            directory = directory if state.ledger.is_complete(result.feed) else ""
        elif state.ledger.done.missing(result.span):
            lease = state.ledger.leases.get(result.inc)
            if lease is None or lease.missing(result.span):
                self._drop(result)
                return
            if not self._store(result):
                return
            self._do(state.evaluated(result.feed, result.span))
        answer = Evaluated(inc=result.inc, feed=result.feed, span=result.span, directory=directory)
        self._outbox.to_process(result.inc, answer)

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
            directory = self._evaluations.directory(result.epoch_no, result.feed)
            self._fail(
                f"cannot store the results of job.evaluate in {directory}: {error.strerror}; make "
                "room there, or set PACELINE_HOME to a place that has it, and start the job again"
            )
            return False
        return True

    def close(self) -> None:
        """The job has ended: nobody will read what was evaluated."""
        self._evaluations.delete()

    def _restored(self, message: Restored, now_s: float) -> None:
        waited = bool(self.state.restoring)
        self._do(self.state.restored(message))
        if waited and not self.state.restoring:
            self._outbox.tell("restored", reason=f"epoch {self.state.epoch_no}")
            self._cadence.ended(now_s)
            for server in self.state.map.servers if self.state.map else ():
                self._monitor.restarts.works(server.node, now_s)

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(inc=inc, message=message):
                    self._outbox.to_process(inc, message)
                case Journal(record=record):
                    self._before_record(record)
                    self._outbox.record(record)
                case Seal():
                    self._unsealed = instruction
                    self._seal()
                case Moved() | NotMoved():
                    self._moved(instruction)
                case FeedDone(feed=feed):
                    self._outbox.tell("feed_complete", reason=f"feed {feed}")
                case Fail(reason=reason):
                    self._fail(reason)

    def _before_record(self, record: Records) -> None:
        match record:
            case CutValid(cut=cut):
                self._trusted.add(cut.cut_no)
                self._outbox.tell("cut_valid", reason=f"cut {cut.cut_no} at step {record.step}")
            case CutStored(cut=cut):
                self._outbox.tell("cut_stored", reason=f"cut {cut.cut_no}")
            case Granted(grant=grant):
                trained = sum(len(span) for span in grant.spans if self._trains(span))
                self._lost_work.granted(grant.inc, trained)
            case EpochStarted(epoch_no=epoch_no, cut=cut):
                self._trusted.discard(cut.cut_no)
                where = " in memory" if cut.in_memory else ""
                self._outbox.tell("epoch", reason=f"epoch {epoch_no} from cut {cut.cut_no}{where}")
                self._cuts.forget_memory(keep=cut.cut_no)
                # A worker may be reading those of the epoch before.
                self._evaluations.delete(before=epoch_no - 1)
            case GroupFormed(group=group, members=members):
                names = ", ".join(sorted(member.node for member in members))
                self._outbox.tell("group_forms", reason=f"group {group} of {names}")
            case GroupRestored(epoch_no=epoch_no, cut=cut):
                # As it was built; what servers begin with is called so, too.
                number = cut.cut_no if cut is not None else 0
                where = " in memory" if cut is not None and cut.in_memory else ""
                self._trusted.discard(number)
                self._outbox.tell("epoch", reason=f"epoch {epoch_no} from cut {number}{where}")
                self._evaluations.delete(before=epoch_no - 1)
            case GroupBegun(step=step):
                members = self.state.group.members if self.state.group is not None else ()
                names = ", ".join(sorted(member.node for member in members))
                place = f"from step {step + 1} on" if step else "from the start"
                self._outbox.tell("group_runs", reason=f"{names} train {place}")
            case Planned(plan=plan, step=step):
                self._outbox.tell("plan", reason=f"plan {plan.no} from step {step} on")
            case _:
                pass

    # ------------------------------------------------------------------ moving buckets

    def replace(self, old: int, new: Server) -> None:
        """Have the buckets of a server moved to a fresh one; again: nothing."""
        self._do(self.state.replace(old, new))

    def joiner_lost(self, inc: int) -> None:
        """A server that was to take another's place is dead."""
        self._do(self.state.joiner_lost(inc))

    def _watch_move(self, now_s: float) -> None:
        """Give up a move that does not get on."""
        state, moving = self.state, self.state.moving
        if moving.begun is None or state.map is None or moving.has_switched(state.map):
            self._move_progress = (None, now_s)
            return
        seen = (moving.progress, moving.joined)
        if seen != self._move_progress[0]:
            self._move_progress = (seen, now_s)
        if not state.map.copies:
            self._joiner_said_s = now_s
        for what, since_s, patience_s in (
            ("nothing of its share has come", self._move_progress[1], MOVE_PATIENCE_S),
            ("no answer", self._joiner_said_s, ANSWER_PATIENCE_S),
        ):
            if now_s - since_s >= patience_s and not moving.given_up:
                reason = f"{moving.begun.new.node}: {what} for {patience_s:.0f} s"
                self._outbox.tell("move_given_up", reason=reason)
                self._do(state.give_up_move())

    # ------------------------------------------------------------------ all-reduce

    def _watch_group(self, now_s: float) -> None:
        """Form a group without those that do not come, or that nobody has found dead."""
        group = self.state.group
        if group is None or not (group.broken or (group.ready and not group.number)):
            self._due_s = None
            return
        self._due_s = now_s if self._due_s is None else self._due_s
        if now_s - self._due_s >= (BROKEN_S if group.broken else GATHER_S):
            self._due_s = None
            self._note_broken(group)
            self._do(self.state.form_group(group))

    def _note_broken(self, group: Group) -> None:
        """Say why members could not work together; give up if it is so again and again."""
        for inc, reason in group.broken.items():
            node = self._members.node_of(inc)
            self._outbox.tell("group_broken", node.name if node else "", inc, reason)
        step, times = self._futile
        self._futile = (group.step, times + 1 if step == group.step else 1)
        if group.broken and self._futile[1] >= MAX_FUTILE:
            reason = next(iter(group.broken.values()))
            self._fail(
                f"the workers met {MAX_FUTILE} times and completed no step: {reason}; all of them "
                "live, so look at that error first"
            )

    def find_hang(self, bound_s: float, now_s: float) -> Hang | None:
        """Who of the group does not get on; see `find_hang`.

        While one forms: who does not even say that it has stopped.
        """
        group = self.state.group
        if group is None:
            return None
        members = self._facts_of(group)
        silent = find_silent(members, bound_s)
        if silent is not None:
            return silent
        if not group.running:
            if self._forming[0] != group.number:
                self._forming = group.number, now_s
            since_s = now_s - self._forming[1]
            return self._find_unheard(group, since_s) if since_s > bound_s else None
        first_s = self._spec.timeouts.derived(None).hang_s or 0.0
        for name, facts in members.items():
            if not facts.samples and facts.computing_s < first_s:  # in the first step of its life
                members[name] = msgspec.structs.replace(facts, computing_s=0.0)
        if len(members) < len(group.members):
            return None
        hang = find_hang(members, bound_s)
        if hang is not None and not hang.nodes and group.sharded:  # they cannot meet anew
            return msgspec.structs.replace(hang, nodes=tuple(sorted(members)))
        return hang

    def _facts_of(self, group: Group) -> dict[str, NodeFacts]:
        """The newest of its members that are not about to end."""
        found = {}
        for member in group.members:
            node, seen = self._members.node_of(member.inc), self._monitor.nodes.get(member.node)
            if node and not node.returned and seen and seen.facts.inc == member.inc:
                found[member.node] = seen.facts
        return found

    def _find_unheard(self, group: Group, since_s: float) -> Hang | None:
        """Who does not say that it has stopped, though it was told to do so at once."""
        silent = group.unheard()
        if silent and not group.at_once:
            # Those who wait to end their step together wait for one that does not end it.
            group.at_once = True
            self._forming = group.number, self._forming[1] + since_s
            self._do(group.resend())
            return None
        # Not even who waited for others in its step: all waits end when a group is dropped.
        hang = [name for name in silent if name in self._monitor.nodes]
        return Hang(tuple(hang), since_s) if hang else None

    def meet_anew(self, reason: str) -> None:
        """Nobody hangs, and nobody gets on: what connects the members is broken."""
        group = self.state.group
        if group is not None and group.running:
            self._outbox.tell("group_stuck", reason=reason)
            group.broken.update((member.inc, reason) for member in group.members)
            self._do(self.state.form_group(group))

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
            self._cuts.seal(valid.cut, valid, copies, self.state.model)
        except OSError as error:
            if self._refused is None:
                where = places(valid.cut)[0]
                _log.warning("no_manifest path=%s error=%s: tried again", where, error.strerror)
            self._refused = error
            return
        self._unsealed = self._refused = self._refused_s = None
        self._cadence.cost(max(copied.cost_s for copied in copies))
        self._do(self.state.cut_sealed(valid))
        if not valid.cut.in_memory:
            self._outbox.later(self._delete_cuts)

    def _seal_again(self, cut: CutRef, now_s: float) -> None:
        """Somebody may make room; the cuts before it are what the job is resumed from."""
        if self._refused_s is None:
            self._refused_s = now_s
        if self._refused is not None and now_s - self._refused_s > REFUSED_S:
            self._fail(
                f"the manifest of cut {cut.cut_no} cannot be written to {places(cut)[0]}: "
                f"{self._refused.strerror}; make room there and resume the job"
            )
            return
        self._seal()
        self._note_cut(now_s)

    def _note_cut(self, now_s: float) -> None:
        """The time between cuts runs from the end of one to the start of the next."""
        if not self.state.cuts.under_way:
            self._cadence.ended(now_s)

    def _delete_cuts(self) -> None:
        """The newest cut is on disk: older ones may go, and those that never got there."""
        cuts = self.state.cuts.valid
        newest = cuts[-1].cut.cut_no
        stored = [cut.cut.cut_no for cut in cuts if not cut.cut.in_memory]
        keep = set(stored[-self._spec.checkpoint.keep :])
        if self.state.restoring and self.state.start is not None:
            keep.add(self.state.start.cut.cut_no)
        if self.uploading is not None:
            keep.add(self.uploading)
        group = self.state.group
        if group is not None and not group.running and group.start and group.start.cut:
            keep.add(group.start.cut.cut_no)
        for cut in cuts:
            if cut.cut.cut_no not in keep:
                self._do(self.state.cut_gone(cut.cut.cut_no))
        self._cuts.delete_others(keep, newest)

    def newest_stored(self) -> CutRef | None:
        """The newest cut on disk."""
        valid = reversed(self.state.cuts.valid)
        return next((cut.cut for cut in valid if not cut.cut.in_memory), None)

    def take_last_cut(self) -> int | None:
        """Order the last cut: its number, 0 if none is needed; None: not now, ask again."""
        feeds = [f.feed for f in self.state.ledger.feeds.values() if f.purpose == "train"]
        if feeds and set(feeds) <= self.state.cuts.safe:
            return 0
        if self.state.map is None:  # members of a group kept theirs before they left
            return 0
        if self.state.cuts.under_way:
            return None
        self._do(self.state.take_cut())
        return self.state.cuts.copying

    # ------------------------------------------------------------------ epochs

    def epoch_is_due(self) -> bool:
        """Whether all servers are up, and they are not those of the present epoch.

        All-reduce: whether nobody holds state.
        """
        if self.state.group is not None:
            return self.state.group.needs_restore and not self.choosing
        servers = self._members.servers()
        if servers is None or not self.state.cuts.valid or self.choosing:
            return False
        return set(self.state.serving) != {server.inc for server in servers}

    async def choose_cut(self) -> CutChosen:
        """Find the newest undamaged cut."""
        self.choosing = True
        cuts = tuple(reversed(self.state.cuts.valid))
        return CutChosen(*await asyncio.to_thread(first_undamaged, cuts, frozenset(self._trusted)))

    def start_epoch(self, chosen: CutChosen, now_s: float) -> None:
        """Start an epoch from this cut, if the servers are all still up.

        None was undamaged: choose again if another one has become valid meanwhile.
        """
        self.choosing = False
        for cut_no, error in chosen.damaged:
            self._outbox.tell("cut_damaged", reason=error)
            self._do(self.state.cut_gone(cut_no))
        if chosen.damaged and not self.state.cuts.valid:
            errors = "; ".join(error for _, error in chosen.damaged)
            self._fail(f"no cut can be loaded, the job cannot go on: {errors}")
            return
        before = self.state.epoch_no
        self._begin_epoch(chosen, now_s)
        if 0 < before < self.state.epoch_no:
            if self._begins_anew:
                self._cadence.ended(now_s)
            else:
                self._cadence.went_back(now_s)
            self._begins_anew = False

    def _begin_epoch(self, chosen: CutChosen, now_s: float) -> None:
        if self.state.group is not None:
            self._do(self.state.restore_group(self.state.group))
            return
        servers = self._members.servers()
        if chosen.cut_no is not None and servers is not None:
            committed = count_committed(self.state)
            self._do(self.state.start_epoch(servers))
            undone = committed - count_committed(self.state)
            self._note_restore(servers, undone, now_s)

    # ------------------------------------------------------------------ lost work

    def _note_restore(self, servers: tuple[Server, ...], undone: int, now_s: float) -> None:
        """Servers are to load a cut, which takes so many samples out of the model."""
        speed = self._monitor.samples_per_s
        for server in servers:
            self._monitor.restarts.built(server.node, now_s)
            self._monitor.restarts.redone(server.node, undone / speed if speed else 0.0)
        nodes = self._monitor.nodes.values()
        self._lost_work.epoch({node.facts.inc: node.facts.samples for node in nodes})

    def _note_lost_work(self, answer: FenceAnswer) -> None:
        """A worker's life is over; what it had finished beyond ``committed`` is to do again."""
        inc, lease = answer.fenced, self.state.ledger.leases.get(answer.fenced)
        node = self._members.node_of(inc)
        if node is None or inc not in self.state.fencing or self.state.samples != "exactly-once":
            return
        left = SampleSet(lease or ())
        left.subtract(answer.committed)
        returned = sum(len(span) for span in left if self._trains(span))
        facts = self._monitor.nodes[node.name].facts if node.name in self._monitor.nodes else None
        if facts is None or facts.inc != inc or not facts.step_samples:
            return
        lost = self._lost_work.lost(inc, handed=facts.samples, returned=returned)
        self._monitor.restarts.redone(node.name, lost * facts.bpt_s / facts.step_samples)

    def _trains(self, span: Span) -> bool:
        return self.state.ledger.feeds[feed_of(span.line)].purpose == "train"

    # ------------------------------------------------------------------ the clock

    def tick(self, now_s: float, *, cuts: bool) -> None:
        """Repeat what is unanswered; ask for a cut when one is due (and ``cuts``)."""
        if now_s - self._last_resend_s >= RESEND_S:
            self._last_resend_s = now_s
            self._do([*self.state.resend(), *self.profiling.resend()])
        self._watch_move(now_s)
        self._watch_group(now_s)
        if self._unsealed is not None:
            self._seal_again(self._unsealed.valid.cut, now_s)
        held = self.state.cuts.valid[-1].step if self.state.cuts.valid else 0
        due = self._cadence.is_due(now_s, self.state.step - held)
        if cuts and (self.state.wants_cut or (due and self._has_changed())):
            self._do(self.state.take_cut())

    def _has_changed(self) -> bool:
        if not self.state.cuts.valid:
            return self.state.group is not None and bool(self.state.ledger.done)
        if self.state.cuts.valid[-1].cut.in_memory:  # restored from there: it never comes to disk
            return True
        held = sum(len(span) for span in self.state.cuts.valid[-1].committed)
        return count_committed(self.state) > held
