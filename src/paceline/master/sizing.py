"""How large a grant is and when a cut is due: pure functions of what was measured.

Reference: DLRover (arXiv:2304.01468 and RM), section 5.1: slow workers get shorter shards.
Differs: any length, from the worker's own speed, instead of three classes of length.
"""

from math import ceil

TARGET_S = 6.0
"""A grant aims at so much of its owner's work: long enough to be rare, short enough to give back
little when its owner is lost; between 2 and 10 s."""
BATCHES_BEFORE_MEASURED = 4
STEPS_BEFORE_MEASURED = 16
MIN_STEPS = 2
MAX_STEPS = 1024
PLAN_LEAD_S = 0.3
"""A new plan begins so much later: by then all workers have given back what they hold from there
on, and have been granted their new shares. The leader's report alone may be 0.1 s old."""


def lease_samples(
    *,
    speed: float | None,
    batch_size: int,
    remaining: int,
    num_workers: int,
    shard_size: int | None = None,
    held: int = 0,
) -> int:
    """Samples of one asynchronous grant, in whole batches.

    Args:
        speed: samples per second of the worker that asks; None: not measured yet.
        batch_size: samples of one of its batches.
        remaining: samples of the feed that nobody has.
        num_workers: workers that share them.
        shard_size: as the user set it; then that is the answer.
        held: samples that the worker still has; 0: it is about to run out, and gets at least one
            batch.

    Returns:
        0: nothing now, it has its share.
    """
    # At the tail nobody should hold much more than the others.
    fair = ((remaining + held) // (2 * max(1, num_workers)) - held) // batch_size
    if held and fair * batch_size < (shard_size or batch_size):
        return 0
    if shard_size is not None:
        return shard_size
    batches = BATCHES_BEFORE_MEASURED if speed is None else int(speed * TARGET_S / batch_size)
    return max(1, min(batches, fair)) * batch_size


def lease_steps(step_s: float | None) -> int:
    """Steps that a synchronous grant reaches ahead."""
    if step_s is None:
        return STEPS_BEFORE_MEASURED
    return max(MIN_STEPS, min(MAX_STEPS, int(TARGET_S / max(step_s, 1e-6))))


def plan_lead(step_s: float | None) -> int:
    """Steps from the undecided one, as the master knows it, to the one a new plan begins with."""
    if step_s is None:
        return STEPS_BEFORE_MEASURED
    return 1 + ceil(PLAN_LEAD_S / max(step_s, 1e-6))


def cut_is_due(*, since_s: float, every_s: float, cost_s: float, share: float) -> bool:
    """Whether ``since_s`` after the last cut another one may cost as much again."""
    return since_s >= max(every_s, cost_s / share)
