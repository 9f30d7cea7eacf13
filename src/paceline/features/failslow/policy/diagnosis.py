"""The diagnosis of a slow job, in words that claim no more than was seen.

What the profile says counts for a rank, even if a matrix product finds its device well: a process
that others keep from its core, or that reads slowly, multiplies as quickly as before. A link is to
blame only if the measurement finds one. A measurement alone blames nobody: on a busy machine they
all scatter. What was not compared or measured is said, with the reason.
"""

from collections.abc import Mapping
from statistics import median

import msgspec

from paceline.features.failslow.events import ComparedPart, DiagnosedEvent
from paceline.features.failslow.policy.causes import SlowCase, cause_of
from paceline.features.failslow.policy.gaps import Gaps
from paceline.features.failslow.policy.profile import ProfileSummary
from paceline.features.failslow.policy.suspects import Findings, Suspect
from paceline.features.failslow.policy.validation import (
    Measurements,
    SlowComponent,
    ValidationResult,
)
from paceline.wire.client import Culprit

AT_START = 0.15
"""Least part of a step that a suspect must cost at a job's start: its ranks may differ by design,
and nobody has said that it is slow."""

AMONG_LINKS = 0.25
"""Least part of what the slowest link costs that another one must cost to be named: ranks that wait
for a slow link take their part in other transfers late and unevenly."""

ACCOUNTS = 0.5
"""Least part of the slowness of a script's transfers that the link must have by itself."""


def compare(
    now: ProfileSummary | None,
    start: ProfileSummary | None,
    measured: Measurements | None,
    measured_at_start: Measurements | None,
    names: Mapping[int, str],
) -> tuple[ComparedPart, ...]:
    """List all parts of the job: what they take, beside what they took at its start."""
    parts: list[ComparedPart] = []
    for rank, times in (now.ranks if now else {}).items():
        own = start.ranks.get(rank) if start else None
        before_s = median(own.computing_s) if own else None
        parts.append(ComparedPart("computing", (names[rank],), median(times.computing_s), before_s))
    if measured is not None:
        products = measured_at_start.products_s if measured_at_start else {}
        for rank, seconds in measured.products_s.items():
            parts.append(ComparedPart("product", (names[rank],), seconds, products.get(rank)))
        hops = dict(measured_at_start.hops) if measured_at_start else {}
        for (one, other), seconds in measured.hops:
            ends = (names[one], names[other])
            parts.append(ComparedPart("link", ends, seconds, hops.get((one, other))))
    return tuple(parts)


def diagnose(
    findings: Findings,
    result: ValidationResult | None,
    names: Mapping[int, str],
    gaps: Gaps,
    *,
    at_start: bool,
) -> list[DiagnosedEvent]:
    """Name what is slow, each culprit once; of a slow job, also that none was found.

    Args:
        findings: of the profile.
        result: of the measurement; None: there was none, for the reason in ``gaps``.
        names: rank to node.
        gaps: what could not be looked at.
        at_start: nobody has said yet that the job is slow.
    """
    measured = [*(result.slow if result else ())]
    found: list[DiagnosedEvent] = []
    case = SlowCase(findings, result, gaps, names)
    # A rank that is, or just was, short of a processor sends as slowly as it computes.
    starved = set(findings.recovered)
    starved |= {
        suspect.ranks[0]
        for suspect in findings.suspects
        if suspect.kind == "computation" and _measured(suspect, measured)
    }
    worst_link = 0.0
    for suspect in findings.suspects:  # what costs most comes first
        if at_start and suspect.lost < AT_START:
            continue
        by_itself = _measured(suspect, measured)
        its = case._replace(suspect=suspect, by_itself=by_itself)
        if suspect.kind == "computation":
            found.append(_told("computation", its, suspect.ranks, suspect.ratio))
        elif (
            by_itself is not None
            and starved.isdisjoint(by_itself.ranks)
            and suspect.lost >= AMONG_LINKS * worst_link
        ):
            worst_link = max(worst_link, suspect.lost)
            found.append(_told("link", its, by_itself.ranks, by_itself.ratio))
        if by_itself is not None:
            measured.remove(by_itself)
    if not found and not at_start:
        found.append(_told("nothing", case))
    absent, unseen = absences(gaps, names)
    return [msgspec.structs.replace(one, absent=absent, unseen=unseen) for one in found]


def absences(gaps: Gaps, names: Mapping[int, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the nodes that did not come, and what is not known of others."""
    absent = tuple(names[rank] for rank in gaps.absent)
    return absent, {names[rank]: words for rank, words in sorted(gaps.unseen.items())}


def _measured(suspect: Suspect, measured: list[SlowComponent]) -> SlowComponent | None:
    """What the measurement says of the suspect itself.

    A link that is slow by itself is so by as much as the script's transfers. Else those waited for
    a rank that had no processor.
    """
    for one in measured:
        is_it = one.kind == suspect.kind and set(one.ranks) <= set(suspect.ranks)
        if is_it and (one.kind == "computation" or one.ratio >= ACCOUNTS * suspect.ratio):
            return one
    return None


def _told(
    culprit: Culprit, case: SlowCase, ranks: tuple[int, ...] = (), ratio: float = 1.0
) -> DiagnosedEvent:
    cause, evidence = cause_of(culprit, case)
    return DiagnosedEvent(
        culprit=culprit,
        cause=cause.name,
        nodes=tuple(case.names[rank] for rank in ranks),
        ratio=ratio,
        evidence=evidence,
        busy=cause.busy,
    )
