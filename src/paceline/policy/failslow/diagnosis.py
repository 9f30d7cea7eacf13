"""The diagnosis of a slow job, in words that claim no more than was seen.

What the profile says counts for a rank, even if a matrix product finds its device well: a process
that others keep from its core, or that reads slowly, multiplies as quickly as before. A link is to
blame only if the measurement finds one. A measurement alone blames nobody: on a busy machine they
all scatter. What was not compared or measured is said, with the reason.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from paceline.policy.failslow.gaps import Gaps
from paceline.policy.failslow.profile import ProfileSummary
from paceline.policy.failslow.suspects import BusyMachine, Findings, Kind, Suspect
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

MOST_NAMED = 3
"""Ranks or components in a sentence."""

JUST_LONGER = 0.02
"""Part by which a reference may be above a rank's time at the start, and is still called that."""
WAITED = 0.2
"""Least part of what a rank computes longer for which a wait for a processor is evidence."""

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
        if suspect.kind == "computation":
            evidence = _of_rank(suspect, by_itself, result, gaps)
            one = _event(suspect.kind, suspect.ranks, suspect.ratio, evidence, names)
            busy = by_itself is not None and _elsewhere(suspect, result) >= OWN_LIMIT
            found.append(msgspec.structs.replace(one, busy=busy))
        elif (
            by_itself is not None
            and starved.isdisjoint(by_itself.ranks)
            and suspect.lost >= AMONG_LINKS * worst_link
        ):
            worst_link = max(worst_link, suspect.lost)
            evidence = _of_links(suspect, by_itself)
            found.append(_event("link", by_itself.ranks, by_itself.ratio, evidence, names))
        if by_itself is not None:
            measured.remove(by_itself)
    if not found and not at_start:
        evidence = _nothing(findings, result, names, gaps)
        busy = bool(findings.busy)
        found.append(DiagnosedEvent(culprit="nothing", evidence=evidence, busy=busy))
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


def _event(
    kind: Kind, ranks: tuple[int, ...], ratio: float, evidence: str, names: Mapping[int, str]
) -> DiagnosedEvent:
    nodes = tuple(names[rank] for rank in ranks)
    return DiagnosedEvent(culprit=kind, nodes=nodes, ratio=ratio, evidence=evidence)


def _of_rank(
    suspect: Suspect,
    by_itself: SlowComponent | None,
    result: ValidationResult | None,
    gaps: Gaps,
) -> str:
    said = f"{suspect.seconds * 1e3:.3g} ms a step, {_reference(suspect)}{_waited(suspect)}"
    if gaps.not_measured is not None:
        return f"{said}; its device was not measured: {gaps.not_measured}"
    assert result is not None
    if by_itself is not None:
        product = f"{said}; a matrix product takes {by_itself.ratio:.2f} times as long"
        elsewhere = _elsewhere(suspect, result)
        if elsewhere >= OWN_LIMIT:
            return f"{product}, but {elsewhere:.2f} times elsewhere, too: the machine is busy"
        return f"{product}, too"
    if suspect.ranks in result.well:
        return f"{said}; its device multiplies well, so see its input, its code and its host"
    return f"{said}; how its device multiplies is not known"


def _reference(suspect: Suspect) -> str:
    """With what a rank's time is compared, in words."""
    reference = f"{suspect.reference_s * 1e3:.3g} ms"
    if suspect.start_s is None:
        return f"{reference} of its peers"
    if suspect.reference_s < (1.0 + JUST_LONGER) * suspect.start_s:
        return f"{reference} at the job's start"
    common_s = suspect.reference_s - suspect.start_s
    return (
        f"{suspect.start_s * 1e3:.3g} ms at the job's start (and {common_s * 1e3:.3g} ms more for "
        "what slows all ranks)"
    )


def _waited(suspect: Suspect) -> str:
    """What a rank waits for a processor, where that is evidence."""
    if suspect.starved_s is None or suspect.start_s is None:
        return ""
    now_s, start_s = suspect.starved_s
    if now_s - start_s < WAITED * (suspect.seconds - suspect.start_s):
        return ""
    return (
        f"; it waits {now_s * 1e3:.3g} ms of a step for a processor, {start_s * 1e3:.3g} ms at the "
        "start"
    )


def _elsewhere(suspect: Suspect, result: ValidationResult | None) -> float:
    """How many times as long as at the start a matrix product takes on the other ranks."""
    products = result.products if result else {}
    return median([each for rank, each in products.items() if rank not in suspect.ranks] or [1.0])


def _of_links(suspect: Suspect, by_itself: SlowComponent) -> str:
    """What was measured, and what the script's own transfers took."""
    return (
        f"{_alone(by_itself)}; the script's {suspect.op} of {suspect.num_bytes:,} bytes took "
        f"{suspect.seconds * 1e3:.3g} ms, {suspect.ratio:.2f} times its reference"
    )


def _alone(one: SlowComponent) -> str:
    than = "what it took at the job's start" if one.against == "baseline" else "the others"
    return f"measured by itself, compared with {than}"


def _nothing(
    findings: Findings, result: ValidationResult | None, names: Mapping[int, str], gaps: Gaps
) -> str:
    """Say how far it was looked, since no component was found to blame."""
    if findings.busy:
        return _crowded(findings.busy)
    if findings.shared is not None:
        return (
            f"most ranks compute longer, {findings.shared:.2f} times in the middle; see what they "
            "share, as a machine or the storage of data"
        )
    if findings.recovered:
        who = ", ".join(names[rank] for rank in findings.recovered[:MOST_NAMED])
        return f"{who} computed longer, and does no more: the slowness is over, or comes and goes"
    if findings.suspects:  # computation would have been blamed
        return _unblamed(findings.suspects[0], result, names, gaps)
    if gaps.not_profiled is not None:
        profiled = f"the calls of the ranks were not compared: {gaps.not_profiled}"
    else:
        profiled = "no rank and no group stands out in the calls that were compared"
    if gaps.not_measured is not None:
        return f"{profiled}; nothing was measured by itself: {gaps.not_measured}"
    assert result is not None
    if result.slow:
        slow = ", ".join(_component(one, names) for one in result.slow[:MOST_NAMED])
        return f"{profiled}; measured by itself, {slow}, which may be by chance"
    return f"{profiled}; what was measured by itself measures well"


def _crowded(busy: Sequence[BusyMachine]) -> str:
    """Say on which machines ranks wait for processors."""
    each = (
        f"most ranks{f' on {one.machine}' if one.machine else ''} wait "
        f"{one.starved_s * 1e3:.3g} ms of a step for a processor, "
        f"{one.start_s * 1e3:.3g} ms at the job's start"
        for one in busy[:MOST_NAMED]
    )
    return "; ".join(each) + "; see what else runs there, or takes their quotas"


def _unblamed(
    suspect: Suspect, result: ValidationResult | None, names: Mapping[int, str], gaps: Gaps
) -> str:
    """Say why the links of a group are not blamed whose transfers take longer."""
    members = set(suspect.ranks)
    shown = [names[rank] for rank in suspect.ranks[:MOST_NAMED]]
    more = len(members) - len(shown)
    group = " - ".join(shown) + (f" and {more} more" if more else "")
    took = f"the transfers of {group} take {suspect.ratio:.2f} times as long"
    if gaps.not_measured is not None:
        return f"{took}, but their links were not measured: {gaps.not_measured}"
    assert result is not None
    slow = [one for one in result.slow if set(one.ranks) <= members]
    if slow:
        alone = _component(slow[0], names)
        return f"{took}; measured by itself, {alone}, which does not account for it"
    if gaps.ranks & members or not any(set(one) <= members for one in result.well if len(one) > 1):
        return f"{took}, but not all of their links could be measured"
    return (
        f"{took}, but their links measure well: the slowness was over before it could be measured, "
        "or comes and goes"
    )


def _component(one: SlowComponent, names: Mapping[int, str]) -> str:
    """Say how slow one component is by itself."""
    nodes = " - ".join(names[rank] for rank in one.ranks)
    what = "multiplies" if one.kind == "computation" else "transfers"
    return f"{nodes} {what} {one.ratio:.2f} times as long"
