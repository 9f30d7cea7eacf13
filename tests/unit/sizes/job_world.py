"""A made-up job in virtual time, for closed loops. It is a network of queues, not the model.

Workers think (compute, by Amdahl's law up to a number of threads, slower below one core), then ask
all servers, which are queues of their own with an uneven share of the work, over one network. The
rate comes from mean value analysis, and is measured with noise that lasts for several windows.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from operator import truediv

from paceline.features.sizes.policy.observation import (
    NodeUse,
    RateWindow,
    ResourceBounds,
    ResourceObservation,
    StepParts,
    TransitionTime,
)
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.steering import steer
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    AnySteeringFact,
    ApplyPlan,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    SteeringRules,
    SteeringState,
    TakeBack,
)
from paceline.policy.job_size import JobSize

BATCH = 100
WINDOW_S = 10.0
BURST = 0.6
"""Of the rate that a job has while a neighbour works."""
LEAST_CORES = 0.01
"""For its work, of a node whose quota is not more than what it needs for itself."""


@dataclass(frozen=True)
class Job:
    """What its steps need."""

    compute: float = 1.0
    """Core-seconds of a worker's step."""
    threads: float = 4.0
    """Cores that its computation can use."""
    serial: float = 0.1
    """Part of it that only one core can do."""
    fixed_s: float = 0.02
    """Of a step, whatever the size."""
    serve: float = 0.3
    """Core-seconds of all servers for a step."""
    server_threads: float = 4.0
    skew: float = 0.0
    """How much more than its share the first server has."""
    network_s: float = 0.01
    """Of the one network, for a step."""
    worker_own: float = 0.0
    """Cores that a worker needs before it computes: its threads that wait, its agent."""
    server_own: float = 0.0
    message: float = 0.0
    """Core-seconds of each server for a worker's request, however little is in it."""


@dataclass(frozen=True)
class Speed:
    """What a size gives."""

    per_s: float
    parts: StepParts
    worker_cores: float
    server_cores: tuple[float, ...]


@cache
def speed(job: Job, size: JobSize, first_cpu: float = 0.0) -> Speed:
    """Mean value analysis of the closed network, exact; the first server may have other cores."""
    cores = max(min(size.worker_cpu - job.worker_own, job.threads), LEAST_CORES)
    if cores < 1.0:
        compute_s = job.compute / cores
    else:
        compute_s = job.compute * (job.serial + (1.0 - job.serial) / cores)
    share = job.serve / size.servers
    first = min(share * (1.0 + job.skew), job.serve)
    work = [first, *[(job.serve - first) / max(size.servers - 1, 1)] * (size.servers - 1)]
    work = [each + job.message for each in work]
    quotas = [first_cpu or size.server_cpu, *[size.server_cpu] * (size.servers - 1)]
    left = [max(each - job.server_own, LEAST_CORES) for each in quotas]
    rates = [min(each, job.server_threads) for each in left]
    # Servers are asked at the same time; the busiest one and the network are queues.
    demands = [max(map(truediv, work, rates)), job.network_s * size.servers**0.2]
    queues = [0.0, 0.0]
    think_s = compute_s + job.fixed_s
    per_step = response = 0.0
    for customers in range(1, size.workers + 1):
        times = [demand * (1.0 + queue) for demand, queue in zip(demands, queues, strict=True)]
        response = think_s + sum(times)
        per_step = customers / response
        queues = [per_step * each for each in times]
    used = job.compute * per_step / size.workers + job.worker_own
    return Speed(
        per_s=per_step * BATCH,
        parts=StepParts(
            compute_s=compute_s,
            server_s=demands[0],
            message_s=response - think_s - demands[0],
            data_s=0.0,
        ),
        worker_cores=min(used, size.worker_cpu),
        server_cores=tuple(
            min(each * per_step + job.server_own, quota)
            for each, quota in zip(work, quotas, strict=True)
        ),
    )


def best(job: Job, cores: float, step: float = 0.5) -> tuple[float, JobSize]:
    """The fastest size of a grid."""
    found = (0.0, JobSize(workers=1))
    quotas = [step * each for each in (1, 2, 3, 4, 6, 8, 12)]
    for workers in (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32):
        for servers in (1, 2, 3, 4, 6, 8):
            for worker_cpu in quotas:
                for server_cpu in quotas:
                    size = JobSize(
                        workers=workers,
                        servers=servers,
                        worker_cpu=worker_cpu,
                        server_cpu=server_cpu,
                    )
                    if size.cores <= cores + 1e-9:
                        found = max(found, (speed(job, size).per_s, size), key=lambda one: one[0])
    return found


@dataclass
class World:
    """The job, and what was done to it."""

    job: Job
    size: JobSize
    cores: float
    noise: float = 0.03
    seed: int = 0
    refuses: bool = False
    """Whether no size with more nodes is granted."""
    first_cpu: float = 0.0
    """Cores of the first server; 0: as the others."""
    measures_parts: bool = True
    bounds: ResourceBounds | None = None
    """None: only `cores`."""
    bursts: float = 0.0
    """Part of all windows in which a neighbour of the job's machine begins to work."""
    slowed: int = 0
    """Windows from now on in which hardly anything is done."""
    now_s: float = 0.0
    acts: list[tuple[float, AnySteeringAct]] = field(default_factory=list)
    sizes: list[JobSize] = field(default_factory=list)
    state: SteeringState = field(default_factory=SteeringState)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._level = 0.0
        self._burst = 0
        """Windows until the neighbour is done."""
        self._windows: list[RateWindow] = []
        self.sizes.append(self.size)

    @property
    def changes(self) -> int:
        """Plans and takings back that were ordered."""
        return sum(isinstance(act, ApplyPlan | TakeBack) for _, act in self.acts)

    @property
    def per_s(self) -> float:
        """The true rate now."""
        return speed(self.job, self.size, self.first_cpu).per_s

    def run(self, policy: ResourcePolicy, windows: int, rules: SteeringRules) -> None:
        """Go on for so many windows."""
        for _ in range(windows):
            self._window(disturbed=False)
            self._steer(SizeSeen(seen=self.seen()), rules, policy)

    def seen(self) -> ResourceObservation:
        """The job as it looks now."""
        now = speed(self.job, self.size, self.first_cpu)

        def about(value: float | None) -> float | None:
            return None if value is None else value * self._draw.lognormvariate(0.0, 0.05)

        parts = StepParts(
            compute_s=about(now.parts.compute_s),
            server_s=about(now.parts.server_s),
            message_s=about(now.parts.message_s),
            data_s=0.0,
        )
        workers = tuple(
            NodeUse(
                node=f"worker-{number}",
                role="worker",
                granted_cores=self.size.worker_cpu,
                used_cores=about(now.worker_cores),
            )
            for number in range(self.size.workers)
        )
        servers = tuple(
            NodeUse(
                node=f"server-{number}",
                role="server",
                granted_cores=self.first_cpu or self.size.server_cpu
                if number == 0
                else self.size.server_cpu,
                used_cores=about(used),
            )
            for number, used in enumerate(now.server_cores)
        )
        measured = self.measures_parts
        return ResourceObservation(
            now_s=self.now_s,
            mode="asp",
            batch_size=BATCH,
            samples_done=int(self.now_s * 100),
            size=self.size,
            bounds=self.bounds
            or ResourceBounds(cores=self.cores, core_step=0.1, min_node_cores=0.1),
            nodes=(*workers, *servers) if measured else (),
            parts=parts if measured else StepParts(),
            windows=tuple(self._windows[-64:]),
            transitions=tuple(self._transitions()),
        )

    def _transitions(self) -> Iterator[TransitionTime]:
        yield TransitionTime(kind="workers", seconds=5.0, stall_s=0.2)
        yield TransitionTime(kind="servers", seconds=15.0, stall_s=1.0)
        yield TransitionTime(kind="worker_size", seconds=1.0, stall_s=0.0)
        yield TransitionTime(kind="server_size", seconds=1.0, stall_s=0.0)

    def _window(self, *, disturbed: bool) -> None:
        self.now_s += WINDOW_S
        self._level = 0.5 * self._level + self._draw.gauss(0.0, self.noise * math.sqrt(0.75))
        if self.bursts and not self._burst and self._draw.random() < self.bursts:
            self._burst = self._draw.randint(1, 3)
        rate = self.per_s * math.exp(self._level) * (BURST if self._burst else 1.0)
        self._burst = max(self._burst - 1, 0)
        if self.slowed:
            self.slowed -= 1
            rate *= 0.02
        window = RateWindow(
            end_s=self.now_s, seconds=WINDOW_S, samples=rate * WINDOW_S, disturbed=disturbed
        )
        self._windows.append(window)

    def _steer(self, fact: AnySteeringFact, rules: SteeringRules, policy: ResourcePolicy) -> None:
        self.state, acts = steer(self.state, fact, rules, policy)
        self.acts += [(self.now_s, act) for act in acts]
        for act in acts:
            if isinstance(act, ApplyPlan | TakeBack):
                is_plan = isinstance(act, ApplyPlan)
                target = act.plan.target if is_plan else act.target
                nodes = {each.node: each.cpu for each in (act.plan.nodes if is_plan else act.nodes)}
                if not self.refuses:
                    kept = 0.0 if target.differing(self.size) else self.first_cpu
                    self.first_cpu = nodes.get("server-0", kept)
                self._carry_out(target, rules, policy)

    def _carry_out(self, target: JobSize, rules: SteeringRules, policy: ResourcePolicy) -> None:
        for _ in range(2):
            self._window(disturbed=True)
        more = target.workers + target.servers > self.size.workers + self.size.servers
        if self.refuses and more:
            failed = ResizeFailed(now_s=self.now_s, size=self.size, why="refused")
            self._steer(failed, rules, policy)
            return
        self.size = target
        self.sizes.append(target)
        self._steer(ResizeInEffect(now_s=self.now_s, size=target), rules, policy)

    def held(self) -> set[str]:
        """Causes for which nothing was done."""
        return {act.cause for _, act in self.acts if isinstance(act, Hold)}
