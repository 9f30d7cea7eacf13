"""What ``paceline explain`` tells of a job's size: each change, and why nothing was done."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from paceline.base.jobdir import JobDir
from paceline.jobs.sizing import VERDICT_WORDS, read_sizing, size_words
from paceline.jobs.wording import clock, counted
from paceline.policy.resources.plan import Hold
from paceline.policy.resources.steering import SteeringLine
from paceline.policy.resources.steering_state import (
    ApplyPlan,
    JudgePlan,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    TakeBack,
)


def tell_sizing(job: JobDir, console: Console) -> None:
    """Tell what was planned, what it brought, and why nothing was done."""
    lines, launched_s = read_sizing(job.sizing), job.launched_s()
    told = list(sentences(lines))
    changes = sum(isinstance(act, ApplyPlan) for line in lines for act in line.acts)
    head = f"{job.job_id}: its size, {counted(changes, 'change')} planned"
    console.print(head, style="bold", highlight=False, markup=False)
    for t, text in told:
        line = f"{clock(t - launched_s):>7}  {text}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def sentences(lines: Sequence[SteeringLine]) -> Iterator[tuple[float, str]]:
    """Yield what each step of the loop says, with its Unix time."""
    for line in lines:
        match line.fact:
            case ResizeInEffect(size=size):
                yield line.t, f"in effect: {size_words(size)}"
            case ResizeFailed(why=why, detail=detail, size=size):
                yield line.t, f"given up ({why}: {detail}); the job has {size_words(size)}"
            case SizeSeen():
                pass  # what follows from it is in the acts
        for act in line.acts:
            match act:
                case ApplyPlan(plan=plan, origin=origin):
                    yield line.t, f"planned: {plan.describe(origin)}"
                case TakeBack(target=target):
                    yield line.t, f"taken back, to {size_words(target)}"
                case JudgePlan(before=before, after=after, plan=plan, verdict=verdict):
                    yield (
                        line.t,
                        f"measured: {after.per_s:.4g} samples/s (±{after.error:.2g}) after "
                        f"{before.per_s:.4g}; {plan.expected_per_s:.4g} were expected: "
                        f"{VERDICT_WORDS[verdict]}",
                    )
                case Hold():
                    yield line.t, f"kept: {act.describe()}"
