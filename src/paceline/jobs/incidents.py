"""Incidents: what happened to a job that a job left alone does not have, and what followed.

Most went wrong. A stop, a resume and an ordered change of size are told among them, since without
these nobody understands the rest; `Incident.went_wrong` tells them apart.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, assert_never

import msgspec
from msgspec import structs

from paceline.base.node_files import CHIEF, MASTER
from paceline.jobs.history import MetricsPoint
from paceline.jobs.wording import clock, counted, seconds
from paceline.wire.events.base import Event
from paceline.wire.events.job import (
    FeatureFailedEvent,
    FeatureSlowEvent,
    FinishedEvent,
    MasterDiedEvent,
    MasterStartedEvent,
    NotKeptEvent,
    ResumedEvent,
    ScaledEvent,
    StoppedEvent,
    SupervisorStartedEvent,
)
from paceline.wire.events.nodes import (
    KILLED_BY_ORDER,
    AgentJoinedEvent,
    AgentLostEvent,
    KilledEvent,
    KillRestartEvent,
    LeftLoopEvent,
    LeftOutEvent,
    NodeLostEvent,
    NodeStartedEvent,
    PlaceDrainingEvent,
    ProcessExitedEvent,
    ProcessUpEvent,
    RelaunchEvent,
    RestartAllEvent,
    ServersChangedEvent,
    UnbackedEvent,
    Verdict,
)
from paceline.wire.events.state import (
    CutDamagedEvent,
    CutValidEvent,
    DivergedEvent,
    EpochEvent,
    GroupRunsEvent,
    RestoredEvent,
)

ENDINGS = (FinishedEvent, StoppedEvent)
TRAINING = (RestoredEvent, GroupRunsEvent)
"""Events with which training can begin, or go on."""

IncidentKind = Literal[
    "kill", "restart", "lost", "master", "restored", "place", "left", "diverged", "cut", "feature",
    "stop", "resume", "size",
]  # fmt: skip
"""Kind of an incident.

kill: a process was killed by order. restart: a worker was restarted, by a person or by a decision.
lost: a process or an agent ended on its own. master: the master died. restored: the model went back
to a cut. place: a node's place went away. left: a worker was left out, or left its loop. diverged:
members held different values. cut: a cut was damaged. feature: a feature failed, or was slow.
stop, resume, size: a person stopped or resumed the job, or the number of its nodes changed.
"""
WANTED: frozenset[IncidentKind] = frozenset(("stop", "resume", "size"))
"""Kinds of incidents in which nothing went wrong."""


class Incident(msgspec.Struct, frozen=True):
    """Incident: something happened to a job, and what followed."""

    t: float
    what: str
    done: str
    away_s: float | None = None
    """Seconds until a new process was there; None: not yet, or nothing was away."""
    idle_s: float | None = None
    """Seconds until its worker got samples again."""
    stalled_s: float | None = None
    """Seconds until more samples were in the model than before; None: they never were."""
    unseen_s: float = 0.0
    """Seconds before ``t`` in which the node was silent, and no sample came into the model: a
    machine that loses its power is noticed by its silence."""
    undone: int = 0
    """Samples that left the model again, to be trained again."""
    kind: IncidentKind = "lost"

    @property
    def went_wrong(self) -> bool:
        """Whether a healthy job that nobody touches has no such incident."""
        return self.kind not in WANTED


IncidentTakes = (
    RelaunchEvent
    | RestartAllEvent
    | AgentLostEvent
    | UnbackedEvent
    | PlaceDrainingEvent
    | NodeLostEvent
    | MasterDiedEvent
    | EpochEvent
    | LeftOutEvent
    | LeftLoopEvent
    | ProcessExitedEvent
    | DivergedEvent
    | CutDamagedEvent
    | FeatureFailedEvent
    | FeatureSlowEvent
    | StoppedEvent
    | ResumedEvent
    | ScaledEvent
)
"""Events that a job which nobody touches, and in which nothing fails, does not have."""
USUAL_S = 10.0
"""Seconds before the death of a master in which the usual speed is measured."""
TRAINED_ON = 0.5
"""Part of the usual speed from which on the workers have trained without a master."""
_Again = RelaunchEvent | RestartAllEvent
"""Events after which processes start again."""


def find_incidents(  # noqa: C901, PLR0912
    events: Sequence[Event], points: Sequence[MetricsPoint], mode: str
) -> Iterator[Incident]:
    """Yield all incidents of a job, in order; ``mode``: see `JobSpec`."""
    orders = dict(filter(None, map(_order, events)))
    silent = {one.inc: one.silent_s or 0.0 for one in events if isinstance(one, NodeLostEvent)}
    taken = [(at, one) for at, one in enumerate(events) if isinstance(one, IncidentTakes)]
    for index, event in taken:
        later = events[index + 1 :]
        match event:
            case RelaunchEvent() | RestartAllEvent():
                told = _started_again(event, orders, later, points)
                yield _with_silence(told, silent.get(event.inc, 0.0), points)
            case AgentLostEvent(node=node):
                back_s = _next(later, AgentJoinedEvent, node=node)
                done = "a new agent took over"
                yield _incident(event, f"agent of {node} lost", done, back_s, points)
            case UnbackedEvent() | PlaceDrainingEvent():
                gone = isinstance(event, UnbackedEvent)
                done = "its agent worked on" if gone else "it was told to leave"
                told = _incident(event, event.sentence(), done, None, points)
                yield structs.replace(told, kind="place")
            case NodeLostEvent():
                yield from _dropped(event, events[:index], later, points)
            case MasterDiedEvent():
                yield _master_died(event, events[:index], later, points)
            case EpochEvent():
                yield from _restored(event, later, points)
                yield from _resumed_before(event, events[:index], later, points)
            case LeftOutEvent():
                yield _left_out(event, points)
            case LeftLoopEvent():
                alone = mode == "bsp" or not _left_by_all(event, events)
                yield from _left(event, points, alone=alone)
            case ProcessExitedEvent():
                yield from _returned_alone(event, events, points)
            case DivergedEvent(reason=reason):
                back_s = _next(later, *TRAINING)
                done = "those that differ copied from the others" if back_s else "nobody went on"
                told = _incident(event, reason, done, back_s, points)
                yield structs.replace(told, kind="diverged")
            case CutDamagedEvent(reason=why):
                told = _incident(event, why, "an older cut is used", None, points)
                yield structs.replace(told, kind="cut")
            case FeatureFailedEvent() | FeatureSlowEvent():
                yield _of_feature(event)
            case StoppedEvent():
                yield _stopped(event, later)
            case ResumedEvent():
                yield _resumed(event.t, later, points)
            case ScaledEvent():
                yield from _scaled(event, later)
            case _:
                assert_never(event)


def _started_again(
    event: _Again,
    orders: dict[int, tuple[IncidentKind, str]],
    later: Sequence[Event],
    points: Sequence[MetricsPoint],
) -> Incident:
    kind, cause = orders.get(event.inc, ("lost", event.cause))
    back_s = _next(later, ProcessUpEvent, node=event.node)
    everyone = isinstance(event, RestartAllEvent)
    begun = "all workers started again" if everyone else "started again"
    due = "all to be started again" if everyone else "to be started again"
    what = f"{event.node}: {cause}"
    told = _incident(event, what, begun if back_s else due, back_s, points)
    waited_s = None if everyone else idle_s(event, points)
    return structs.replace(told, kind=kind, idle_s=waited_s)


def _order(event: Event) -> tuple[int, tuple[IncidentKind, str]] | None:
    """Say why a life ended that had to end, with the kind of incident; by the life."""
    if isinstance(event, KilledEvent) and event.node != MASTER:
        return event.inc, ("kill", KILLED_BY_ORDER)
    if isinstance(event, KillRestartEvent):
        by = "restarted by order" if event.by_person else "restarted by decision"
        return event.inc, ("restart", by)
    return None


def _master_died(
    died: MasterDiedEvent,
    before: Sequence[Event],
    later: Sequence[Event],
    points: Sequence[MetricsPoint],
) -> Incident:
    back_s = _next(later, MasterStartedEvent)
    done = "a new one went on from the journal" if back_s else "no other one began"
    since = (e for e in reversed(before) if isinstance(e, MasterStartedEvent | KilledEvent))
    killed = next((e for e in since if isinstance(e, MasterStartedEvent) or e.node == MASTER), None)
    if isinstance(killed, KilledEvent):
        told = _incident(died, f"master: {KILLED_BY_ORDER}", done, back_s, points)
        told = structs.replace(told, kind="kill")
    else:
        told = _incident(died, f"master died ({died.reason})", done, back_s, points)
        told = structs.replace(told, kind="master")
    if not _trained_on(died.t, points):
        return told
    return structs.replace(told, done=f"{done}; training went on meanwhile", stalled_s=None)


def _trained_on(t: float, points: Sequence[MetricsPoint]) -> bool:
    """Tell whether about as much was trained around a time without a master as before it."""
    before = [point for point in points if t - USUAL_S <= point.t <= t]
    later = (p for p in points if p.t > t and before and p.committed > before[-1].committed)
    after = next(later, None)
    if after is None or before[-1].t <= before[0].t:
        return False
    first, last = before[0], before[-1]
    usual = (last.committed - first.committed) / (last.t - first.t)
    now = (after.committed - last.committed) / (after.t - last.t)
    return usual > 0 and now >= TRAINED_ON * usual


def _stopped(event: StoppedEvent, later: Sequence[Event]) -> Incident:
    """Tell of a stop, and what of the model is on disk then."""
    rest = _until(later, ResumedEvent, SupervisorStartedEvent)
    lost = next((one.clause for one in rest if isinstance(one, NotKeptEvent)), "")
    cuts = [one.cut_no for one in rest if isinstance(one, CutValidEvent)]
    last = f"its workers ended their step, cut {cuts[-1]} was made" if cuts else ""
    done = "; ".join(filter(None, (last, lost))) or "its processes ended"
    return Incident(event.t, f"stopped by {event.clause}", done, kind="stop")


def _resumed(t: float, later: Sequence[Event], points: Sequence[MetricsPoint]) -> Incident:
    """Tell of a resume: with what the job went on, and when."""
    rest = _until(later, ResumedEvent)
    loaded = next((one for one in rest if isinstance(one, EpochEvent)), None)
    sizes = {one.role: one.count for one in rest if isinstance(one, ScaledEvent) and _at_start(one)}
    if loaded is None:
        done = "started its processes again"
    else:
        done = f"went on from {loaded.cut}" if loaded.cut_no else "began from the start"
    if sizes:
        done += f", with {' and '.join(counted(n, role) for role, n in sizes.items())}"
    began = TRAINING if loaded is not None else (ProcessUpEvent,)
    back_s = next((one.t for one in rest if isinstance(one, began)), None)
    away_s = None if back_s is None else back_s - t
    return Incident(t, "resumed", done, away_s, stalled_s=stalled_s(t, points), kind="resume")


def _resumed_before(
    event: EpochEvent,
    before: Sequence[Event],
    later: Sequence[Event],
    points: Sequence[MetricsPoint],
) -> Iterator[Incident]:
    """Tell of a resume in a file of before, which has no line of its own about that."""
    if not event.resumed:
        return
    runs = (e for e in reversed(before) if isinstance(e, ResumedEvent | StoppedEvent | EpochEvent))
    if not isinstance(next(runs, None), ResumedEvent):
        yield _resumed(event.t, [event, *later], points)


def _until(later: Sequence[Event], *kinds: type[Event]) -> Sequence[Event]:
    """Return the events before the first one of these kinds."""
    end = next((at for at, one in enumerate(later) if isinstance(one, kinds)), len(later))
    return later[:end]


def _at_start(event: ScaledEvent) -> bool:
    """Tell whether a job was resumed with so many nodes, and nobody changed them while it ran."""
    return event.before is None and not event.host


def _scaled(event: ScaledEvent, later: Sequence[Event]) -> Iterator[Incident]:
    """Tell of another number of nodes while the job runs, and when that was in effect."""
    if _at_start(event):
        return
    what = f"{event.node} joins from {event.host}"
    if not event.host:
        what = f"{event.role}s {event.before} -> {event.count}"
    kinds = (GroupRunsEvent, ServersChangedEvent)
    effect = next((one for one in later if isinstance(one, (*kinds, ScaledEvent))), None)
    done = effect.clause if isinstance(effect, kinds) else "its nodes start, or end"
    away_s = effect.t - event.t if isinstance(effect, kinds) else None
    yield Incident(event.t, what, done, away_s, kind="size")


def _restored(
    event: EpochEvent, later: Sequence[Event], points: Sequence[MetricsPoint]
) -> Iterator[Incident]:
    if event.is_restore:
        back_s = _next(later, *TRAINING)
        done = f"the model and the ledger went back to {event.cut}"
        told = _incident(event, "state restored", done, back_s, points)
        yield structs.replace(told, undone=event.undone, kind="restored")


def _of_feature(event: FeatureFailedEvent | FeatureSlowEvent) -> Incident:
    if isinstance(event, FeatureFailedEvent):
        what = f"feature {event.feature} failed ({event.error})"
        return Incident(event.t, what, "it was left out", kind="feature")
    return Incident(event.t, event.clause, "it went on", kind="feature")


def _incident(
    event: Event,
    what: str,
    done: str,
    back_s: float | None,
    points: Sequence[MetricsPoint],
) -> Incident:
    away_s = None if back_s is None else back_s - event.t
    return Incident(event.t, what, done, away_s, stalled_s=stalled_s(event.t, points))


def _dropped(
    lost: NodeLostEvent,
    before: Sequence[Event],
    later: Sequence[Event],
    points: Sequence[MetricsPoint],
) -> Iterator[Incident]:
    """A worker that had joined from another machine and was lost, so that nothing restarts it.

    The loss of any other node has a relaunch, or ends the job.
    """
    joins = (e for e in reversed(before) if isinstance(e, ScaledEvent) and e.node == lost.node)
    joined = next(joins, None)
    again = (e for e in later if isinstance(e, RelaunchEvent | RestartAllEvent))
    if joined is None or any((e.node, e.inc) == (lost.node, lost.inc) for e in again):
        return
    back_s = _next(later, NodeStartedEvent, node=lost.node)
    anew_s = _next(later, ScaledEvent, node=lost.node)
    done = "it came back, and trains again" if back_s else "the others went on"
    if anew_s is not None:
        back_s, done = anew_s, f"another worker joined as {lost.node}"
    what = f"{lost.node}, which had joined from {joined.host}, lost{lost.after_colon}"
    told = _incident(lost, what, done, back_s, points)
    yield _with_silence(told, lost.silent_s or 0.0, points)


def _left(
    event: LeftLoopEvent, points: Sequence[MetricsPoint], *, alone: bool
) -> Iterator[Incident]:
    """A worker that left its loop while others trained on, for a second at least; or miscounted."""
    what = f"{event.node} left its loop over job.batches {event.clause}"
    after = next((point for point in points if point.t > event.t), None)
    if event.miscount:
        yield Incident(event.t, what, event.doubt, kind="left")
    elif alone and after is not None and points[-1].committed > after.committed:
        yield Incident(event.t, what, "the others trained on", kind="left")


def _left_out(event: LeftOutEvent, points: Sequence[MetricsPoint]) -> Incident:
    """A worker that cannot take part, without which the others went on."""
    done = f"{event.node} was left out, the others went on"
    if event.node == CHIEF:
        done += (
            "; with all-reduce the first of the others is the chief from then on, on servers none"
        )
    return structs.replace(_incident(event, event.reason, done, None, points), kind="left")


def _returned_alone(
    event: ProcessExitedEvent, events: Sequence[Event], points: Sequence[MetricsPoint]
) -> Iterator[Incident]:
    """A worker whose script returned between two loops, while others trained on."""
    if event.verdict is not Verdict.FINISHED:
        return
    within = any(isinstance(e, LeftLoopEvent) and e.inc == event.inc for e in events)
    after = next((point for point in points if point.t > event.t), None)
    if within or after is None:
        return
    if points[-1].committed > after.committed:
        what = f"the script of {event.node} returned"
        done = "the others trained on without it: have all workers decide with job.agree to stop"
        yield Incident(event.t, what, done, kind="left")


def _left_by_all(left: Event, events: Sequence[Event]) -> bool:
    """Tell whether all workers of a run left their loops.

    Without common steps each does so at its own time, though all have the same condition.
    """
    bounds = (*ENDINGS, SupervisorStartedEvent)
    bounds_s = [event.t for event in events if isinstance(event, bounds)]
    run = bisect.bisect_left(bounds_s, left.t)
    started = {event.node for event in events if isinstance(event, NodeStartedEvent)}
    leavers = {
        event.node
        for event in events
        if isinstance(event, LeftLoopEvent) and bisect.bisect_left(bounds_s, event.t) == run
    }
    return {node for node in started if node.startswith("worker")} <= leavers


def _next(later: Sequence[Event], *kinds: type[Event], node: str = "") -> float | None:
    found = (event.t for event in later if isinstance(event, kinds) and event.node == node)
    return next(found, None)


def stalled_s(t: float, points: Sequence[MetricsPoint]) -> float | None:
    """Seconds from ``t`` until more samples are in the model than were at ``t``."""
    before = next((point.committed for point in reversed(points) if point.t <= t), 0)
    grown = (point.t for point in points if point.t > t and point.committed > before)
    until_s = next(grown, None)
    return None if until_s is None else until_s - t


def _with_silence(told: Incident, silent_s: float, points: Sequence[MetricsPoint]) -> Incident:
    """Count an incident from the last step before its node fell silent."""
    if not silent_s:
        return told
    return structs.replace(told, unseen_s=min(silent_s, stood_s(told.t, points)))


def stood_s(t: float, points: Sequence[MetricsPoint]) -> float:
    """Seconds before ``t`` in which no more samples came into the model."""
    seen = [point for point in points if point.t <= t]
    grown = [b.t for a, b in itertools.pairwise(seen) if b.committed > a.committed]
    return t - grown[-1] if grown else 0.0


def idle_s(lost: Event, points: Sequence[MetricsPoint]) -> float | None:
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


# --------------------------------------------------------------------------- in words


def describe(incident: Incident, started_s: float) -> str:
    """Write one incident in a clause."""
    cost = costs(incident)
    what = f"at {clock(incident.t - started_s)} {incident.what}, {incident.done}"
    return f"{what} ({', '.join(cost)})" if cost else what


def costs(incident: Incident) -> list[str]:
    """Say what an incident cost, as far as it was measured."""
    found = []
    if incident.away_s is not None:
        found.append(f"back after {seconds(incident.away_s)}")
    if incident.idle_s is not None:
        found.append(f"had samples again within {seconds(incident.idle_s)}")
    if incident.stalled_s is not None:
        # Counts are taken once per second: they may have grown up to a second earlier.
        stood = f", after {seconds(incident.unseen_s)} of silence" if incident.unseen_s else ""
        found.append(f"the job went on within {seconds(incident.stalled_s)}{stood}")
    if incident.undone:
        found.append(f"{incident.undone:,} samples trained again")
    return found
