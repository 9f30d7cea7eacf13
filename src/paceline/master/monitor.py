"""Reports of the nodes over time: speeds, windows, regimes, events, costs of their starts.

Pure: facts and the clock come in. The master reads it for grant sizes and timeouts, makes of it
what solutions see, and writes it out as metrics. Every report costs the same, however long the
windows are.

    monitor.history("worker-1").long(now_s)            # means over L_per
    monitor.restarts.cost("worker")                    # of a restart, in five parts
    monitor.observe(now_s, job)                        # all that a solution sees

Reference: AntDT, section V-D (application and node state; the third party's is in `JobNow`).
"""

from collections import deque
from collections.abc import Container, Sequence
from math import inf
from typing import assert_never

import msgspec

from paceline.base.jobdir import role_of
from paceline.base.numbering import NO_EPOCH, NO_INC, EpochNo, Inc
from paceline.master.jobnow import JobNow
from paceline.master.restarts import Restarts
from paceline.policy.observation import LifeEnded, Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.history import Lengths, NodeHistory, ProfiledTimes, WindowMeans
from paceline.policy.stats.spells import LifeTable
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import NodeLostEvent, ProcessExitedEvent, ProcessUpEvent
from paceline.wire.messages import group
from paceline.wire.messages.agent import Hardware, NodeFacts
from paceline.wire.messages.base import TableHeld
from paceline.wire.spec import WindowSpec

WINDOW_S = 10.0
"""Seconds over which speeds are means."""
FREE = 0.05
"""Part of a node's memory limit that a batch must leave free."""
MAX_ENDS = 100
"""Ends of lives that are remembered; the events file has all."""
DEFAULT_LENGTHS = Lengths()
"""The defaults: 100 and 200 iterations, 5 and 10 minutes at most."""


def lengths_of(windows: WindowSpec) -> Lengths:
    """The spec's windows as the monitor's."""
    return Lengths(
        short_iterations=windows.short_steps,
        short_s=windows.short_s,
        long_iterations=windows.long_steps,
        long_s=windows.long_s,
    )


class RunningRate:
    """Growth per second of a counter, from one time at which it grew to another.

    A counter that grows by whole steps is compared where steps end, however long they take.
    """

    def __init__(self) -> None:
        #: Times at which it was seen to grow, and its values then.
        self._points: deque[tuple[float, int]] = deque()
        self._looked_s, self._value = 0.0, -1

    def add(self, now_s: float, value: int) -> bool:
        """Note the counter; whether it has grown. A smaller value starts again."""
        points = self._points
        if value < self._value:
            points.clear()
            self._value = -1
        # What lies before the first look and the first growth says nothing about the speed after.
        grown = 0 <= self._value < value
        if grown:
            points.append((now_s, value))
            if len(points) > 2 and _is_pause(points):
                points.popleft()
        self._looked_s, self._value = now_s, value
        # Two points stay: a step may take longer than the window.
        while len(points) > 2 and points[1][0] < now_s - WINDOW_S:
            points.popleft()
        return grown

    def per_s(self) -> float | None:
        """None: it was not seen to grow twice, or has long stopped growing (`is_known`)."""
        if not self.is_known:
            return None
        (t0, v0), (t1, v1) = self._points[0], self._points[-1]
        step_s = t1 - self._points[-2][0]
        if self._looked_s - t1 > max(WINDOW_S, 2 * step_s):
            return None
        until_s = max(t1, self._looked_s - step_s)
        return (v1 - v0) / (until_s - t0) if until_s > t0 else None

    @property
    def is_known(self) -> bool:
        """Whether it was seen to grow twice; if so, one that has no rate stands still."""
        return len(self._points) > 1


def _is_pause(points: Sequence[tuple[float, int]]) -> bool:
    """Tell whether the first two points have a pause between them, rather than a step."""
    first_s, newest_s = points[1][0] - points[0][0], points[-1][0] - points[-2][0]
    return first_s > max(WINDOW_S, 2 * newest_s)


class NodeTotals(msgspec.Struct):
    """One node over all its lives."""

    facts: NodeFacts
    """Newest facts; ``server_s`` of a server is that of an iteration, whatever it counts."""
    earlier_samples: int = 0
    """Samples of the lives before the present one."""
    earlier_cpu_s: float = 0.0

    @property
    def samples(self) -> int:
        return self.earlier_samples + self.facts.samples

    @property
    def cpu_s(self) -> float:
        return self.earlier_cpu_s + self.facts.cpu_s


class _Iterations:
    """Reports of a server, put together until an iteration is whole."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._count = 0.0
        self._busy_s = self._stolen_s = self._throttled_s = 0.0

    def add(self, facts: NodeFacts, per_iteration: int, now_s: float) -> WindowMeans | None:
        """A report for the windows, once there is one."""
        self._count += facts.steps / per_iteration
        self._busy_s += facts.steps / per_iteration * facts.server_s
        self._stolen_s += facts.steps / per_iteration * facts.stolen_s
        self._throttled_s += facts.steps / per_iteration * facts.throttled_s
        whole = int(self._count)
        if not whole:
            return None
        report = WindowMeans(
            t_s=now_s,
            iterations=whole,
            server_s=self._busy_s / self._count,
            stolen_s=self._stolen_s / self._count,
            throttled_s=self._throttled_s / self._count,
            bpt_s=(now_s - self._since_s) / whole,
        )
        self._since_s = now_s
        self._count -= whole
        self._busy_s = self._count * report.server_s
        self._stolen_s = self._count * report.stolen_s
        self._throttled_s = self._count * report.throttled_s
        return report


class NodeMetrics(msgspec.Struct, frozen=True):
    """One node in one line of the metrics file."""

    step: int
    samples: int
    bpt_s: float
    compute_s: float
    server_s: float
    message_s: float
    rss_bytes: int
    cpu_s: float
    inc: Inc = NO_INC
    """The life that reported last, as does the rest: what of `samples` and `cpu_s` is its own."""
    life_samples: int = 0
    life_cpu_s: float = 0.0
    data_s: float = 0.0
    cores: float | None = None
    """Granted to it; None: there is no quota, or its agent has not said."""


class Metrics(msgspec.Struct, frozen=True):
    """One line of the metrics file."""

    t: float
    """Unix time."""
    committed: int
    samples_per_s: float
    nodes: dict[str, NodeMetrics]
    epoch_no: EpochNo = NO_EPOCH
    """The epoch in which ``committed`` counts: a later one may have begun with less."""


MonitorTakes = ProcessExitedEvent | NodeLostEvent | ProcessUpEvent
"""Events with which a process's life begins or ends."""


class Monitor:
    """Collects reports and events."""

    def __init__(self, lengths: Lengths = DEFAULT_LENGTHS) -> None:
        """``lengths``: of the two windows."""
        self.nodes: dict[str, NodeTotals] = {}
        self.tables: dict[str, tuple[TableHeld, ...]] = {}
        """What the growing tables of each server hold, as its process has said last."""
        self.restarts = Restarts()
        self._num_workers = 0
        self._lengths = lengths
        self._histories: dict[str, NodeHistory] = {}
        self._iterations: dict[str, _Iterations] = {}
        self._spells = {"worker": LifeTable(), "server": LifeTable()}
        """Time for which nodes of each role were slow."""
        self._ended: set[str] = set()
        """Nodes whose process has ended, and that have not been heard of since."""
        self._ends: deque[LifeEnded] = deque(maxlen=MAX_ENDS)
        self._speeds: dict[str, RunningRate] = {}
        self._hardware: dict[str, Hardware] = {}
        self._committed = RunningRate()
        self._earlier: dict[str, NodeMetrics] = {}
        """Metrics by a former master, of nodes that this one has not heard of yet."""
        self.progress_s = 0.0
        """Time at which anything was last seen to advance."""

    def go_on_from(self, last: Metrics) -> None:
        """Count on from what a master before this one measured last."""
        # What they take and how fast they are, is not known of the present.
        now = {"bpt_s": 0.0, "compute_s": 0.0, "server_s": 0.0, "message_s": 0.0, "rss_bytes": 0}
        self._earlier = {
            name: msgspec.structs.replace(node, **now) for name, node in last.nodes.items()
        }

    def _first_totals(self, node: str, facts: NodeFacts) -> NodeTotals:
        """A node that this master hears of for the first time; its process may be an old one."""
        before = self._earlier.pop(node, None)
        if before is None:
            return NodeTotals(facts)
        if before.inc != facts.inc:
            return NodeTotals(facts, before.samples, before.cpu_s)
        earlier_samples = before.samples - before.life_samples
        return NodeTotals(facts, earlier_samples, before.cpu_s - before.life_cpu_s)

    def trains(self, num_workers: int) -> None:
        """Note that so many workers train now."""
        self._num_workers = num_workers

    def heartbeat(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """Take in a report of a node's process: means over steps that no earlier report told of."""
        self._ended.discard(node)
        per_iteration = self._per_iteration(node, facts)
        facts = msgspec.structs.replace(
            facts,
            server_s=facts.server_s * per_iteration,
            # A restart may cure that a machine has cut the quota of a node, not its load.
            stolen_s=max(facts.stolen_s - facts.throttled_s, 0.0) * per_iteration,
            throttled_s=facts.throttled_s * per_iteration,
        )
        totals = self.nodes.get(node)
        if totals is None:
            self.nodes[node] = self._first_totals(node, facts)
        else:
            if totals.facts.inc != facts.inc:
                totals.earlier_samples += totals.facts.samples
                totals.earlier_cpu_s += totals.facts.cpu_s
                self._forget_life(node)
            elif facts.steps == 0:
                # No step was made since the last report: the means of then are still the newest.
                facts = _with_means_of(facts, totals.facts)
            totals.facts = facts
        if self._speeds.setdefault(node, RunningRate()).add(now_s, facts.samples):
            self.progress_s = now_s
        if facts.steps:
            self._into_windows(node, facts, per_iteration, now_s)
        if facts.samples and self.restarts.is_starting(node):
            self.restarts.works(node, now_s - facts.steps * facts.bpt_s)

    def profiled(self, node: str, said: group.Profiled) -> None:
        """Take in what batches of a worker took that were not applied."""
        profiled = ProfiledTimes(
            batch_size=said.size,
            batches=said.batches,
            batch_s=said.batch_s,
            peak_bytes=said.peak_bytes,
        )
        self.history(node).profiled(profiled)

    def hardware(self, node: str, hardware: Hardware) -> None:
        """Note what a node computes on, by its agent's word."""
        self._hardware[node] = hardware

    def hardware_of(self, node: str) -> Hardware:
        """Return what a node computes on; nothing is known of one whose agent never came."""
        return self._hardware.get(node, Hardware())

    def _per_iteration(self, node: str, facts: NodeFacts) -> int:
        """Return how many of what the node counts as ``steps`` make an iteration.

        For one pull alone the time of a server without steps would shrink with each worker.
        """
        has_steps = facts.step > 0 or role_of(node) != "server"
        return 1 if has_steps else max(1, self._num_workers)

    def _into_windows(self, node: str, facts: NodeFacts, per_iteration: int, now_s: float) -> None:
        report: WindowMeans | None
        if role_of(node) == "server":
            begun = self._iterations.setdefault(node, _Iterations(now_s))
            report = begun.add(facts, per_iteration, now_s)
        else:
            report = WindowMeans(
                t_s=now_s,
                iterations=facts.steps,
                samples=facts.step_samples,
                compute_s=facts.compute_s,
                compute_max_s=facts.compute_max_s,
                server_s=facts.server_s,
                message_s=facts.message_s,
                data_s=facts.data_s,
                stolen_s=facts.stolen_s,
                throttled_s=facts.throttled_s,
                bpt_s=facts.bpt_s,
            )
        if report is None:
            return
        history, role = self.history(node), role_of(node)
        history.report(report)
        for seconds in history.take_spells():
            self._spells[role] = self._spells[role].with_spell(seconds)

    def keep(self, nodes: Container[str]) -> None:
        """Forget all other nodes: a later node of the same name is another one."""
        known = {*self.nodes, *self._histories, *self._earlier, *self.tables}
        for node in [name for name in known if name not in nodes]:
            self.nodes.pop(node, None)
            self._earlier.pop(node, None)
            self._histories.pop(node, None)
            self._speeds.pop(node, None)
            self._iterations.pop(node, None)
            self._hardware.pop(node, None)
            self.tables.pop(node, None)
            self._ended.discard(node)
        self.restarts.keep(nodes)

    def _forget_life(self, node: str) -> None:
        """Forget the former life: what is measured from here on is of another one."""
        self._speeds.pop(node, None)
        self._iterations.pop(node, None)
        self.history(node).restart()

    def note(self, event: Event, now_s: float) -> None:
        """Take in an event of the membership; most tell nothing of a process's life."""
        if not isinstance(event, MonitorTakes):
            return
        match event:
            case ProcessExitedEvent():
                end = LifeEnded(
                    t_s=now_s,
                    node=event.node,
                    inc=event.inc,
                    reason=event.reason,
                    verdict=event.verdict,
                    exit_code=event.exit_code,
                    signal=event.signal,
                    oom_kills=event.oom_kills,
                )
                self._note_end(end)
            case NodeLostEvent(node=node, inc=inc, reason=reason):
                self._note_end(LifeEnded(t_s=now_s, node=node, inc=inc, reason=reason))
            case ProcessUpEvent(node=node, inc=inc):
                self.restarts.up(node, inc, now_s)
            case _:
                assert_never(event)

    def _note_end(self, end: LifeEnded) -> None:
        """A life is over."""
        self._ends.append(end)
        self.history(end.node).restart()
        self.restarts.ended(end.node, end.t_s)
        self._ended.add(end.node)
        self.tables.pop(end.node, None)

    def committed(self, samples: int, now_s: float) -> None:
        """Note how many samples are in the model."""
        if self._committed.add(now_s, samples):
            self.progress_s = now_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second of the job, by what got into the model; 0: none, or not known."""
        return self._committed.per_s() or 0.0

    @property
    def knows_speed(self) -> bool:
        """Whether enough was seen of the job to say what its speed is."""
        return self._committed.is_known

    def speed(self, node: str) -> float | None:
        """Samples per second of a worker; None: not measured."""
        rate = self._speeds.get(node)
        return rate.per_s() if rate else None

    def step_s(self) -> float | None:
        """Seconds of one step: that of the slowest worker, as others may wait for it."""
        living = (node for name, node in self.nodes.items() if name not in self._ended)
        return max((node.facts.bpt_s for node in living if node.facts.bpt_s > 0), default=None)

    def history(self, node: str) -> NodeHistory:
        """Windows and regime of a node; empty ones if it has not reported."""
        found = self._histories.get(node)
        if found is None:
            found = self._histories[node] = NodeHistory(self._lengths)
        return found

    def observe(self, now_s: float, job: JobNow) -> Observation:
        """The job at this moment, as a solution sees it."""
        since_s = now_s - (self._lengths.long_s or inf)
        return Observation(
            now_s=now_s,
            step=job.step,
            mode=job.mode,
            global_batch=job.global_batch,
            batch_per_worker=job.batch_per_worker,
            steps_left=job.steps_left,
            workers=tuple(self._worker(name, job, now_s) for name in job.shares),
            servers=tuple(self._server(name, job, now_s) for name in job.servers),
            replacing=job.replacing,
            short_steps=job.short_steps,
            backup=job.backup,
            left_out=job.left_out,
            chunks=job.chunks,
            late=job.late,
            grace_s=job.grace_s,
            fixed=job.fixed,
            by_staleness=job.by_staleness,
            absent=job.absent,
            pending_s=job.pending_s,
            worker_restart=self.restarts.cost("worker"),
            server_restart=self.restarts.cost("server"),
            worker_spells=self._spells["worker"],
            server_spells=self._spells["server"],
            since_action_s=job.since_action_s,
            ends=tuple(end for end in self._ends if end.t_s >= since_s),
        )

    def _worker(self, name: str, job: JobNow, now_s: float) -> WorkerSeen:
        share, history = job.shares[name], self.history(name)
        hardware = self.hardware_of(name)
        return WorkerSeen(
            node=name,
            batch_size=share.batch_size,
            accumulation=share.accumulation,
            kind=hardware.kind,
            batch_limit=_batch_limit(history.profile, hardware.memory_bytes),
            profile=history.profile,
            short=history.short(now_s),
            long=history.long(now_s),
            regime=history.regime(now_s),
            restarts=job.restarts.get(name, 0),
        )

    def _server(self, name: str, job: JobNow, now_s: float) -> ServerSeen:
        history = self.history(name)
        return ServerSeen(
            node=name,
            short=history.short(now_s),
            long=history.long(now_s),
            regime=history.regime(now_s),
            restarts=job.restarts.get(name, 0),
        )

    def metrics(self, unix_s: float, committed: int, epoch_no: EpochNo = NO_EPOCH) -> Metrics:
        """A line for the metrics file."""
        nodes = {
            name: NodeMetrics(
                step=totals.facts.step,
                samples=totals.samples,
                bpt_s=totals.facts.bpt_s,
                compute_s=totals.facts.compute_s,
                server_s=totals.facts.server_s,
                message_s=totals.facts.message_s,
                data_s=totals.facts.data_s,
                rss_bytes=totals.facts.rss_bytes,
                cpu_s=totals.cpu_s,
                inc=totals.facts.inc,
                life_samples=totals.facts.samples,
                life_cpu_s=totals.facts.cpu_s,
                cores=self.hardware_of(name).cores,
            )
            for name, totals in self.nodes.items()
        }
        nodes = self._earlier | nodes
        return Metrics(unix_s, committed, self.samples_per_s, nodes, epoch_no)


def _batch_limit(profile: Sequence[ProfiledTimes], memory_bytes: int | None) -> int | None:
    """The largest batch that leaves a part of the memory free, as far as that is known.

    From the largest that was measured, as if all of a process's memory grew with it: that is never
    too much, and what a smaller one takes shows nothing (memory that was used once is kept).
    """
    measured = [one for one in profile if one.peak_bytes]
    if not measured or memory_bytes is None:
        return None
    newest = measured[-1]
    return int(newest.batch_size * (1.0 - FREE) * memory_bytes / newest.peak_bytes)


def _with_means_of(facts: NodeFacts, before: NodeFacts) -> NodeFacts:
    return msgspec.structs.replace(
        facts,
        step_samples=before.step_samples,
        bpt_s=before.bpt_s,
        compute_s=before.compute_s,
        server_s=before.server_s,
        message_s=before.message_s,
        data_s=before.data_s,
        stolen_s=before.stolen_s,
        throttled_s=before.throttled_s,
    )
