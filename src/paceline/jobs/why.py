"""Why a job is slow, waits, has its size, and ended: one answer, of three sentences at most.

The core answers from the outcome, the events and what the master shows. Features answer by their
part `reasons`. A sentence says what was recorded or measured; what nobody has looked at is said to
be unknown.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from paceline.base.features import call_parts
from paceline.jobs.facts import Facts
from paceline.jobs.incidents import describe
from paceline.jobs.outcome import End, Outcome
from paceline.jobs.slowness import headline, recovered
from paceline.jobs.wording import clock, counted, milliseconds, percent, seconds
from paceline.wire.client import JobStatus, NodeStatus
from paceline.wire.events.job import MasterStartedEvent, ResumedEvent, ScaledEvent
from paceline.wire.events.nodes import LeftOutEvent
from paceline.wire.events.state import (
    CutValidEvent,
    GroupRunsEvent,
    GroupStuckEvent,
    MemberSlowEvent,
    RestoredEvent,
)

MOST = 3
"""Sentences of an answer, at most."""
LEAST_SHARE = 0.1
"""Part of a batch, or of the training, from which on a wait is named as a cause of slowness."""
NOT_UP = ("pending", "refused", "starting", "backing off")
"""States of nodes that are on their way."""


class WhyQuestion(IntEnum):
    """WhyQuestion that a sentence answers; what a person most likely asks comes first."""

    ENDED = 0
    WAITS = 1
    SLOW = 2
    WRONG = 3
    SIZE = 4


class Reason(NamedTuple):
    """Sentence that answers a question about a job."""

    question: WhyQuestion
    sentence: str
    more: str = ""
    """Command that tells the whole account; empty: there is no more."""
    is_found: bool = True
    """False: the sentence says that there is nothing to tell, or that nothing is known."""


class AskedWhy(NamedTuple):
    """A job about which somebody asks: what the part ``reasons`` of a feature gets."""

    job: str
    """Id of the job, or its beginning."""
    facts: Facts | None
    """None: the job has no folder, so it has not been started."""
    status: JobStatus | None
    """Answer of its master; None: none answers."""


def reasons_of(asked: AskedWhy, *, core: bool = True) -> list[Reason]:
    """Collect all answers, the most important first; ``core``: with those of the core.

    Of a question that has an answer, what says that there is none is left out.
    """
    found: list[Reason] = []

    def add(reason: Reason) -> None:
        if not isinstance(reason, Reason):
            raise TypeError(f"a reason is {reason!r:.100}, and no paceline.jobs.why.Reason")
        found.append(reason)

    call_parts("reasons", asked, add)
    if asked.facts is not None and core:
        found += _of_core(asked.facts, asked.status)
    known = {reason.question for reason in found if reason.is_found}
    kept = [one for one in found if one.is_found or one.question not in known]
    first_unknown = {one.question: one for one in reversed(kept) if not one.is_found}
    kept = [one for one in kept if one.is_found or one is first_unknown[one.question]]
    ended_well = asked.facts is not None and _is_well(asked.facts)
    return sorted(kept, key=lambda one: _rank(one, ended_well=ended_well))


def _rank(reason: Reason, *, ended_well: bool) -> tuple[bool, float]:
    """Sort by what a person most likely asks; a good end is no question where it was slow."""
    late = ended_well and reason.question is WhyQuestion.ENDED
    return not reason.is_found, WhyQuestion.SLOW + 0.5 if late else reason.question


def _is_well(facts: Facts) -> bool:
    return facts.outcome is not None and facts.outcome.how is End.FINISHED


def why_of(facts: Facts, status: JobStatus | None = None) -> tuple[str, ...]:
    """Answer in at most `MOST` sentences why a job is slow, waits, has its size, and ended."""
    found = reasons_of(AskedWhy(facts.job_id, facts, status))
    return tuple(reason.sentence for reason in found[:MOST])


def found_about(facts: Facts) -> tuple[str, ...]:
    """Return what features found out about slowness and size; measurements need not be read."""
    found = reasons_of(AskedWhy(facts.job_id, facts, None), core=False)
    asked = (WhyQuestion.SLOW, WhyQuestion.SIZE)
    return tuple(one.sentence for one in found if one.is_found and one.question in asked)


def why_now(status: JobStatus) -> str:
    """Say in one line why a running job is slow, or waits for nodes; empty: it does not.

    From the master's answer alone: the live view asks twice a second.
    """
    if status.slow:
        return headline(status.slow, status.started_s)
    return _nodes_awaited(status) or recovered(status.relieved, status.started_s)


# --------------------------------------------------------------------------- the core's answers


def _of_core(facts: Facts, status: JobStatus | None) -> Iterator[Reason]:
    yield from _why_ended(facts)
    if facts.runs:
        yield from _why_it_waits(facts, status)
    if facts.spec.traits.trains:
        yield from _why_slow(facts, status)
    yield from _what_went_wrong(facts)
    yield from _why_this_size(facts)


def _why_ended(facts: Facts) -> Iterator[Reason]:
    outcome = facts.outcome
    if outcome is not None:
        yield Reason(WhyQuestion.ENDED, _ended(facts, outcome), f"paceline report {facts.job_id}")
        return
    if facts.runs:
        return
    go_on = f"go on with `paceline run --resume {facts.job_id}`"
    if any(isinstance(event, MasterStartedEvent) for event in facts.events):
        at = clock(facts.ended_s - facts.started_s)
        told = (
            f"It was interrupted at {at}: all its processes died, and none could say why; {go_on}."
        )
        yield Reason(WhyQuestion.ENDED, told, f"paceline logs {facts.job_id}")
    else:
        told = f"It has never begun: its supervisor died before a master answered; {go_on}."
        yield Reason(WhyQuestion.ENDED, told, f"paceline logs {facts.job_id} --node supervisor")


HOW: dict[End, str] = {
    End.FINISHED: "It finished: its script returned, and all samples are in the model",
    End.NOT_TRAINED: "It trained nothing: its script returned without a loop over job.batches",
    End.STOPPED_EARLY: "It ended early: its script returned before its loops had all their samples",
    End.STOPPED: "It was stopped by `paceline stop`",
    End.INTERRUPTED: "It was stopped by Ctrl-C",
    End.TERMINATED: "It was stopped by SIGTERM",
    End.WARNED: "It was stopped by SIGUSR1",
    End.SCRIPT_FAILED: "It failed by an error of its script",
    End.FAILED: "It failed",
}
"""Why a job ended, by its end."""


def _ended(facts: Facts, outcome: Outcome) -> str:
    how = outcome.how
    told = HOW.get(how, f"It ended: {how}")
    if how is End.FINISHED and not facts.spec.traits.trains:
        told = "It finished: its script returned"
    at = f" (at {clock(outcome.jct_s)}, exit code {outcome.exit_code})"
    error = f": {outcome.error.rstrip('.')}" if outcome.error else ""
    return f"{told}{at}{error}{_remedy(facts, outcome)}."


def _remedy(facts: Facts, outcome: Outcome) -> str:
    """Say how it can go on, unless its error has said so."""
    if outcome.state == "finished" or "--resume" in outcome.error:
        return ""
    mended = "when that is mended, " if outcome.state == "failed" else ""
    lost = ""
    if outcome.kept is not None and outcome.kept < outcome.committed:
        lost = f"; its last {outcome.committed - outcome.kept:,} samples are in no cut on disk"
    return f"{lost}; {mended}go on with `paceline run --resume {facts.job_id}`"


def _why_it_waits(facts: Facts, status: JobStatus | None) -> Iterator[Reason]:
    if status is None:
        began = any(isinstance(event, MasterStartedEvent) for event in facts.events)
        told = "It is starting: its master has not answered so far."
        if began:
            told = "Its master does not answer, and is started again; workers train on meanwhile."
        more = f"paceline logs {facts.job_id} --node master"
        yield Reason(WhyQuestion.WAITS, told, more)
        return
    if status.waits_for:
        yield Reason(WhyQuestion.WAITS, f"It does not train now: {status.waits_for}.")
    elif awaited := _nodes_awaited(status):
        yield Reason(WhyQuestion.WAITS, f"{awaited[0].upper()}{awaited[1:]}.")
    goes_on = (CutValidEvent, GroupRunsEvent, RestoredEvent)
    signs = (MemberSlowEvent, GroupStuckEvent)
    last = next((e for e in reversed(facts.events) if isinstance(e, (*signs, *goes_on))), None)
    if isinstance(last, signs):
        at = clock(last.t - facts.started_s)
        yield Reason(WhyQuestion.WAITS, f"At {at} it stood still: {last.clause}.")


def _nodes_awaited(status: JobStatus) -> str:
    """Name nodes that are not there yet, with the platform's words; empty: all are."""
    away = [node for node in status.nodes if node.state in NOT_UP]
    if not away:
        return ""
    names = ", ".join(node.node for node in away[:MOST])
    more = f" and {len(away) - MOST} more" if len(away) > MOST else ""
    why = next((f": {node.note}" for node in away if node.note), "")
    verb = "is" if len(away) == 1 else "are"
    words = ", ".join(dict.fromkeys(node.state for node in away))
    return f"{names}{more} {verb} {words}{why}"


def _why_slow(facts: Facts, status: JobStatus | None) -> Iterator[Reason]:
    """Name waits for data and time lost to failures, as measured; else say that nobody looked."""
    yield from _data_waits(facts, status)
    lost_s = facts.stalled_s
    if facts.training_s > 0 and lost_s >= LEAST_SHARE * facts.training_s:
        told = (
            f"Failures and kills kept new samples out of the model for {seconds(lost_s)} at most, "
            f"of {seconds(facts.training_s)} of training."
        )
        yield Reason(WhyQuestion.SLOW, told, f"paceline report {facts.job_id}")
    told = "Whether a node was slow is not known: their times were not compared."
    yield Reason(WhyQuestion.SLOW, told, is_found=False)


def _what_went_wrong(facts: Facts) -> Iterator[Reason]:
    """Name the failure or kill that cost most, and say how many others there were."""
    troubles = facts.troubles
    if not troubles:
        return
    worst = max(troubles, key=lambda one: (one.unseen_s + (one.stalled_s or 0.0), one.t))
    told, more = describe(worst, facts.started_s), f"paceline report {facts.job_id}"
    others = f"; {len(troubles) - 1} more went wrong at less cost" if len(troubles) > 1 else ""
    yield Reason(WhyQuestion.WRONG, f"{told[0].upper()}{told[1:]}{others}.", more)


def _data_waits(facts: Facts, status: JobStatus | None) -> Iterator[Reason]:
    nodes: Sequence[NodeStatus] = status.nodes if status is not None else ()
    if status is not None:
        times = [(one.data_s, one.bpt_s) for one in nodes if one.role == "worker" and one.bpt_s]
    else:
        times = [(one.data_s, one.bpt_s) for one in facts.workers if one.bpt_s]
    if not times:
        return
    wait_s, batch_s = (sum(values) / len(times) for values in zip(*times, strict=True))
    if wait_s >= LEAST_SHARE * batch_s:
        told = (
            f"Its workers {'wait' if facts.runs else 'waited'} {milliseconds(wait_s)} of each "
            f"batch's {milliseconds(batch_s)} for data ({percent(wait_s, batch_s)})."
        )
        yield Reason(WhyQuestion.SLOW, told, f"paceline status {facts.job_id}")


def _why_this_size(facts: Facts) -> Iterator[Reason]:
    """Say who asked for the number of nodes that the job has, and which were left out."""
    changes = [event for event in facts.events if isinstance(event, ScaledEvent)]
    for event in changes[-1:]:
        has = "has" if facts.outcome is None else "had"
        since = clock(event.t - facts.started_s)
        told = f"It {has} {counted(event.count, event.role)} since {since}: {_changed_by(event)}."
        yield Reason(WhyQuestion.SIZE, told)
    for left in [e for e in _of_this_run(facts) if isinstance(e, LeftOutEvent)][-1:]:
        at = clock(left.t - facts.started_s)
        yield Reason(WhyQuestion.SIZE, f"{left.node} was left out at {at}: {left.reason}.")
    has = "has" if facts.outcome is None else "had"
    spec = facts.spec
    parts = [counted(spec.workers.count, "worker")]
    parts += [counted(spec.num_servers, "server")] if spec.num_servers else []
    told = f"It {has} {' and '.join(parts)}, as it was started with."
    yield Reason(WhyQuestion.SIZE, told, is_found=False)


def _of_this_run(facts: Facts) -> Sequence[object]:
    """Return the events since the job was resumed last."""
    starts = [at for at, one in enumerate(facts.events) if isinstance(one, ResumedEvent)]
    return facts.events[starts[-1] if starts else 0 :]


def _changed_by(event: ScaledEvent) -> str:
    if event.host:
        return f"{event.node} joined from {event.host}"
    if event.before is None:
        return "it was resumed with so many"
    return f"an order changed {event.before} to {event.count}"
