"""Why a job is slow, as far as nodes are to blame: which, since when, and what was done."""

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.stragglers.spells import spells_of
from paceline.features.stragglers.stories import Story
from paceline.features.stragglers.telling import stories_of
from paceline.jobs.facts import Facts
from paceline.jobs.why import AskedWhy, Reason, WhyQuestion
from paceline.jobs.wording import clock, counted
from paceline.wire.client import SlowPart

MAX_TOLD = 2
NOTHING_DONE = "nothing so far"
"""Words of `slow` for a node about which nothing is done."""


def reasons(asked: AskedWhy, add: Callable[[Reason], None]) -> None:
    """Say which nodes are slow, or were, in one sentence."""
    facts = asked.facts
    if facts is None or not facts.spec.traits.trains:
        return
    spells = spells_of(facts.events)
    now = dict(spells.now)
    if asked.status is not None:
        # A node that was just restarted has no times of its own, and is in the events alone.
        now |= {part.nodes[0]: part for part in asked.status.slow}
    told = [_is_slow(one, facts) for one in now.values()] + [
        _was_slow(one, facts) for one in spells.ended
    ]
    acted = _stories(facts)
    more = f"paceline explain {facts.job_id}"
    if told:
        rest = len(told) - MAX_TOLD
        told[MAX_TOLD:] = [counted(rest, "more spell")] if rest > 0 else []
        add(Reason(WhyQuestion.SLOW, f"{'; '.join(told)}{_measured(acted, facts)}.", more))
    elif acted:
        last = acted[-1]
        told_ = f"No node was slow for long, and the solution acted {counted(len(acted), 'time')}"
        told_ += f", last at {clock(last.t - facts.started_s)}: {last.what}"
        add(Reason(WhyQuestion.SLOW, f"{told_}{_measured(acted, facts)}.", more))
    elif spells.compared:
        add(Reason(WhyQuestion.SLOW, "Nothing was slow, nothing was done.", is_found=False))
    elif len(facts.workers) == 1:
        alone = "Whether its worker is slow is not known: there is no other to compare it with."
        add(Reason(WhyQuestion.SLOW, alone, is_found=False))


def _is_slow(part: SlowPart, facts: Facts) -> str:
    since = clock(part.since_s - facts.started_s)
    if facts.runs:
        return f"{part.sentence} as usual since {since}, {_done(part)}"
    return f"{_past(part)} as usual from {since} to the end, {_done(part)}"


def _past(part: SlowPart) -> str:
    return part.sentence.replace(" computes ", " computed ").replace(" takes ", " took ")


def _was_slow(part: SlowPart, facts: Facts) -> str:
    since = clock(part.since_s - facts.started_s)
    until = clock((part.until_s or facts.ended_s) - facts.started_s)
    return f"{_past(part)} as usual from {since} to {until}, {_done(part)}, and then was well again"


def _done(part: SlowPart) -> str:
    return "nothing was done" if part.done == NOTHING_DONE else part.done


def _stories(facts: Facts) -> Sequence[Story]:
    """Return what was decided; nothing where no log is, or one that cannot be read."""
    try:
        return stories_of(JobDir(Path(facts.path)))
    except (ConfigError, OSError):
        return ()


def _measured(acted: Sequence[Story], facts: Facts) -> str:
    """Say what the newest action brought that was measured."""
    last = next((one for one in reversed(acted) if one.outcome), None)
    if last is None:
        return ""
    first = last.outcome.partition("; ")[0]
    return f"; the action at {clock(last.t - facts.started_s)} was measured: {first}"
