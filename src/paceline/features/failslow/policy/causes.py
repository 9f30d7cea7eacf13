"""The causes of slowness that a diagnosis knows, a row each.

A profile and a measurement say *which* part is slow: a rank, a link, or nothing that could be
named. A cause says why, as far as that was seen. It is recognised from facts alone, brings the
evidence in words, and says which cures relieve it. The first row of `CAUSES` that recognises a case
names it. To add one, write its function and its row here, and a case in
``tests/unit/failslow/test_causes.py``.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

import msgspec

from paceline.base.errors import InternalError
from paceline.features.failslow.policy.gaps import Gaps
from paceline.features.failslow.policy.suspects import Findings, Suspect
from paceline.features.failslow.policy.validation import OWN_LIMIT, SlowComponent, ValidationResult
from paceline.policy.cures import Cause
from paceline.wire.client import Culprit

MOST_NAMED = 3
"""Ranks, components or machines in a sentence."""
JUST_LONGER = 0.02
"""Part by which a reference may be above a rank's time at the start, and is still called that."""
CUT = 0.5
"""Least part of what a rank computes above its reference for which its quota was used up, if a cut
of that quota is the cause."""
WAITED = 0.2
"""Least part of what a rank computes longer for which a wait for a processor is evidence."""


class SlowCase(NamedTuple):
    """All that is known of a slowness, or of one part that is slow."""

    findings: Findings
    """What the profile says."""
    result: ValidationResult | None
    """What the measurement says; None: there was none, for the reason in ``gaps``."""
    gaps: Gaps
    names: Mapping[int, str]
    """Rank to node."""
    suspect: Suspect | None = None
    """The part that is slow; None: none was found to blame."""
    by_itself: SlowComponent | None = None
    """What the measurement says of the suspect itself; None: not that it is slow."""


class SlowCause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of slowness."""

    name: str
    """Its name in events. People read the evidence instead."""
    culprit: Culprit
    """Kind of part that can be slow for this cause; nothing: no part was found to blame."""
    evidence: Callable[[SlowCase], str]
    """Return the words for what was seen; empty: this is not the cause."""
    relieved_as: Cause
    """Kind of fault whose cures relieve it (`paceline.policy.cures`). If unknown, a
    restart without the nodes that are named does not help, and is not advised."""
    busy: bool = False
    """Whether other programs use the processors of most ranks, too."""


def cause_of(culprit: Culprit, case: SlowCase) -> tuple[SlowCause, str]:
    """Find the first cause that the facts show, and return it with its evidence."""
    for cause in CAUSES.values():
        if cause.culprit == culprit:
            evidence = cause.evidence(case)
            if evidence:
                return cause, evidence
    raise InternalError(f"no cause of a slow {culprit!r} was recognised: {case}")


# ------------------------------------------------------------------------------------ a slow rank


def _cut_quota(case: SlowCase) -> str:
    """Say for how long the rank had used up a quota that somebody has lowered: agents tell it."""
    suspect = case.suspect
    assert suspect is not None
    held_s, longer_s = suspect.throttled_s, suspect.seconds - suspect.reference_s
    if not held_s or held_s < CUT * longer_s:
        return ""
    return (
        f"{_computes(case)}; for {held_s * 1e3:.3g} ms of a step its cpu quota is used up, which "
        "somebody has lowered: raise it again"
    )


def _busy_elsewhere(case: SlowCase) -> str:
    ratio = _elsewhere(case)
    if case.by_itself is None or ratio < OWN_LIMIT:
        return ""
    said = f"{_computes(case)}; a matrix product takes {case.by_itself.ratio:.2f} times as long"
    return f"{said}, but {ratio:.2f} times elsewhere, too: the machine is busy"


def _slow_device(case: SlowCase) -> str:
    if case.by_itself is None:
        return ""
    ratio = case.by_itself.ratio
    return f"{_computes(case)}; a matrix product takes {ratio:.2f} times as long, too"


def _unmeasured_device(case: SlowCase) -> str:
    if case.gaps.not_measured is None:
        return ""
    return f"{_computes(case)}; its device was not measured: {case.gaps.not_measured}"


def _not_its_device(case: SlowCase) -> str:
    if case.result is None or _ranks(case) not in case.result.well:
        return ""
    return f"{_computes(case)}; its device multiplies well, so see its input, its code and its host"


def _uncompared_device(case: SlowCase) -> str:
    return f"{_computes(case)}; how its device multiplies is not known"


def _ranks(case: SlowCase) -> tuple[int, ...]:
    return case.suspect.ranks if case.suspect is not None else ()


def _elsewhere(case: SlowCase) -> float:
    """How many times as long as at the start a matrix product takes on the other ranks."""
    products = case.result.products if case.result else {}
    own = _ranks(case)
    return median([each for rank, each in products.items() if rank not in own] or [1.0])


def _computes(case: SlowCase) -> str:
    """Say what a rank takes for its own part of a step, with what that is compared."""
    assert case.suspect is not None
    took = f"{case.suspect.seconds * 1e3:.3g} ms a step"
    return f"{took}, {_reference(case.suspect)}{_waited(case.suspect)}"


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


# ------------------------------------------------------------------------------------ a slow link


def _slow_link(case: SlowCase) -> str:
    """What was measured, and what the script's own transfers took."""
    suspect, by_itself = case.suspect, case.by_itself
    assert suspect is not None and by_itself is not None
    is_own = by_itself.against == "baseline"
    than = "what it took at the job's start" if is_own else "the others"
    return (
        f"measured by itself, compared with {than}; the script's {suspect.op} of "
        f"{suspect.num_bytes:,} bytes took {suspect.seconds * 1e3:.3g} ms, {suspect.ratio:.2f} "
        "times its reference"
    )


# --------------------------------------------------------------------------------- nobody to blame


def _busy_machine(case: SlowCase) -> str:
    """Say on which machines ranks wait for processors."""
    each = (
        f"most ranks{f' on {one.machine}' if one.machine else ''} wait "
        f"{one.starved_s * 1e3:.3g} ms of a step for a processor, "
        f"{one.start_s * 1e3:.3g} ms at the job's start"
        for one in case.findings.busy[:MOST_NAMED]
    )
    words = "; ".join(each)
    return words and f"{words}; see what else runs there, or takes their quotas"


def _shared(case: SlowCase) -> str:
    if case.findings.shared is None:
        return ""
    return (
        f"most ranks compute longer, {case.findings.shared:.2f} times in the middle; see what they "
        "share, as a machine or the storage of data"
    )


def _over(case: SlowCase) -> str:
    who = ", ".join(case.names[rank] for rank in case.findings.recovered[:MOST_NAMED])
    if not who:
        return ""
    return f"{who} computed longer, and does no more: the slowness is over, or comes and goes"


def _transfers(case: SlowCase) -> str:
    """Say why the links of a group are not blamed whose transfers take longer."""
    if not case.findings.suspects:
        return ""
    suspect, result, gaps = case.findings.suspects[0], case.result, case.gaps
    members = set(suspect.ranks)
    shown = [case.names[rank] for rank in suspect.ranks[:MOST_NAMED]]
    more = len(members) - len(shown)
    group = " - ".join(shown) + (f" and {more} more" if more else "")
    took = f"the transfers of {group} take {suspect.ratio:.2f} times as long"
    if gaps.not_measured is not None:
        return f"{took}, but their links were not measured: {gaps.not_measured}"
    assert result is not None
    slow = [one for one in result.slow if set(one.ranks) <= members]
    if slow:
        alone = _component(slow[0], case.names)
        return f"{took}; measured by itself, {alone}, which does not account for it"
    if gaps.ranks & members or not any(set(one) <= members for one in result.well if len(one) > 1):
        return f"{took}, but not all of their links could be measured"
    return (
        f"{took}, but their links measure well: the slowness was over before it could be measured, "
        "or comes and goes"
    )


def _unknown(case: SlowCase) -> str:
    """Say how far it was looked."""
    result, gaps = case.result, case.gaps
    if gaps.not_profiled is not None:
        profiled = f"the calls of the ranks were not compared: {gaps.not_profiled}"
    else:
        profiled = "no rank and no group stands out in the calls that were compared"
    if gaps.not_measured is not None:
        return f"{profiled}; nothing was measured by itself: {gaps.not_measured}"
    assert result is not None
    if result.slow:
        slow = ", ".join(_component(one, case.names) for one in result.slow[:MOST_NAMED])
        return f"{profiled}; measured by itself, {slow}, which may be by chance"
    return f"{profiled}; what was measured by itself measures well"


def _component(one: SlowComponent, names: Mapping[int, str]) -> str:
    """Say how slow one component is by itself."""
    nodes = " - ".join(names[rank] for rank in one.ranks)
    what = "multiplies" if one.kind == "computation" else "transfers"
    return f"{nodes} {what} {one.ratio:.2f} times as long"


def _rank(
    name: str,
    evidence: Callable[[SlowCase], str],
    relieved_as: Cause = "computation",
    *,
    busy: bool = False,
) -> SlowCause:
    return SlowCause(
        name=name, culprit="computation", evidence=evidence, relieved_as=relieved_as, busy=busy
    )


def _nobody(name: str, evidence: Callable[[SlowCase], str], *, busy: bool = False) -> SlowCause:
    return SlowCause(
        name=name, culprit="nothing", evidence=evidence, relieved_as="unknown", busy=busy
    )


CAUSES = {
    cause.name: cause
    for cause in (
        _rank("cut_quota", _cut_quota),
        _rank("unmeasured_device", _unmeasured_device),
        _rank("busy_elsewhere", _busy_elsewhere, "unknown", busy=True),
        _rank("slow_device", _slow_device),
        _rank("not_its_device", _not_its_device),
        _rank("uncompared_device", _uncompared_device),
        SlowCause(name="slow_link", culprit="link", evidence=_slow_link, relieved_as="link"),
        _nobody("busy_machine", _busy_machine, busy=True),
        _nobody("shared", _shared),
        _nobody("over", _over),
        _nobody("transfers", _transfers),
        _nobody("unknown", _unknown),
    )
}
"""The causes by name. For each culprit the first one that is recognised counts."""
