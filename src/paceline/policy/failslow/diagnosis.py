"""The diagnosis of a slow job, in words that claim no more than was seen.

What the profile says counts for a rank, even if a matrix product finds its device well: a process
that others keep from its core, or that reads slowly, multiplies as quickly as before. A link is to
blame only if the measurement finds one: else its group was slow, and is so no longer. A measurement
alone blames nobody: on a busy machine they all scatter.
"""

from collections.abc import Mapping
from statistics import median

import msgspec

from paceline.policy.failslow.profile import ProfileSummary
from paceline.policy.failslow.suspects import Findings, Kind, Suspect
from paceline.policy.failslow.validation import (
    OWN_LIMIT,
    Measurements,
    SlowComponent,
    ValidationResult,
)
from paceline.wire.events.failslow import ComparedPart, DiagnosedEvent

AT_START = 0.15
"""Least part of a step that a suspect must cost at a job's start: its ranks may differ by design,
and nobody has said that it is slow."""

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
    *,
    at_start: bool,
) -> list[DiagnosedEvent]:
    """Name what is slow, each culprit once; of a slow job, also that none was found.

    Args:
        findings: of the profile.
        result: of the measurement; None: there was none.
        names: rank to node.
        at_start: nobody has said yet that the job is slow.
    """
    absent = tuple(names[rank] for rank in (result.absent if result else ()))
    measured = [*(result.slow if result else ())]
    found: list[DiagnosedEvent] = []
    # A rank that is short of a processor sends as slowly as it computes.
    starved = {
        suspect.ranks[0]
        for suspect in findings.suspects
        if suspect.kind == "computation" and _measured(suspect, measured)
    }
    for suspect in findings.suspects:
        if at_start and suspect.lost < AT_START:
            continue
        by_itself = _measured(suspect, measured)
        if suspect.kind == "computation":
            evidence = _of_rank(suspect, by_itself, result)
            found.append(_event(suspect.kind, suspect.ranks, suspect.ratio, evidence, names))
        elif by_itself is not None and starved.isdisjoint(by_itself.ranks):
            evidence = _of_links(suspect, by_itself)
            found.append(_event("link", by_itself.ranks, by_itself.ratio, evidence, names))
        if by_itself is not None:
            measured.remove(by_itself)
    if not found and not at_start:
        found.append(DiagnosedEvent(culprit="nothing", evidence=_nothing(findings, result)))
    return [msgspec.structs.replace(one, absent=absent) for one in found]


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


def _event(
    kind: Kind, ranks: tuple[int, ...], ratio: float, evidence: str, names: Mapping[int, str]
) -> DiagnosedEvent:
    nodes = tuple(names[rank] for rank in ranks)
    return DiagnosedEvent(culprit=kind, nodes=nodes, ratio=ratio, evidence=evidence)


def _of_rank(
    suspect: Suspect, by_itself: SlowComponent | None, result: ValidationResult | None
) -> str:
    than = "at the job's start" if suspect.against == "baseline" else "of its peers"
    said = f"{suspect.seconds * 1e3:.3g} ms a step, {suspect.reference_s * 1e3:.3g} ms {than}"
    if by_itself is not None:
        product = f"{said}; a matrix product takes {by_itself.ratio:.2f} times as long"
        assert result is not None
        others = [ratio for rank, ratio in result.products.items() if rank not in suspect.ranks]
        if others and median(others) >= OWN_LIMIT:
            return f"{product}, but {median(others):.2f} times elsewhere, too: the machine is busy"
        return f"{product}, too"
    if result is not None:
        return f"{said}; its device multiplies well, so see its input, its code and its host"
    return said


def _of_links(suspect: Suspect, by_itself: SlowComponent) -> str:
    """What was measured, and what the script's own transfers took."""
    return (
        f"{_alone(by_itself)}; the script's {suspect.op} of {suspect.num_bytes:,} bytes took "
        f"{suspect.seconds * 1e3:.3g} ms, {suspect.ratio:.2f} times its reference"
    )


def _alone(one: SlowComponent) -> str:
    than = "what it took at the job's start" if one.against == "baseline" else "the others"
    return f"measured by itself, compared with {than}"


def _nothing(findings: Findings, result: ValidationResult | None) -> str:
    if findings.shared is not None:
        return (
            f"most ranks compute longer, {findings.shared:.2f} times in the middle; see what they "
            "share, as a machine or the storage of data"
        )
    if findings.suspects:
        return "the slowness was over before it could be measured, or comes and goes"
    if result is None:
        return "all ranks and groups take as long as before"
    return "all ranks and links take as long as before, and measure well"
