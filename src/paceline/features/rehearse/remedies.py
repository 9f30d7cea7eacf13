"""Remedies: what to change about each kind of difference."""

from paceline.features.rehearse.observed import ObservedAct
from paceline.features.rehearse.plan import PlainLeaf
from paceline.features.rehearse.source import How

OF_LINE = (
    "a new life of a worker runs the script from its top: number the epochs with job.epochs(n), "
    "keep what the script remembers in job.state, and print what all workers share (job.evaluate, "
    "job.all_gather)"
)
FROM_THE_START = (
    "it differs before the first step: make it the same in each run. The order of a set follows "
    "the hash seed (sort it), a generator needs a seed or pl.init() before it, and a time or the "
    "name of a machine is another one each time"
)
OF_FILE = (
    "have one worker write it (if job.is_chief:), from job.state and from what all workers share "
    "(job.state_dict, job.evaluate)"
)
MISSING_FILE = (
    "have it written where all workers still are: if job.is_chief: ..., and job.barrier() or "
    "job.evaluate before the next loop over batches"
)


def remedy_of(path: str, leaf: PlainLeaf, how: How) -> str:
    """Say what to change about a variable that differs.

    Args:
        path: of the value.
        leaf: its value where it is right.
        how: the script changes it.
    """
    name = path.partition(".")[0].partition("[")[0]
    begins = "a new life of a worker begins to count again"
    if ".param_groups[" in path or path.endswith(".last_epoch"):
        return (
            "give the scheduler to job.prepare, or set the rate from job.step or job.epoch, which "
            "are the same in all workers"
        )
    if leaf.text.startswith("generator at") or how == "draws":
        return (
            f"make what `{name}` draws from again for each epoch, seeded by its number, or keep it "
            "in job.state"
        )
    if how == "loops":
        return (
            "it counts what this life of the worker saw; decide nothing by it, but by job.step or "
            "job.epoch (`for epoch in job.epochs(n)`)"
        )
    if how == "appends":
        of = "{}" if "['" in path else "[]"
        return f'keep it with the model: `{name} = job.state["{name}"] = {of}`'
    if how == "counts" and leaf.whole:
        return (
            f"{begins}: use job.step or job.samples, or keep the count in job.state "
            f'(`job.state["{name}"] = 0`, and `job.state["{name}"] += 1`)'
        )
    return (
        "a new life of a worker runs the script from its top: compute it from job.step, job.epoch "
        f'or job.evaluate, or keep it in job.state["{name}"]'
    )


def why_weights(right: ObservedAct) -> str:
    """Say why weights may differ."""
    if right.batch_norms:
        return (
            f"{right.batch_norms[0]} normalises over what one worker computes of a batch: use "
            "nn.GroupNorm or nn.LayerNorm, or accept it"
        )
    return (
        "what decides about steps must be the same in all lives: rates, schedules and skipped "
        "steps by job.step or job.epoch, everything remembered in job.state. A script that draws "
        "random numbers in its steps is rehearsed with --deterministic"
    )
