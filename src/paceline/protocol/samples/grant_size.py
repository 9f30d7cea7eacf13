"""How large a grant is: pure functions of what was measured.

Reference: DLRover (arXiv:2304.01468 and RM), section 5.1: slow workers get shorter shards.
Differs: any length, from the worker's own speed, instead of three classes of length.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import TypeVar

import msgspec

TARGET_S = 6.0
"""A grant aims at so much of its owner's work: long enough to be rare, short enough to give back
little when its owner is lost; between 2 and 10 s."""
INCOMPLETE_S = 0.5
BATCHES_BEFORE_MEASURED = 4
STEPS_BEFORE_MEASURED = 16
MIN_STEPS = 2
MAX_STEPS = 1024
PLAN_LEAD_S = 0.3
"""A new plan begins so much later: by then all workers have given back what they hold from there
on, and have been granted their new shares. The leader's report alone may be 0.1 s old."""
LEAD_BEFORE_MEASURED = 2
"""Steps that a plan begins ahead while their time is not known."""


Owner = TypeVar("Owner", bound=int)
"""Name of a lease's owner: its incarnation, or a simulated worker's row."""


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """How large a grant should be."""

    samples: int = 4096
    """Asynchronous: samples of one grant; 0: none until it asks again, with less left."""
    steps: int = 16
    """Synchronous: slices that a grant may reach beyond the undecided step."""
    speed: float | None = None
    """Samples per second of the worker; None: not measured."""
    batch_size: int = 0
    """Asynchronous: samples of one of its batches; 0: as many as when it was started."""


def planned_speed(
    own: float | None, share: float | None, all_speeds: Iterable[float | None]
) -> float | None:
    """Samples per second that a worker's grants are sized for.

    Args:
        own: as measured; None: not yet.
        share: its part of what all compute, by a plan; None: there is none.
        all_speeds: of all workers, this one included.
    """
    if share is None:
        return own
    return sum(speed or 0.0 for speed in all_speeds) * share or None


def lease_samples(
    *,
    speed: float | None,
    batch_size: int,
    remaining: int,
    num_workers: int,
    shard_size: int | None = None,
    held: int = 0,
    share: float | None = None,
) -> int:
    """Samples of one asynchronous grant, in whole batches.

    Args:
        speed: samples per second of the worker that asks, or that a plan wants of it; None: not
            measured yet.
        batch_size: samples of one of its batches.
        remaining: samples of the feed that nobody has.
        num_workers: workers that share them.
        shard_size: as the user set it; then that is the answer.
        held: samples that the worker still has; 0: it is about to run out, and gets at least one
            batch.
        share: its part of what all workers compute, by a plan; None: all compute alike.

    Returns:
        0: nothing now, it has its share.
    """
    # At the tail nobody should hold much more than the others.
    whole = remaining + held
    half = whole // (2 * max(1, num_workers)) if share is None else int(whole * share / 2)
    fair = (half - held) // batch_size
    if held and fair * batch_size < (shard_size or batch_size):
        return 0
    if shard_size is not None:
        return shard_size
    batches = BATCHES_BEFORE_MEASURED if speed is None else int(speed * TARGET_S / batch_size)
    return max(1, min(batches, fair)) * batch_size


def tail_share(
    leases: Mapping[Owner, int],
    speeds: Mapping[Owner, float | None],
    asker: Owner,
    batch_size: int,
) -> tuple[Owner, int] | None:
    """Return the worker that gives up a part of its lease at the tail, and the samples it keeps.

    The worker that would take longest gives up so much that it and the asker end together. Leases
    are whole batches: a part of one would be kept back where a source has no more for now.

    Args:
        leases: samples that each other worker holds.
        speeds: samples per second; None or absent: not measured, as fast as the others.
        asker: the worker that has nothing.
        batch_size: samples of a batch; the owner keeps at least the next one.

    Returns:
        None: nobody holds enough for two.
    """
    known = [speed for speed in speeds.values() if speed]
    mean = sum(known) / len(known) if known else 1.0
    if not leases:
        return None
    owner = max(leases, key=lambda inc: (leases[inc] / (speeds.get(inc) or mean), inc))
    own, asking = speeds.get(owner) or mean, speeds.get(asker) or mean
    keep = max(int(leases[owner] * own / (own + asking)) // batch_size, 1) * batch_size
    return (owner, keep) if leases[owner] - keep >= batch_size else None


def lease_steps(step_s: float | None, *, complete: bool = True) -> int:
    """Steps that a synchronous grant reaches ahead.

    Args:
        step_s: seconds of a step; None: not measured yet.
        complete: whether all workers of the job are there; if not, only little is dealt out among
            those who are: who comes back would have nothing to do.
    """
    if step_s is None:
        return STEPS_BEFORE_MEASURED if complete else MIN_STEPS
    target_s = TARGET_S if complete else INCOMPLETE_S
    return max(MIN_STEPS, min(MAX_STEPS, int(target_s / max(step_s, 1e-6))))


def plan_lead(step_s: float | None) -> int:
    """Steps from the undecided one, as the master knows it, to the one a new plan begins with.

    Too few cost a short wait: a place that has come too early is moved, each time twice as far.
    """
    if step_s is None:
        return LEAD_BEFORE_MEASURED
    return 1 + ceil(PLAN_LEAD_S / max(step_s, 1e-6))
