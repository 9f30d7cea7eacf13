"""What a resource policy sees of the job: windows of its rate, and what its nodes use meanwhile."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from paceline.base.jobdir import number_of
from paceline.features.sizes.policy.observation import (
    ModelFacts,
    NodeUse,
    PendingTime,
    RateWindow,
    ResourceBounds,
    ResourceObservation,
    Role,
    StepParts,
    TransitionTime,
)
from paceline.master.feature_port import Core
from paceline.master.jobnow import JobNow, job_now
from paceline.master.status import count_committed, count_total
from paceline.policy.job_size import ChangeKind, JobSize
from paceline.policy.stats.windows import Pace
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import NodeSpec

KEPT_WINDOWS = 60
USE_WINDOWS = 6
"""Over so many windows the use of cores is a mean."""
KINDS: tuple[ChangeKind, ...] = ("servers", "server_size", "workers", "worker_size")


class _Mark(NamedTuple):
    """Where a window begins."""

    t_s: float
    samples: int
    cpu_s: dict[str, float]


class SizeWindows:
    """The newest windows of one job.

    Args:
        core: of the master.
        bounds: of the job's spec.
    """

    def __init__(self, core: Core, bounds: ResourceBounds) -> None:
        self._monitor, self._roster = core.monitor, core.roster
        self._scene, self._bounds = core.scene, bounds
        self._window_s = core.spec.resources.window_s
        self._windows: deque[RateWindow] = deque(maxlen=KEPT_WINDOWS)
        self._marks: deque[_Mark] = deque(maxlen=USE_WINDOWS + 1)
        self._disturbed = True
        self._changes: dict[ChangeKind, list[float]] = {}

    def disturb(self) -> None:
        """Something has happened that is no training: the present window does not count."""
        self._disturbed = True

    def tick(self, now_s: float) -> bool:
        """Look at the clock; whether a window has ended."""
        if not self._scene.state.is_training:
            self._disturbed = True
        if self._marks and now_s - self._marks[-1].t_s < self._window_s:
            return False
        samples = count_committed(self._scene.state)
        cpu_s = {name: totals.cpu_s for name, totals in self._monitor.nodes.items()}
        mark = _Mark(now_s, samples, cpu_s)
        ended = bool(self._marks)
        if ended:
            before = self._marks[-1]
            window = RateWindow(
                end_s=now_s,
                seconds=now_s - before.t_s,
                samples=float(max(samples - before.samples, 0)),
                disturbed=self._disturbed or samples < before.samples,
            )
            self._windows.append(window)
        self._marks.append(mark)
        self._disturbed = False
        return ended

    def changed(self, kinds: tuple[ChangeKind, ...], took_s: float) -> None:
        """Note what a change of size has taken."""
        for kind in kinds:
            self._changes.setdefault(kind, []).append(took_s / len(kinds))

    def observe(self, now_s: float, size: JobSize) -> ResourceObservation | None:
        """Put together what is known of the job now; None: nobody trains.

        Args:
            now_s: now.
            size: as ordered.
        """
        state = self._scene.state
        samples, total = count_committed(state), count_total(state)
        job = job_now(
            state,
            self._roster,
            committed=samples,
            total=total,
            pending_s=self._scene.pending_s(),
            since_action_s=None,
        )
        if job is None or state.model is None:
            return None
        workers = [self._worker(name, now_s) for name in job.shares]
        servers = [self._server(name, now_s) for name in job.servers]
        # Without steps `job` has the samples of one worker's contribution; all divide the script's
        # batch in either case.
        has_steps = job.mode == "bsp" or not job.servers
        divided = job.global_batch * (1 if has_steps else max(1, self._roster.num_workers))
        batch_size = divided // len(job.shares) if has_steps else job.global_batch
        absent = max(0, size.workers - len(workers)) + max(0, size.servers - len(servers))
        return ResourceObservation(
            now_s=now_s,
            mode=job.mode,
            batch_size=max(1, batch_size),
            global_batch=0 if job.batch_per_worker else divided,
            samples_done=samples,
            samples_total=total,
            size=size,
            absent=absent,
            bounds=self._bounds,
            nodes=(*workers, *servers),
            parts=self._parts(job, now_s),
            model=_model_facts(state.model),
            windows=tuple(self._windows),
            pending=pending_times(self._monitor.restarts.waits_s(), job.pending_s, size),
            transitions=tuple(map(self._transition, KINDS)),
        )

    # ------------------------------------------------------------------ nodes

    def _worker(self, name: str, now_s: float) -> NodeUse:
        pace = self._monitor.history(name).short(now_s)
        use = self._use(name, "worker")
        if pace is None or not pace.bpt_s:
            return use
        return _with(use, batch_s=pace.bpt_s, samples_per_s=pace.samples / pace.bpt_s)

    def _server(self, name: str, now_s: float) -> NodeUse:
        pace = self._monitor.history(name).short(now_s)
        use = self._use(name, "server")
        return use if pace is None else _with(use, service_s=pace.server_s)

    def _use(self, name: str, role: Role) -> NodeUse:
        totals, has = self._monitor.nodes.get(name), self._monitor.hardware_of(name)
        return NodeUse(
            node=name,
            role=role,
            granted_cores=has.cores or 0.0,
            used_cores=self._used_cores(name),
            granted_bytes=has.memory_bytes or 0,
            used_bytes=totals.facts.rss_bytes if totals is not None else None,
        )

    def _used_cores(self, name: str) -> float | None:
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        if name not in first.cpu_s or name not in last.cpu_s or last.t_s <= first.t_s:
            return None
        return max(last.cpu_s[name] - first.cpu_s[name], 0.0) / (last.t_s - first.t_s)

    def _parts(self, job: JobNow, now_s: float) -> StepParts:
        paces = [self._monitor.history(name).short(now_s) for name in job.shares]
        seen = [pace for pace in paces if pace is not None]
        if not seen:
            return StepParts()
        return StepParts(
            compute_s=_mean(seen, "compute_s"),
            server_s=_mean(seen, "server_s"),
            message_s=_mean(seen, "message_s"),
            data_s=_mean(seen, "data_s"),
        )

    # ------------------------------------------------------------------ changes

    def _transition(self, kind: ChangeKind) -> TransitionTime:
        took_s = self._changes.get(kind, [])
        if took_s:
            mean_s = sum(took_s) / len(took_s)
            return TransitionTime(kind=kind, seconds=mean_s, changes=len(took_s))
        # A guess: a start, as starts of this job took; a quota changes at once.
        cost = self._monitor.restarts.cost("worker" if kind == "workers" else "server")
        seconds = cost.latency_s if kind in ("workers", "servers") else 0.0
        return TransitionTime(kind=kind, seconds=seconds, changes=0)


def ordered_size(
    limits: Callable[[str], NodeSpec], workers: list[str], servers: list[str]
) -> JobSize:
    """The size of a job as ordered; of nodes with different quotas it has the least.

    Args:
        limits: tells what the nodes of a role may use.
        workers: names of those that are wanted.
        servers: the same.
    """

    def cores(role: str, names: list[str]) -> float:
        # Single nodes may have more than their role.
        granted = [limits(role).cpu_of(number_of(name)) or 0.0 for name in names]
        return min(granted, default=0.0)

    return JobSize(
        workers=len(workers),
        servers=len(servers),
        worker_cpu=cores("worker", workers),
        server_cpu=cores("server", servers),
        worker_memory=limits("worker").memory_bytes or 0,
        server_memory=(limits("server").memory_bytes or 0) if servers else 0,
    )


def pending_times(
    waits_s: Mapping[float, Sequence[float]], expected_s: float | None, size: JobSize
) -> tuple[PendingTime, ...]:
    """How long nodes wait for a place, by their cores.

    Args:
        waits_s: by cores, what launches of this job have waited.
        expected_s: the platform's word for any node; it stands for present quotas that were never
            launched with. None: the platform says nothing.
        size: the job's.
    """
    known = {
        cores: PendingTime(cores=cores, seconds=statistics.fmean(each), launches=len(each))
        for cores, each in waits_s.items()
    }
    if expected_s is not None:
        for cores in {size.worker_cpu, size.server_cpu} - {0.0, *known}:
            known[cores] = PendingTime(cores=cores, seconds=expected_s, launches=0)
    return tuple(known[cores] for cores in sorted(known))


def _model_facts(model: ModelSchema) -> ModelFacts:
    dims = sum(table.dim for table in model.tables)
    return ModelFacts(dense_bytes=model.dense_bytes, embedding_dim=dims)


def _mean(paces: list[Pace], part: str) -> float:
    values: list[float] = [getattr(pace, part) for pace in paces]
    return sum(values) / len(values)


def _with(use: NodeUse, **fields: float) -> NodeUse:
    return replace(use, **fields)
