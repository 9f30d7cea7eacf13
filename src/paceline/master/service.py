"""The master: one task that owns the state machines and feeds them.

Streams, calls, the backend and the clock put facts into one inbox. The task takes all that is
there, handles it, and flushes the outbox: one transaction for all records of the batch (group
commit), then everything that leaves. It never waits in between, so no fact sees half of another
one's effect.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.cuts.remote import Handover, RemoteCuts
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.jobs.resize import read_resize
from paceline.master.agents import Agents
from paceline.master.checks import Checks, NodeChecked
from paceline.master.deciding import Answered, Deciding, lengths_of
from paceline.master.decision_port import Scene
from paceline.master.ending import Ending, Stage, failed, how_finished
from paceline.master.facts import (
    AgentEnded,
    Asked,
    Fact,
    FromAgent,
    StopAsked,
    StreamEnded,
    Tick,
)
from paceline.master.holding import EDGES
from paceline.master.job_clock import JobClock, MasterStarted
from paceline.master.journal import Journal, JournalRecord, encode
from paceline.master.listener import MasterListener
from paceline.master.meeting import make_rounds
from paceline.master.monitor import Monitor
from paceline.master.outbox import Outbox
from paceline.master.own_time import OwnTime
from paceline.master.ports import Backend
from paceline.master.replies import Replies
from paceline.master.reporting import Reporting
from paceline.master.restarts import StartMeasured
from paceline.master.shutdown import Shutdown
from paceline.master.status import work_of
from paceline.master.training import CutChosen, Training, TrainingParts
from paceline.master.uploads import Uploader, Uploads
from paceline.master.waiting import until_written
from paceline.policy.straggler.observation import Observation
from paceline.protocol.acts import Moved, NotMoved, WorkerRefused
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import (
    Act,
    EndLife,
    FailJob,
    JobEnded,
    JoinerLost,
    KeepRecord,
    Launch,
    MemberRecords,
    Retire,
    Start,
    WorkerLost,
    WorkerUp,
)
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.records import CutGone
from paceline.protocol.snapshot import Snapshot, restore, take
from paceline.wire.client import (
    Call,
    Done,
    JobStatus,
    Reply,
    StopJob,
)
from paceline.wire.control import AgentStream
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.messages.agent import (
    StopProcess,
)
from paceline.wire.spec import JobSpec

TICK_S = 0.2
METRICS_S = 1.0
COMPACT_AT = 50_000
"""Records in the journal beyond which it is begun anew from a snapshot."""
HAS_ENDED = "the job has ended"

_log = logging.getLogger(__name__)


def running_agents(job: JobDir) -> set[str]:
    """Nodes whose agent, launched by a former master, runs on this machine."""
    agents = (p for p in find_job_processes(job.path) if p.runs("paceline.agent"))
    return {agent.argv[-1] for agent in agents}


class Master:
    """One job's master; create and `run` it in an event loop, holding the job's master lock."""

    def __init__(
        self,
        job: JobDir,
        spec: JobSpec,
        backend: Backend,
        *,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
    ) -> None:
        self._job, self._spec, self._backend = job, spec, backend
        self._clock, self._wall_clock = clock, JobClock()
        self._own_time = OwnTime(clock)
        self.members = Membership(
            num_workers=spec.workers.count,
            num_servers=spec.num_servers,
            restart=spec.restart,
            pending_s=spec.longest_pending_s,
            rounds=make_rounds(spec),
        )
        self._orders = NodeOrders(self.members)
        self.monitor = Monitor(lengths_of(spec.windows))
        self._outbox = Outbox(job, self.members, backend, self._wall_clock, journal)
        parts = (job, spec, self.members, self.monitor, self._outbox)
        self.training = Training(
            TrainingParts(*parts, self._fail, self._moved, self._leave_out),
            EDGES[spec.traits.holder](spec),
        )
        self._checks = Checks(wanted=spec.preflight and spec.traits.measured != "never")
        self._agents = self._make_agents()
        self._shutdown = self._make_shutdown()
        self._replies = self._make_replies()
        self._scene = Scene(
            self.training,
            self.members,
            self.monitor,
            pending_s=backend.pending_s,
            restart=self._restart,
        )
        self._uploads: Uploads | None = None
        """None: cuts stay here."""
        if spec.checkpoint.url:
            uploader = Uploader(RemoteCuts(spec.checkpoint.url), spec.checkpoint.keep)
            tell = self._outbox.tell
            self._uploads = Uploads(uploader, self.training, self._handover, tell)
        self.deciding: Deciding | None = None
        """None: the spec names no solution."""
        self._reporting = Reporting(job, self.training.state, self.members, self.monitor)
        self._door = MasterListener(job, spec.listen, self._on_agent, self._on_call)
        self._last_metrics_s = 0.0
        self._inbox: list[Fact] = []
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        #: Something happened that may concern the job as a whole.
        self._changed = True

    def _make_agents(self) -> Agents:
        return Agents(
            self._job,
            self._backend,
            self._outbox,
            self.members,
            self.monitor,
            self._checks,
            self.training,
            clock=self._clock,
            act=self._act,
            changed=self._note_change,
        )

    def _make_shutdown(self) -> Shutdown:
        return Shutdown(
            self._spec,
            self.training,
            self.members,
            self.monitor,
            self._outbox,
            clock=self._clock,
            own_time=self._own_time,
            wall_clock=self._wall_clock,
            act=self._act,
            changed=self._note_change,
        )

    def _make_replies(self) -> Replies:
        return Replies(
            self._job,
            self._spec,
            self._orders,
            self.training,
            self._shutdown,
            act=self._act,
            own_time=self._own_time,
            restart=self._restart,
            observe=self._observe,
            status=self.status,
        )

    # ------------------------------------------------------------------ life

    async def run(self) -> Outcome:
        """Return when the job has ended, and the outcome is written.

        Raises:
            PermanentError: the journal is damaged.
        """
        restarted, ended = self._replay()
        await self._door.open()
        if self._spec.metrics_port is not None:
            self._reporting.open_endpoint(self._spec.metrics_port, self._outbox.tell)
        self._outbox.tell(MasterStartedEvent(restarted=restarted))
        self.training.resume(ended=ended)
        self._begin_deciding()
        self._resize()
        self._act(self.members.begin(self._own_time(), running_agents(self._job)))
        self._outbox.flush()
        self._spawn(self._watch_backend())
        self._spawn(self._keep_time())
        while self._shutdown.ending is None or self._shutdown.ending.stage is not Stage.OVER:
            await self._wake.wait()
            self._wake.clear()
            self._handle_batch()
            if self._outbox.refused:
                await self._stand_still()
        return await self._close(self._shutdown.ending)

    async def _stand_still(self) -> None:
        """Wait for the journal's disk."""
        disk_s = self._spec.timeouts.disk_s
        lost = await until_written(self._outbox, self._inbox, self._replies.to, disk_s)
        if lost:
            self._shutdown.fail(lost)

    def _resize(self) -> None:
        """Take in what `paceline run --resume` says about the number of nodes."""
        resize = read_resize(self._job.resize)
        if resize is not None:
            self._act(self._orders.resize(resize.workers, resize.servers))
            self._outbox.later(self._job.resize.unlink)  # said twice it is the same

    def _begin_deciding(self) -> None:
        if self._spec.solution == "none":
            return
        try:
            self.deciding = Deciding(
                self._spec,
                self._job.decisions,
                self._scene,
                post=self._put_from_thread(),
                tell=self._outbox.tell,
                wall_clock=self._wall_clock,
            )
        except ConfigError as error:
            self._shutdown.fail(str(error))

    def _restart(self, name: str, reason: str) -> None:
        """KILL_RESTART: a worker ends in order and starts again; a server's buckets move first.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        now_s = self._own_time()
        if self._replies.alive(name).role == "worker":
            self.training.check_may_leave(self._clock())
            self._act(self._orders.restart(name, now_s, self._shutdown.stop_s(), reason))
            return
        if self.members.joining() is not None:
            raise ConfigError("a server is being replaced already; wait until that is over")
        if self._spec.samples != "exactly-once":
            raise ConfigError(
                f"samples is {self._spec.samples}: its servers keep no common order, without which "
                "buckets cannot move; use `paceline kill`, which costs what came since the last cut"
            )
        self._act(self.members.replace(name, now_s, reason))

    def _handle_batch(self) -> None:
        batch, self._inbox = self._inbox, []
        # What has arrived is handled before anybody's silence is judged.
        batch.sort(key=lambda fact: isinstance(fact, Tick))
        for fact in batch:
            self._handle(fact)
        for measured in self.monitor.restarts.take_fresh():
            self._started(measured)
        if self._changed:
            self._changed = False
            self._go_on()
        self._outbox.flush()
        if self._outbox.journal.num_records > COMPACT_AT:
            self._outbox.compact(self._snapshot)

    def _replay(self) -> tuple[bool, bool]:
        """Apply the journal; whether there was one, and whether the job had ended with it."""
        restarted = ended = False
        for record in self._outbox.journal.replay():
            restarted, ended = True, isinstance(record, JobEnded)
            if ended:
                self.training.edge.ended()
            match record:
                case MasterStarted():
                    self._wall_clock.go_on(record)
                case Snapshot():
                    restore(self.training.state, record)
                case StartMeasured():
                    self.monitor.restarts.apply(record)
                case NodeChecked():
                    self._checks.apply(record)
                case _ if isinstance(record, MemberRecords):
                    self.members.apply(record)
                case _:
                    self.training.state.apply(record)
        self._checks.judge([node.name for node in self.members.wanted_workers()])  # was told
        if not restarted:
            self._outbox.record(self._wall_clock.started)
        return restarted, ended

    def _snapshot(self) -> list[JournalRecord]:
        measured = self.monitor.restarts.measured()
        kept = [*self.members.snapshot(), *measured, *self._checks.records()]
        return [self._wall_clock.started, take(self.training.state), *kept]

    async def _close(self, ending: Ending) -> Outcome:
        self._closed = True
        for fact in self._inbox:
            if isinstance(fact, Asked):
                fact.reply(Done(error=HAS_ENDED))
        for name in self.members.nodes:
            self._backend.stop(name)
        if self._uploads is not None:
            await self._uploads.finish(self._outbox.flush, self._is_told_to_stop)
        if not ending.is_complete and (lost := self.training.not_kept()):
            # Not before: a last cut may have been stored just now.
            self._outbox.tell(lost)
            self._outbox.events.flush()
        outcome = self._reporting.outcome(ending)
        self._reporting.measure_last(self._wall_clock())
        self.training.close()
        self._agents.close()
        self._reporting.close()
        write_outcome(outcome, self._job.outcome)
        self._outbox.close(JobEnded())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._door.close()
        return outcome

    def _fail(self, reason: str) -> None:
        self._shutdown.fail(reason)

    def _note_change(self) -> None:
        self._changed = True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ facts

    def _put(self, fact: Fact) -> None:
        self._inbox.append(fact)
        self._wake.set()

    def _put_from_thread(self) -> Callable[[Fact], None]:
        loop = asyncio.get_running_loop()

        def put(fact: Fact) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
                loop.call_soon_threadsafe(self._put, fact)

        return put

    def stop_nowait(self, number: int) -> None:
        """A signal of this number asks for the end of the job; the second one, at once."""
        self._put(StopAsked(number))

    async def _on_agent(self, stream: AgentStream) -> None:
        async for message in stream:
            self._put(FromAgent(stream, message))
        self._put(FromAgent(stream, StreamEnded()))

    async def _on_call(self, call: Call) -> Reply:
        if self._closed:
            if isinstance(call, StopJob) and call.now:
                self._put(StopAsked())  # the last cut is not waited for
                return Done()
            return Done(error=HAS_ENDED)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._put(Asked(call, answer))
        return await answer

    async def _watch_backend(self) -> None:
        async for end in self._backend.watch():
            self._put(AgentEnded(end))

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._put(Tick())

    async def _choose_cut(self) -> None:
        self._put(await self.training.choose_cut())

    def _handle(self, fact: Fact) -> None:
        match fact:
            case FromAgent(stream=stream, message=message):
                self._agents.handle(stream, message, self._own_time())
            case Tick():
                self._tick()
            case Asked():
                self._asked(fact)
            case CutChosen():
                self._changed = True
                self.training.start_epoch(fact, self._clock())
                if self._shutdown.ending is not None:
                    self._shutdown.ending.wanted_cut = None  # asked for in vain, if it was
            case StopAsked(number=number):
                self._shutdown.stop(number, at_once=self._shutdown.ending is not None)
            case Answered():
                if self.deciding is not None:
                    self.deciding.answered(fact, self._clock())
            case AgentEnded(end=end):
                now_s = self._own_time()
                self._act(self.members.agent_ended(end.node, end.agent_pid, end.reason, now_s))
            case _:
                assert_never(fact)

    def _act(self, acts: Iterable[Act]) -> None:  # noqa: C901
        """Carry out what the membership says."""
        outbox = self._outbox
        for act in acts:
            self._changed = True
            match act:
                case KeepRecord(record=record):
                    outbox.record(record)
                case Event():
                    self._tell(act)
                case WorkerUp(inc=inc):
                    self.training.worker_up(inc)
                case WorkerLost(inc=inc):
                    self.training.worker_lost(inc)
                case JoinerLost(inc=inc):
                    self.training.edge.joiner_lost(inc)
                case FailJob():
                    self._shutdown.end_failed(failed(act.reason, act.traceback, act.exit_code))
                case Launch(node=node):
                    outbox.launch(node)
                    first = self.members.nodes[node].inc == 0
                    self.monitor.restarts.launched(node, self._clock(), first=first)
                case Start(node=node, message=start):
                    start = msgspec.structs.replace(start, check=self._checks.is_due(node))
                    outbox.to_agent(node, start)
                case EndLife(node=node, inc=inc, grace_s=grace_s, hung=hung):
                    outbox.to_agent(node, StopProcess(inc=inc, grace_s=grace_s, hung=hung))
                case Retire(node=node):
                    outbox.retire(node)
                case _:
                    assert_never(act)

    def _tell(self, event: Event) -> None:
        self._outbox.tell(event)
        self.monitor.note(event, self._clock())
        if self.deciding is not None:
            self.deciding.note(event)

    def _moved(self, end: Moved | NotMoved) -> None:
        """A move of buckets is over."""
        if isinstance(end, NotMoved):
            self._act(self.members.not_replaced(futile=end.futile))
            return
        new = self.members.joining()
        if new is not None:
            self.monitor.restarts.works(new.name, self._clock(), replaces=new.replaces)
        self._act(self.members.replaced())

    def _leave_out(self, refused: WorkerRefused) -> None:
        """A worker must not take part."""
        least = self._spec.min_workers
        self._act(self._orders.refuse(refused.inc, refused.reason, least))

    def _started(self, measured: StartMeasured) -> None:
        """A node works: what its start has cost is kept and told."""
        self._outbox.record(measured)
        self.monitor.restarts.apply(measured)
        self._act([measured.event])
        if self.deciding is not None:
            self.deciding.works(measured, self._clock())

    # ------------------------------------------------------------------ the whole, the clock

    def _go_on(self) -> None:
        """What follows from the state of the whole rather than from one message."""
        if self._shutdown.ending is None and self.members.all_finished():
            work = work_of(self.training.state, self.members)
            self._shutdown.begin(Ending(end=how_finished(work)))
        if self._shutdown.ending is not None:
            self._shutdown.advance(self._shutdown.ending)
        joiner = self.members.joiner()
        if joiner is not None:
            self.training.edge.replace(*joiner)
        leaving = self._shutdown.ending is not None and self._shutdown.ending.stage >= Stage.LEAVE
        if not leaving and self.training.edge.epoch_is_due():
            self._spawn(self._choose_cut())
            self.training.choosing = True

    def _tick(self) -> None:
        now_s = self._clock()
        self._changed = True
        self.monitor.num_workers = len(self.training.state.training_workers())
        lost_after_s = self._spec.timeouts.derived(self.monitor.step_s()).lost_after_s or 0.0
        stalled = now_s - self.monitor.progress_s > lost_after_s
        acts = self.members.tick(
            self._own_time(),
            lost_after_s=lost_after_s,
            others_wait=stalled or bool(self.training.state.waiting),
            any_committed=bool(self.training.state.ledger.done),
        )
        self._act(acts)
        if self._uploads is not None:
            self._uploads.tick()
        self._look_for_hang()
        self._shutdown.stop_workers()
        self.training.tick(now_s, cuts=self._shutdown.ending is None)
        if self.deciding is not None and self._shutdown.ending is None:
            self.deciding.tick(now_s)
        if now_s - self._last_metrics_s >= METRICS_S:
            self._last_metrics_s = now_s
            controller = self.deciding.controller if self.deciding else None
            self._reporting.measure(now_s, self._wall_clock(), controller, self._observe)

    def _look_for_hang(self) -> None:
        """End the process that hangs; if all members wait, have them form their group again."""
        timeouts = self._spec.timeouts.derived(self.monitor.step_s())
        hang = self.training.edge.find_hang(timeouts.hang_s or 0.0, self._clock())
        if hang is None or self._outbox.has_healed_within(timeouts.hang_s or 0.0):
            return
        now_s = self._own_time()
        for name in hang.nodes:
            self._act(self._orders.hung(name, now_s, hang.since_s, silent=hang.silent))
        if not hang.nodes:
            self.training.edge.reconnect(hang.since_s)

    # ------------------------------------------------------------------ cuts at a URL

    def _handover(self, cut_no: int) -> Handover:
        """All that another machine needs beside this cut: as if the job had ended with it."""
        state = self.training.state
        others = (cut.cut.cut_no for cut in state.cuts.valid if cut.cut.cut_no != cut_no)
        # What nodes can do, and what their starts cost, is of this machine.
        records = [
            take(state),
            *self.members.snapshot(),
            *(CutGone(cut_no=number) for number in others),
        ]
        unset = dict.fromkeys(self._spec.env, "")
        return Handover(
            job_id=self._job.job_id,
            spec=msgspec.structs.replace(self._spec, env=unset),
            launched_s=self._job.launched_s(),
            journal=tuple(map(encode, records)),
        )

    def _is_told_to_stop(self) -> bool:
        return self._shutdown.at_once or any(isinstance(fact, StopAsked) for fact in self._inbox)

    # ------------------------------------------------------------------ calls

    def _asked(self, asked: Asked) -> None:
        try:
            reply = self._replies.to(asked.call)
        except ConfigError as error:
            reply = Done(error=str(error))
        self._outbox.later(lambda: asked.reply(reply))

    def _observe(self) -> Observation | None:
        """The job as a solution would see it now; None: nobody trains."""
        now_s = self._clock()
        since_s = self.deciding.controller.since_action_s(now_s) if self.deciding else None
        return self._scene.observe(self._scene.progress(now_s), since_s)

    def status(self) -> JobStatus:
        """The job as it is now."""
        return self._reporting.status(
            num_events=self._outbox.events.num_lines(),
            ending=self._shutdown.ending,
        )
