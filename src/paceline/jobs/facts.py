"""Facts of what became of a job, worked out from its files: pure but for `read_facts`.

Every number is measured: times of events to the millisecond, counts of samples once per second.
"""

import bisect
import itertools
import signal
from collections.abc import Iterator, Sequence
from statistics import median
from typing import assert_never

import msgspec
from msgspec import structs

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.base.processes import is_locked
from paceline.jobs.curves import CurvePoint, read_curves
from paceline.jobs.history import MetricsPoint, read_events, read_metrics
from paceline.jobs.incidents import ENDINGS, TRAINING, Incident, find_incidents
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.wire import spec as specs
from paceline.wire.events.base import Event
from paceline.wire.events.job import (
    MasterStartedEvent,
    ResumedEvent,
    SupervisorStartedEvent,
)
from paceline.wire.events.nodes import (
    KilledEvent,
    LeftOutEvent,
    NodeLostEvent,
    NodeStartedEvent,
    ProcessExitedEvent,
    RelaunchEvent,
    RestartAllEvent,
    Verdict,
)
from paceline.wire.events.state import EpochEvent
from paceline.wire.spec import JobSpec

UNREADABLE = (
    OSError,
    PacelineError,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors in reading or drawing files that are damaged, or that nobody thought of."""
ENDS = ("finished", "stopped", "killed", "out of memory", "failed", "unreachable", "running")
"""Ends of a life; ``running``: it has not ended."""
LifeEnd = ProcessExitedEvent | NodeLostEvent | LeftOutEvent

STARTS = (ResumedEvent, SupervisorStartedEvent, MasterStartedEvent)
AWAY_S = 10.0
"""Seconds of silence before a start: after more, no process was there in between. Measurements come
each second, in jobs of weeks less often."""

GAP = 2.0
"""Times the usual distance of two points, from which on something was not measured in between."""
JUMP = 3.0
"""Times the usual speed: faster than that a job is only in the first counts of a new master."""
CAUGHT_UP_S = 3.0
"""Seconds after which a new master knows what was trained while there was none."""


class LifeFacts(msgspec.Struct, frozen=True):
    """One incarnation of a node; times are Unix times."""

    node: str
    inc: Inc
    start_s: float
    end_s: float
    how: str
    reason: str = ""


class Worker(msgspec.Struct, frozen=True):
    """One worker over all its lives."""

    node: str
    lives: int
    samples: int
    bpt_s: float
    """Median over the job's seconds; 0: never measured."""
    cpu_s: float
    data_s: float = 0.0
    """T^d, the wait for a batch's data: mean over the job's seconds."""


class Facts(msgspec.Struct, frozen=True):
    """One job."""

    job_id: str
    path: str
    spec: JobSpec
    outcome: Outcome | None
    """None: the job runs, or nobody wrote how it ended."""
    started_s: float
    """Unix time of the job's launch."""
    ended_s: float
    """Unix time of what is known of it last."""
    training_s: float
    """Seconds from when all servers (or members) first held the model to the end. The time in which
    no process of the job was there is left out."""
    committed: int
    lives: tuple[LifeFacts, ...]
    incidents: tuple[Incident, ...]
    """All incidents in order, also those that a person wanted."""
    workers: tuple[Worker, ...]
    events: tuple[Event, ...]
    points: tuple[MetricsPoint, ...]
    stacks: tuple[tuple[str, str], ...] = ()
    """Stacks of processes that hung, with their nodes: what the threads were doing."""
    curves: dict[str, list[CurvePoint]] = {}
    """Values that the script has logged, by name."""
    runs: bool = False
    """Whether it has not ended and its supervisor lives."""

    @property
    def samples_per_s(self) -> float:
        """Mean over the training."""
        return self.committed / self.training_s if self.training_s > 0 else 0.0

    @property
    def troubles(self) -> tuple[Incident, ...]:
        """Incidents in which something went wrong."""
        return tuple(one for one in self.incidents if one.went_wrong)

    @property
    def stalled_s(self) -> float:
        """Seconds, at most, in which no new sample came into the model, because of what went wrong.

        Incidents at the same time count once. One after which the job never went on counts as none.
        """
        total_s, until_s = 0.0, 0.0
        for incident in sorted(self.troubles, key=lambda one: one.t - one.unseen_s):
            end_s, begin_s = (
                incident.t + (incident.stalled_s or 0.0),
                incident.t - incident.unseen_s,
            )
            total_s += max(0.0, end_s - max(begin_s, until_s))
            until_s = max(until_s, end_s)
        return total_s

    @property
    def stopped_s(self) -> float:
        """Seconds between the end of a run and the resume that followed it."""
        resumes_s = [event.t for event in self.events if isinstance(event, ResumedEvent)]
        if not resumes_s:  # a live page asks again and again, of many points
            return 0.0
        signs_s = sorted([one.t for one in self.points] + [one.t for one in self.events])
        return sum(t - signs_s[max(0, bisect.bisect_left(signs_s, t) - 1)] for t in resumes_s)

    @property
    def undone(self) -> int:
        """Samples that left the model again, to be trained again."""
        return sum(incident.undone for incident in self.incidents)

    @property
    def num_relaunches(self) -> int:
        """Training processes that were started again."""
        return sum(isinstance(event, RelaunchEvent | RestartAllEvent) for event in self.events)

    @property
    def num_restores(self) -> int:
        """Times that the servers went back to a cut."""
        return sum(isinstance(e, EpochEvent) and e.is_restore for e in self.events)


def read_facts(job: JobDir) -> Facts:
    """Read a job's files.

    Raises:
        PermanentError: the spec is damaged.
    """
    facts = work_out(
        job,
        specs.load(job.spec),
        read_outcome(job.outcome),
        read_events(job.events),
        read_metrics(job.metrics),
        launched_s=job.launched_s(),
    )
    stacks = sorted((path.stem, path.read_text()) for path in job.logs.glob("*.stacks"))
    runs = facts.outcome is None and is_locked(job.supervisor_lock)
    curves = read_curves(job.curves).points
    return structs.replace(facts, stacks=tuple(stacks), runs=runs, curves=curves)


def work_out(
    job: JobDir,
    spec: JobSpec,
    outcome: Outcome | None,
    events: Sequence[Event],
    points: Sequence[MetricsPoint],
    *,
    launched_s: float,
) -> Facts:
    """Work out what the events and measurements say; ``launched_s``: see `JobDir.launched_s`."""
    times = [*(event.t for event in events), *(point.t for point in points)]
    ended_s = max(times, default=launched_s)
    committed = points[-1].committed if points else 0
    # An outcome that the supervisor wrote, without a master, knows of no samples.
    if outcome is not None and (outcome.total or not points):
        committed = outcome.committed
    lives = tuple(find_lives(events, ended_s))
    return Facts(
        job_id=job.job_id,
        path=str(job.path),
        spec=spec,
        outcome=outcome,
        started_s=launched_s,
        ended_s=ended_s,
        training_s=trained_s(events, points),
        committed=committed,
        lives=lives,
        incidents=tuple(find_incidents(events, points, spec.mode)),
        workers=tuple(_workers(points, lives)),
        events=tuple(events),
        points=tuple(points),
    )


def read_trained_s(job: JobDir) -> float | None:
    """Read the same as `trained_s` from a job's files; None: they cannot be read."""
    try:
        return trained_s(read_events(job.events), read_metrics(job.metrics))
    except OSError:
        return None


def trained_s(events: Sequence[Event], points: Sequence[MetricsPoint]) -> float:
    """Seconds in which the job trained, or would have but for what went wrong.

    A job that was stopped, or whose processes all died, trains again when it is resumed and its
    model is loaded. A master that is replaced in a moment interrupts nothing.
    """
    total_s, last_s, most = 0.0, 0.0, 0
    since_s, vanished = None, False
    signs: list[MetricsPoint | Event] = [*points, *events]
    for sign in sorted(signs, key=lambda sign: sign.t):
        t, committed = sign.t, sign.committed if isinstance(sign, MetricsPoint) else 0
        if since_s is not None and isinstance(sign, ENDINGS):
            total_s, since_s, vanished = total_s + t - since_s, None, False
        elif since_s is not None and isinstance(sign, STARTS) and t - last_s > AWAY_S:
            total_s, since_s, vanished = total_s + last_s - since_s, None, True
        elif since_s is None and (isinstance(sign, TRAINING) or (vanished and committed > most)):
            since_s = t
        last_s, most = t, max(most, committed)
    return total_s if since_s is None else total_s + last_s - since_s


# --------------------------------------------------------------------------- lives


def find_lives(events: Sequence[Event], ended_s: float) -> Iterator[LifeFacts]:
    """Yield all incarnations, in the order of their starts."""
    ordered = {event.inc for event in events if isinstance(event, KilledEvent)}
    ends: dict[int, LifeEnd] = {}
    for event in events:
        if isinstance(event, LifeEnd):
            ends.setdefault(event.inc, event)
    for event in events:
        if isinstance(event, NodeStartedEvent):
            end = ends.get(event.inc)
            how = how_ended(end, by_order=event.inc in ordered)
            until_s, reason = (end.t, end.reason) if end else (ended_s, "")
            yield LifeFacts(event.node, event.inc, event.t, until_s, how, reason)


def how_ended(end: LifeEnd | None, *, by_order: bool) -> str:
    """Make one of `ENDS` of the last event of a life."""
    match end:
        case None:
            return "running"
        case NodeLostEvent():
            return "unreachable"
        case _ if by_order:
            return "killed"
        case LeftOutEvent():
            return "failed"
        case ProcessExitedEvent():
            return _how_exited(end)
        case _:
            assert_never(end)


def _how_exited(end: ProcessExitedEvent) -> str:
    match end.verdict:
        case Verdict.FINISHED:
            return "finished"
        case (
            Verdict.STOPPED
            | Verdict.PREEMPTED
            | Verdict.TAKEN_AWAY
            | Verdict.MADE_ROOM
            | Verdict.GIVEN_UP
        ):
            return "stopped"
        case Verdict.OOM:
            return "out of memory"
        case Verdict.RETRYABLE | Verdict.UNRETRYABLE | Verdict.NOT_STARTED:
            return "killed" if end.signal == signal.SIGKILL else "failed"
        case _:
            assert_never(end.verdict)


# --------------------------------------------------------------------------- workers


def _workers(points: Sequence[MetricsPoint], lives: Sequence[LifeFacts]) -> Iterator[Worker]:
    names = dict.fromkeys(life.node for life in lives if life.node.startswith("worker"))
    for name in sorted(names, key=lambda name: int(name.rpartition("-")[2])):
        seen = [point.nodes[name] for point in points if name in point.nodes]
        times = sorted(one.bpt_s for one in seen if one.bpt_s > 0)
        waits_s = [one.data_s for one in seen if one.bpt_s > 0]
        yield Worker(
            node=name,
            lives=sum(life.node == name for life in lives),
            samples=max((one.samples for one in seen), default=0),
            bpt_s=times[len(times) // 2] if times else 0.0,
            cpu_s=max((one.cpu_s for one in seen), default=0.0),
            data_s=sum(waits_s) / len(waits_s) if waits_s else 0.0,
        )


def speeds(points: Sequence[MetricsPoint], window_s: float = 0.0) -> list[tuple[float, float]]:
    """(Unix time, samples per second over the window before it, at least since the last point).

    Samples that left the model again count as none, not as less than none.
    """
    points = _settled(points)
    gained = [0, *(max(0, b.committed - a.committed) for a, b in itertools.pairwise(points))]
    sums = list(itertools.accumulate(gained))
    found, first = [], 0
    for last in range(1, len(points)):
        while first < last - 1 and points[first].t < points[last].t - window_s:
            first += 1
        took_s = points[last].t - points[first].t
        if took_s > 0:
            found.append((points[last].t, (sums[last] - sums[first]) / took_s))
    return found


def _settled(points: Sequence[MetricsPoint]) -> list[MetricsPoint]:
    """Leave out what a new master measured before it knew what was trained meanwhile.

    Its first count is that of its journal; in the next one is all that the job trained without a
    master, as if in one second. Without the first count, that gain is spread over the whole time.
    """
    pairs = [(a, b) for a, b in itertools.pairwise(points) if b.t > a.t]
    grown = sorted(rate for rate in (_rate(a, b) for a, b in pairs) if rate > 0)
    if not grown:
        return list(points)
    usual, usual_s = median(grown), median(b.t - a.t for a, b in pairs)
    kept: list[MetricsPoint] = []
    since_s = points[0].t
    for point in points:
        last = kept[-1] if kept else point
        if point.committed < last.committed or point.t - last.t > GAP * usual_s:
            since_s = point.t
        jumps = point.t > last.t and _rate(last, point) > JUMP * usual
        if jumps and point.t <= since_s + CAUGHT_UP_S:
            kept = [one for one in kept if one.t < since_s]
        kept.append(point)
    return kept


def _rate(sooner: MetricsPoint, later: MetricsPoint) -> float:
    return (later.committed - sooner.committed) / (later.t - sooner.t)
