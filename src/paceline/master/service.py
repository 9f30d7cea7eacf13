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

import msgspec

from paceline.base.disk import append_if_possible
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.cuts.remote import Handover, RemoteCuts
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.jobs.resize import read_resize
from paceline.master.checks import Checks, NodeChecked
from paceline.master.deciding import Answered, Deciding, lengths_of
from paceline.master.decision_port import Scene
from paceline.master.ending import Ending, Seen, Stage, failed, how_finished, stopped
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
from paceline.master.listener import Door
from paceline.master.meeting import make_rounds
from paceline.master.monitor import Monitor
from paceline.master.orders import check_elastic, check_scale, check_size
from paceline.master.outbox import Outbox
from paceline.master.own_time import OwnTime
from paceline.master.ports import Backend
from paceline.master.reporting import Reporting
from paceline.master.restarts import StartMeasured
from paceline.master.status import work_of
from paceline.master.training import CutChosen, Parts, Training
from paceline.master.uploads import Uploader, Uploads
from paceline.master.waiting import until_written
from paceline.policy.failslow.preflight import found_slow
from paceline.policy.straggler.observation import Observation
from paceline.protocol.acts import Moved, NotMoved, Refused
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import (
    Act,
    End,
    FailJob,
    JobEnded,
    JoinerLost,
    Keep,
    Launch,
    MemberRecords,
    Node,
    Retire,
    Start,
    WorkerLost,
    WorkerUp,
)
from paceline.protocol.records import CutGone
from paceline.protocol.snapshot import Snapshot, restore, take
from paceline.wire.client import (
    Call,
    Done,
    GetObservation,
    GetSpec,
    GetStatus,
    JobInfo,
    JobStatus,
    Join,
    Joined,
    Kill,
    Observed,
    Replace,
    Reply,
    Scale,
    StopJob,
)
from paceline.wire.control import AgentStream
from paceline.wire.events.base import Event
from paceline.wire.events.checks import CheckedEvent, CheckFailedEvent
from paceline.wire.events.job import FinishedEvent, MasterStartedEvent, StoppedEvent
from paceline.wire.events.nodes import NoLimitsEvent
from paceline.wire.messages.agent import (
    AgentHello,
    AgentUp,
    FromProcess,
    Heartbeat,
    ProcessExited,
    StopProcess,
)
from paceline.wire.messages.checks import Checked, CheckKept
from paceline.wire.messages.group import Stopped
from paceline.wire.messages.node import Finished, NodeUp, ProcessUp, ScriptError
from paceline.wire.spec import JobSpec

TICK_S = 0.2
METRICS_S = 1.0
COMPACT_AT = 50_000
"""Records in the journal beyond which it is begun anew from a snapshot."""
MAX_REFUSALS_LOGGED = 1_000
HAS_ENDED = "the job has ended"
NONSENSE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a well-formed message with impossible values ends in; InternalError stays the alarm."""

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
        self.monitor = Monitor(lengths_of(spec.windows))
        self._outbox = Outbox(job, self.members, backend, self._wall_clock, journal)
        parts = (job, spec, self.members, self.monitor, self._outbox)
        self.training = Training(
            Parts(*parts, self._fail, self._moved, self._leave_out),
            EDGES[spec.traits.holder](spec),
        )
        self._checks = Checks(wanted=spec.preflight and spec.traits.measured != "never")
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
        self._door = Door(job, spec.listen, self._on_agent, self._on_call)
        self._last_metrics_s = 0.0
        self._inbox: list[Fact] = []
        self._wake = asyncio.Event()
        self._names: dict[AgentStream, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: Ending | None = None
        #: Until then workers of a job that is stopped may wait for a cut under way.
        self._stop_by_s = 0.0
        self._closed = self._at_once = False
        #: Something happened that may concern the job as a whole.
        self._changed = True

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
        while self._ending is None or self._ending.stage is not Stage.OVER:
            await self._wake.wait()
            self._wake.clear()
            self._handle_batch()
            if self._outbox.refused:
                await self._stand_still()
        return await self._close(self._ending)

    async def _stand_still(self) -> None:
        """Wait for the journal's disk."""
        disk_s = self._spec.timeouts.disk_s
        lost = await until_written(self._outbox, self._inbox, self._reply, disk_s)
        if lost:
            self._fail(lost)

    def _resize(self) -> None:
        """Take in what `paceline run --resume` says about the number of nodes."""
        resize = read_resize(self._job.resize)
        if resize is not None:
            self._act(self.members.resize(resize.workers, resize.servers))
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
            self._fail(str(error))

    def _restart(self, name: str, reason: str) -> None:
        """KILL_RESTART: a worker ends in order and starts again; a server's buckets move first.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        now_s = self._own_time()
        if self._alive(name).role == "worker":
            self.training.check_may_leave(self._clock())
            self._act(self.members.restart(name, now_s, self._stop_s(), reason))
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
        self._reporting.close()
        write_outcome(outcome, self._job.outcome)
        self._outbox.close(JobEnded())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._door.close()
        return outcome

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
                self._try_from_stream(stream, message)
            case Tick():
                self._tick()
            case Asked():
                self._asked(fact)
            case CutChosen():
                self._changed = True
                self.training.start_epoch(fact, self._clock())
                if self._ending is not None:
                    self._ending.wanted_cut = None  # asked for in vain, if it was
            case StopAsked(number=number):
                self._stop(number, at_once=self._ending is not None)
            case Answered() if self.deciding is not None:
                self.deciding.answered(fact, self._clock())
            case AgentEnded(end=end):
                now_s = self._own_time()
                self._act(self.members.agent_ended(end.node, end.agent_pid, end.reason, now_s))

    # ------------------------------------------------------------------ agents

    def _try_from_stream(self, stream: AgentStream, message: AgentUp | StreamEnded) -> None:
        """One message that cannot be handled is no reason to give up the job."""
        try:
            self._from_stream(stream, message)
        except NONSENSE:
            body = message.body if isinstance(message, FromProcess) else message
            _log.exception(
                "message_dropped type=%s node=%s", type(body).__name__, self._names.get(stream)
            )

    def _from_stream(self, stream: AgentStream, message: AgentUp | StreamEnded) -> None:
        now_s = self._own_time()
        match message:
            case StreamEnded():
                self._stream_ended(stream)
            case AgentHello():
                self._hello(stream, message, now_s)
            case _:
                name = message.node
                if self._names.get(stream) != name or self._outbox.streams.get(name) is not stream:
                    self._refuse(name, "not from the node's agent")
                    return
                self.members.heard(name, now_s)
                self._from_agent(name, message, now_s)

    def _hello(self, stream: AgentStream, hello: AgentHello, now_s: float) -> None:
        name = hello.node
        before = self._outbox.streams.get(name)
        if before is not None and before is not stream:
            before.end()
        self._names[stream] = name
        self._outbox.streams[name] = stream
        node = self.members.nodes.get(name)
        if node is None:
            self._refuse(name, "no node of this job")
        elif not node.guest:
            self._backend.adopt(name, hello.agent_pid)
            self.monitor.restarts.joined(name, self._backend.waited_s(name))
        self.monitor.hardware(name, hello.hardware)
        if hello.note and node is not None:
            self._outbox.tell(NoLimitsEvent(node=name, reason=hello.note))
        self._act(self.members.hello(hello, now_s))

    def _stream_ended(self, stream: AgentStream) -> None:
        name = self._names.pop(stream, "")
        if self._outbox.streams.get(name) is stream:
            del self._outbox.streams[name]
            self.members.stream_lost(name)
            self._changed = True

    def _from_agent(
        self, name: str, message: Heartbeat | FromProcess | ProcessExited, now_s: float
    ) -> None:
        match message:
            case Heartbeat(facts=facts):
                if facts is not None and self._is_alive(name, facts.inc):
                    self.monitor.heartbeat(name, facts, self._clock())
            case FromProcess(body=body):
                if self._is_alive(name, body.inc):
                    self._from_process(name, body, now_s)
                else:
                    self._refuse(name, f"of incarnation {body.inc}, which does not live there")
            case ProcessExited():
                self._keep_stacks(message)
                committed = bool(self.training.state.ledger.done)
                self._act(self.members.process_exited(message, now_s, any_committed=committed))

    def _keep_stacks(self, message: ProcessExited) -> None:
        """Where people find what a process did that hung."""
        if message.evidence.stacks and self._is_alive(message.node, message.inc):
            stacks = f"incarnation {message.inc}\n{message.evidence.stacks}\n"
            append_if_possible(self._job.logs / f"{message.node}.stacks", stacks)

    def _from_process(self, name: str, body: NodeUp, now_s: float) -> None:
        match body:
            case ProcessUp():
                self._act(self.members.process_up(body, now_s))
            case ScriptError():
                self.members.script_error(body)
            case Finished():
                self._act(self.members.script_returned(body))
            case Checked():
                self._node_checked(name, body)
            case _:
                self._changed |= isinstance(body, Stopped)
                self.training.handle(name, body, self._clock())

    def _node_checked(self, name: str, message: Checked) -> None:
        """Keep what a node can do, and say who is slow, or what was not measured."""
        speed = message.speed
        if self._checks.failed(message):
            failed_check = CheckFailedEvent(node=name, inc=message.inc, reason=message.error)
            self._outbox.tell(failed_check)
        if speed is not None and self._checks.speeds.get(name) != speed:
            record = NodeChecked(node=name, speed=speed)
            self._outbox.record(record)
            self._checks.apply(record)
            self._outbox.tell(CheckedEvent(node=name, inc=message.inc, speed=speed))
            for slow in self._checks.judge(node.name for node in self.members.wanted_workers()):
                self._outbox.tell(found_slow(slow, self._checks.speeds))
        self._outbox.to_process(message.inc, CheckKept(inc=message.inc))

    def _is_alive(self, name: str, inc: int) -> bool:
        node = self.members.node_of(inc)
        return node is not None and node.name == name and node.alive

    def _refuse(self, name: str, reason: str) -> None:
        """Log what should not come, once: it may come a thousand times a second."""
        if (name, reason) not in self._refused and len(self._refused) < MAX_REFUSALS_LOGGED:
            self._refused.add((name, reason))
            _log.warning("message_refused node=%s reason=%s", name, reason)

    def _act(self, acts: Iterable[Act]) -> None:
        """Carry out what the membership says."""
        outbox = self._outbox
        for act in acts:
            self._changed = True
            match act:
                case Keep(record=record):
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
                    self._end_failed(failed(act.reason, act.traceback, act.exit_code))
                case Launch(node=node):
                    outbox.launch(node)
                    first = self.members.nodes[node].inc == 0
                    self.monitor.restarts.launched(node, self._clock(), first=first)
                case Start(node=node, message=start):
                    start = msgspec.structs.replace(start, check=self._checks.is_due(node))
                    outbox.to_agent(node, start)
                case End(node=node, inc=inc, grace_s=grace_s, hung=hung):
                    outbox.to_agent(node, StopProcess(inc=inc, grace_s=grace_s, hung=hung))
                case Retire(node=node):
                    outbox.retire(node)

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

    def _leave_out(self, refused: Refused) -> None:
        """A worker must not take part."""
        least = self._spec.min_workers
        self._act(self.members.refuse(refused.inc, refused.reason, least))

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
        if self._ending is None and self.members.all_finished():
            work = work_of(self.training.state, self.members)
            self._begin_end(Ending(end=how_finished(work)))
        if self._ending is not None:
            self._advance_end(self._ending)
        joiner = self.members.joiner()
        if joiner is not None:
            self.training.edge.replace(*joiner)
        leaving = self._ending is not None and self._ending.stage >= Stage.LEAVE
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
        self._stop_workers()
        self.training.tick(now_s, cuts=self._ending is None)
        if self.deciding is not None and self._ending is None:
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
            self._act(self.members.hung(name, now_s, hang.since_s, silent=hang.silent))
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
        return self._at_once or any(isinstance(fact, StopAsked) for fact in self._inbox)

    # ------------------------------------------------------------------ the end

    def _begin_end(self, ending: Ending) -> None:
        ending.ended_s = self._wall_clock()
        self._ending, self._changed = ending, True

    def _fail(self, reason: str) -> None:
        self._end_failed(failed(reason))

    def _end_failed(self, ending: Ending) -> None:
        if self._ending is not None and self._ending.stage >= Stage.LEAVE:
            return
        _log.error("job_failed reason=%s", ending.error)
        self._begin_end(ending)
        self._leave(ending)

    def _stop(self, number: int, *, at_once: bool) -> None:
        """End the job: a signal of this number asks for it; 0: ``paceline stop``."""
        self._at_once |= at_once
        if self._ending is None:
            self._outbox.tell(StoppedEvent(signal=number))
            self._begin_end(stopped(number))
            self._stop_by_s = self._clock() + self.training.last_cut_s
            self._stop_workers()
        if at_once and self._ending is not None and self._ending.stage < Stage.LEAVE:
            self._changed = True
            self._leave(self._ending)

    def _stop_workers(self) -> None:
        """Have workers leave as soon as a cut of what they hold then can be made."""
        waits = self.training.edge.last_cut_waits and self._clock() < self._stop_by_s
        if self._ending is None or self._ending.state != "stopped" or self.members.closing or waits:
            return
        self.training.stop()
        self._act(self.members.close(self._own_time(), self._stop_s()))

    def _stop_s(self) -> float:
        return self._spec.timeouts.derived(self.monitor.step_s()).stop_s or 0.0

    def _advance_end(self, ending: Ending) -> None:
        while True:
            stage = ending.stage
            if stage is Stage.CUT and ending.wanted_cut is None:
                ending.wanted_cut = self.training.edge.take_last_cut()
            ending.advance(self._seen(), self._clock())
            if ending.stage is stage:
                return
            if ending.stage is Stage.LEAVE:
                self._leave(ending)

    def _seen(self) -> Seen:
        return Seen(
            workers_alive=sum(node.alive for node in self.members.of_role("worker")),
            last_stored_no=self.training.state.cuts.last_stored_no,
            servers_up=self.members.servers() is not None,
            agents_connected=len(self._outbox.streams),
            waits_for_disk=self.training.waits_for_disk(self._clock()),
        )

    def _leave(self, ending: Ending) -> None:
        """Everybody ends; the outcome follows when they have."""
        ending.enter(Stage.LEAVE, self._clock())
        if ending.state == "finished":
            self._outbox.tell(FinishedEvent())
        ending.ended_s = self._wall_clock()
        self.members.closing = True
        for name in self.members.nodes:
            self._outbox.retire(name)

    # ------------------------------------------------------------------ calls

    def _asked(self, asked: Asked) -> None:
        try:
            reply = self._reply(asked.call)
        except ConfigError as error:
            reply = Done(error=str(error))
        self._outbox.later(lambda: asked.reply(reply))

    def _reply(self, call: Call) -> Reply:
        match call:
            case GetStatus():
                return self.status()
            case GetObservation():
                seen = self._observe()
                return Observed(json=msgspec.json.encode(seen).decode() if seen else "")
            case Scale(workers=workers):
                self._check_running()
                check_scale(self._spec, self.training.state.plans.in_training(), workers)
                self._act(self.members.scale(workers, self._own_time(), self._stop_s()))
            case Kill(node=name):
                self._check_running()
                self._act(self.members.kill(self._alive(name).name))
            case Replace(node=name):
                self._check_running()
                check_elastic(self._spec, "replace")
                self._restart(name, "by order")
            case StopJob():
                self._stop(call.signal, at_once=call.now)
            case GetSpec():
                return JobInfo(job_id=self._job.job_id, spec=self._spec)
            case Join(host=host):
                self._check_running()
                check_elastic(self._spec, "join")
                check_size(self._spec, "have", 1 + sum(1 for _ in self.members.wanted_workers()))
                if not self.training.state.holder.has_model:
                    raise ConfigError("the job has no model yet; join again when it trains")
                node_name, acts = self.members.join(host, self._own_time())
                self._act(acts)
                return Joined(node=node_name)
        return Done()

    def _observe(self) -> Observation | None:
        """The job as a solution would see it now; None: nobody trains."""
        now_s = self._clock()
        since_s = self.deciding.controller.since_action_s(now_s) if self.deciding else None
        return self._scene.observe(self._scene.progress(now_s), since_s)

    def _alive(self, name: str) -> Node:
        node = self.members.nodes.get(name)
        if node is None or not node.alive:
            names = ", ".join(n.name for n in self.members.nodes.values() if n.alive)
            raise ConfigError(f"no live node {name!r}; there are: {names or 'none'}")
        return node

    def _check_running(self) -> None:
        if self._ending is not None:
            raise ConfigError("the job is about to end")

    def status(self) -> JobStatus:
        """The job as it is now."""
        return self._reporting.status(
            num_events=self._outbox.events.num_lines(),
            ending=self._ending,
        )
