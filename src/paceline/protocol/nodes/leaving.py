"""Nodes leave places that drain: a replacement first, then the leave. Facts in, next step out.

A server stays until a fresh one has its buckets. For each worker one more worker is asked for at
once and stands in. When that one trains, the worker finishes its step, gives up its place, and
starts again at another one; the stand-in leaves when all others train. A worker keeps its name, so
worker 0 stays the chief of the script. If no stand-in trains, the worker leaves when only the
margin of its notice is left. Where the job can have no further worker it leaves at once.
"""

import msgspec

LEAVE_MARGIN_S = 10.0
"""Seconds before the end of a notice at which a worker leaves, though no stand-in trains: it has a
step to finish, and a cut to hand over."""
QUIET_S = 5.0
"""Seconds without a place that drains after which stand-ins leave: a fresh master hears of such
places only when the platform looks again."""


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has yet to leave a place that drains."""

    node: str
    role: str
    why: str
    """The platform's words."""
    left_s: float | None = None
    """Seconds until the place is gone; None: the platform does not say."""


class LeavingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a job, as far as they leave places or stand in."""

    leavers: tuple[Leaver, ...] = ()
    stand_ins: int = 0
    """Workers beyond the number that is wanted, which stand in."""
    trains: int = 0
    """Stand-ins that train, and whose own places stay."""
    away: int = 0
    """Other workers that do not train now."""
    may_add: bool = True
    """The job may have one more worker."""
    buckets_move: bool = False
    quiet_s: float = 0.0
    """Seconds for which no place has drained."""
    ends: bool = False
    """A script has returned, so the job is about to end, and waits for nobody any more."""


class AskStandIn(msgspec.Struct, frozen=True):
    """Have one more worker start, in place of this one."""

    node: str


class LeavePlace(msgspec.Struct, frozen=True):
    """Have the node go on elsewhere."""

    leaver: Leaver


class DismissStandIns(msgspec.Struct, frozen=True):
    """All workers that stand in leave."""


LeavingStep = AskStandIn | LeavePlace | DismissStandIns


def next_step(seen: LeavingSeen) -> LeavingStep | None:
    """Decide what is next; None: nothing, as something is awaited."""
    if seen.ends:
        return DismissStandIns() if seen.stand_ins else None
    workers = sorted((one for one in seen.leavers if one.role == "worker"), key=_haste)
    if workers and _haste(workers[0]) <= LEAVE_MARGIN_S:
        return LeavePlace(workers[0])
    servers = [one for one in seen.leavers if one.role == "server"]
    if servers and not seen.buckets_move:
        return LeavePlace(min(servers, key=_haste))
    if not workers:
        is_over = not (seen.away or servers) and seen.quiet_s >= QUIET_S
        return DismissStandIns() if seen.stand_ins and is_over else None
    return _for_workers(workers, seen)


def _for_workers(workers: list[Leaver], seen: LeavingSeen) -> LeavingStep | None:
    """Have a stand-in come for each, and each go when one trains for it."""
    free = max(0, seen.trains - seen.away)
    covered = free + seen.stand_ins - seen.trains
    if covered < len(workers) and seen.may_add:
        return AskStandIn(workers[covered].node)
    if free or not (seen.stand_ins or seen.may_add):
        return LeavePlace(workers[0])
    return None


def _haste(one: Leaver) -> float:
    return float("inf") if one.left_s is None else one.left_s
