"""What became of a job, worked out from its files: pure but for `read_facts`.

Every number is measured: times of events to the millisecond, counts of samples once per second.
"""

import bisect
import itertools
import signal
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.base.node_files import CHIEF
from paceline.base.processes import is_locked
from paceline.jobs.decisions import Story, read_log, stories
from paceline.jobs.history import Event, Point, is_restore, read_events, read_metrics
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.wire import spec as specs
from paceline.wire.spec import JobSpec

ENDS = ("finished", "stopped", "killed", "out of memory", "failed", "unreachable", "running")
"""How a life can end; ``running``: it has not."""


ENDINGS = ("finished", "stopped", "failed")
STARTS = ("supervisor_started", "master_started")
AWAY_S = 10.0
"""With nothing heard for longer before a start, nobody was there; measurements come each second,
in jobs of weeks less often."""

ORDERS = {"killed": "killed by order", "kill_restart": "restarted by decision"}
"""Why a life ended that had to end."""


class Life(msgspec.Struct, frozen=True):
    """One incarnation of a node; times are Unix times."""

    node: str
    inc: int
    start_s: float
    end_s: float
    how: str
    reason: str = ""


class Incident(msgspec.Struct, frozen=True):
    """Something went wrong, and what followed."""

    t: float
    what: str
    done: str
    away_s: float | None = None
    """Until a new process was there; None: not yet, or nothing was away."""
    idle_s: float | None = None
    """Until its worker got samples again."""
    stalled_s: float | None = None
    """Until more samples were in the model than before; None: they never were."""
    undone: int = 0
    """Samples that left the model again, to be trained anew."""


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
    """From the first time that all servers (or members) held the model to the end, without the
    time in which no process of the job was there."""
    committed: int
    lives: tuple[Life, ...]
    incidents: tuple[Incident, ...]
    workers: tuple[Worker, ...]
    events: tuple[Event, ...]
    points: tuple[Point, ...]
    decisions: tuple[Story, ...] = ()
    """What was decided about stragglers, action by action."""
    stacks: tuple[tuple[str, str], ...] = ()
    """By node what the threads of its processes that hung were doing."""
    runs: bool = False
    """Whether it has not ended and its supervisor lives."""

    @property
    def samples_per_s(self) -> float:
        """Mean over the training."""
        return self.committed / self.training_s if self.training_s > 0 else 0.0

    @property
    def num_relaunches(self) -> int:
        """Training processes that were started again."""
        return sum(event.event in ("relaunch", "restart_all") for event in self.events)

    @property
    def num_restores(self) -> int:
        """Times that the servers went back to a cut."""
        return sum(is_restore(event) for event in self.events)


def read_facts(job: JobDir) -> Facts:
    """Read a job's files.

    Raises:
        PermanentError: the spec is damaged.
        ConfigError: the decision log is of another version.
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
    facts = structs.replace(facts, stacks=tuple(stacks), runs=runs)
    if not job.decisions.exists():
        return facts
    return structs.replace(facts, decisions=tuple(stories(read_log(job.decisions))))


def work_out(
    job: JobDir,
    spec: JobSpec,
    outcome: Outcome | None,
    events: Sequence[Event],
    points: Sequence[Point],
    *,
    launched_s: float,
) -> Facts:
    """Work out what the events and measurements say; ``launched_s``: see `JobDir.launched_s`."""
    times = [*(event.t for event in events), *(point.t for point in points)]
    ended_s = max(times, default=launched_s)
    committed = outcome.committed if outcome else (points[-1].committed if points else 0)
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


def trained_s(events: Sequence[Event], points: Sequence[Point]) -> float:
    """Seconds in which the job trained, or would have but for what went wrong.

    A job that was stopped, or whose processes all died, trains again when it is resumed and its
    model is loaded. A master that is replaced in a moment interrupts nothing.
    """
    signs = [*((e.t, e.event, 0) for e in events), *((p.t, "", p.committed) for p in points)]
    total_s, last_s, most = 0.0, 0.0, 0
    since_s, vanished = None, False
    for t, what, committed in sorted(signs):
        if since_s is not None and what in ENDINGS:
            total_s, since_s, vanished = total_s + t - since_s, None, False
        elif since_s is not None and what in STARTS and t - last_s > AWAY_S:
            total_s, since_s, vanished = total_s + last_s - since_s, None, True
        elif since_s is None and (what in _TRAINING or (vanished and committed > most)):
            since_s = t
        last_s, most = t, max(most, committed)
    return total_s if since_s is None else total_s + last_s - since_s


# --------------------------------------------------------------------------- lives


def find_lives(events: Sequence[Event], ended_s: float) -> Iterator[Life]:
    """All incarnations, in the order of their starts."""
    ordered = {event.inc for event in events if event.event == "killed"}
    ends: dict[int, Event] = {}
    for event in events:
        if event.event in ("process_exited", "node_lost", "left_out"):
            ends.setdefault(event.inc, event)
    for event in events:
        if event.event == "node_started":
            end = ends.get(event.inc)
            how = how_ended(end, by_order=event.inc in ordered)
            until_s, reason = (end.t, end.reason) if end else (ended_s, "")
            yield Life(event.node, event.inc, event.t, until_s, how, reason)


def how_ended(end: Event | None, *, by_order: bool) -> str:
    """One of `ENDS`, from the last event of a life."""
    if end is None:
        return "running"
    if end.event == "node_lost":
        return "unreachable"
    if by_order:
        return "killed"
    if end.verdict in _HOW:
        return _HOW[end.verdict]
    return "killed" if end.signal == signal.SIGKILL else "failed"


_HOW = {
    "finished": "finished",
    "stopped": "stopped",
    "preempted": "stopped",
    "given up": "stopped",
    "oom": "out of memory",
}
"""By the verdict on its end."""


# --------------------------------------------------------------------------- incidents


def find_incidents(
    events: Sequence[Event], points: Sequence[Point], mode: str
) -> Iterator[Incident]:
    """Everything that a healthy job does not have, in order; ``mode``: see `JobSpec`."""
    ordered = {event.inc: ORDERS[event.event] for event in events if event.event in ORDERS}
    for index, event in enumerate(events):
        later = events[index + 1 :]
        match event.event:
            case "relaunch":
                what = ordered.get(event.inc) or _before(event.reason, "; ")
                back_s = _next(later, "process_up", node=event.node)
                done = "started again" if back_s else "to be started again"
                told = _incident(event, f"{event.node}: {what}", done, back_s, points)
                yield structs.replace(told, idle_s=idle_s(event, points))
            case "restart_all":
                what = ordered.get(event.inc) or _before(event.reason, "; ")
                back_s = _next(later, "process_up", node=event.node)
                done = "all workers started again" if back_s else "all to be started again"
                yield _incident(event, f"{event.node}: {what}", done, back_s, points)
            case "agent_lost":
                back_s = _next(later, "agent_joined", node=event.node)
                what = f"agent of {event.node} lost"
                yield _incident(event, what, "a new agent took over", back_s, points)
            case "master_died":
                back_s = _next(later, "master_started")
                what = f"master died ({event.reason})"
                yield _incident(event, what, "a new one went on from the journal", back_s, points)
            case "epoch" if is_restore(event):
                back_s = _next(later, *_TRAINING)
                cut = event.reason.rpartition("from ")[2]
                done = f"the model and the ledger went back to {cut}"
                yield _incident(event, "state restored", done, back_s, points)
            case "left_out":
                done = f"{event.node} was left out, the others went on"
                if event.node == CHIEF:
                    done += "; what the script does where job.is_chief was not done"
                yield _incident(event, event.reason, done, None, points)
            case "left_loop" if mode == "bsp" or not _left_by_all(event, events):
                yield from _left_alone(event, points)
            case "diverged":
                back_s = _next(later, *_TRAINING)
                done = "those that differ copied from the others" if back_s else "nobody went on"
                yield _incident(event, event.reason, done, back_s, points)
            case "cut_damaged":
                yield _incident(event, event.reason, "an older cut is used", None, points)


def _incident(
    event: Event,
    what: str,
    done: str,
    back_s: float | None,
    points: Sequence[Point],
) -> Incident:
    away_s = None if back_s is None else back_s - event.t
    stall_s = stalled_s(event.t, points)
    return Incident(event.t, what, done, away_s, stalled_s=stall_s, undone=event.undone)


def _left_alone(event: Event, points: Sequence[Point]) -> Iterator[Incident]:
    """A worker that left its loop while others trained on, for a second at least."""
    after = next((point for point in points if point.t > event.t), None)
    if after is not None and points[-1].committed > after.committed:
        what = f"{event.node} left its loop over job.batches {event.reason}"
        yield Incident(event.t, what, "the others trained on")


def _left_by_all(left: Event, events: Sequence[Event]) -> bool:
    """Whether all workers of a run left their loops.

    Without common steps each does so at its own time, though all have the same condition.
    """
    bounds_s = [event.t for event in events if event.event in (*ENDINGS, "supervisor_started")]
    run = bisect.bisect_left(bounds_s, left.t)
    started = {event.node for event in events if event.event == "node_started"}
    leavers = {
        event.node
        for event in events
        if event.event == "left_loop" and bisect.bisect_left(bounds_s, event.t) == run
    }
    return {node for node in started if node.startswith("worker")} <= leavers


_TRAINING = ("restored", "group_runs")
"""Events that say that training can begin, or go on."""


def _before(text: str, separator: str) -> str:
    return text.rpartition(separator)[0] or text


def _next(later: Sequence[Event], *names: str, node: str = "") -> float | None:
    found = (event.t for event in later if event.event in names and event.node == node)
    return next(found, None)


def stalled_s(t: float, points: Sequence[Point]) -> float | None:
    """Seconds from ``t`` until more samples are in the model than were at ``t``."""
    before = next((point.committed for point in reversed(points) if point.t <= t), 0)
    grown = (point.t for point in points if point.t > t and point.committed > before)
    until_s = next(grown, None)
    return None if until_s is None else until_s - t


def idle_s(lost: Event, points: Sequence[Point]) -> float | None:
    """Seconds from the loss of a worker until it was seen to have got more samples."""
    seen = [
        (point.t, point.nodes[lost.node].samples) for point in points if lost.node in point.nodes
    ]
    before = max((samples for t, samples in seen if t <= lost.t), default=0)
    later = [(t, samples) for t, samples in seen if t > lost.t]
    if not later:
        return None
    # The last report of the lost life may be among the later ones: it is no sign of the new one.
    before = max(before, later[0][1])
    until_s = next((t for t, samples in later if samples > before), None)
    return None if until_s is None else until_s - lost.t


# --------------------------------------------------------------------------- workers


def _workers(points: Sequence[Point], lives: Sequence[Life]) -> Iterator[Worker]:
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


def speeds(points: Sequence[Point], window_s: float = 0.0) -> list[tuple[float, float]]:
    """(Unix time, samples per second over the window before it, at least since the last point).

    Samples that left the model again count as none, not as less than none.
    """
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
