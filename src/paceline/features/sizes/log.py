"""The log of what was decided about a job's size (``sizing.jsonl``): read, told, and replayed.

``paceline explain`` tells each change, and why nothing was done.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from paceline.base.jobdir import JobDir
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.registry import RESOURCES
from paceline.features.sizes.policy.steering import SteeringLine
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    ApplyPlan,
    JudgePlan,
    ResizeFailed,
    ResizeInEffect,
    SizeSeen,
    TakeBack,
    Verdict,
)
from paceline.jobs.history import Tail
from paceline.jobs.replayed import ReplayedLog, ToldLog
from paceline.jobs.wording import clock, counted
from paceline.policy.decisions.past import Decider
from paceline.policy.job_size import JobSize

VERDICT_WORDS: dict[Verdict, str] = {
    "better": "faster",
    "as_before": "no faster and no slower than the noise",
    "worse": "slower",
    "open": "neither for sure",
}
"""Words for what a change has made of a job."""


def log_of(job: JobDir) -> Path:
    """Return the path of a job's log."""
    return job.path / "sizing.jsonl"


def read_sizing(path: Path) -> list[SteeringLine]:
    """Read what was planned, and what it brought, in order; other lines are left out."""
    found = []
    for line in Tail(path).lines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=SteeringLine))
    return found


def size_words(size: JobSize) -> str:
    """Write a size in words: ``3 workers of 0.5 cores, 1 server of 1 core``."""
    parts = [_nodes(size.workers, "worker", size.worker_cpu)]
    if size.servers:
        parts.append(_nodes(size.servers, "server", size.server_cpu))
    return ", ".join(parts)


def _nodes(count: int, role: str, cores: float) -> str:
    own = f" of {cores:g} cores" if cores else ""
    return f"{counted(count, role)}{own}"


def explain(job: JobDir, add: Callable[[list[str]], None]) -> None:
    """Tell what was planned, what it brought, and why nothing was done."""
    log = log_of(job)
    if not log.exists():
        return
    lines, launched_s = read_sizing(log), job.launched_s()
    changes = sum(isinstance(act, ApplyPlan) for line in lines for act in line.acts)
    head = f"{job.job_id}: its size, {counted(changes, 'change')} planned"
    add([head, *(f"{clock(t - launched_s):>7}  {text}" for t, text in sentences(lines))])


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


def _read_sizes(file: Path) -> ToldLog[SteeringLine] | None:
    return _sizes(lines) if (lines := read_sizing(file)) else None


def _sizes(lines: Sequence[SteeringLine]) -> ToldLog[SteeringLine]:
    log = tuple((Decider(line.policy, line.args), line) for line in lines)
    begun_s = lines[0].t if lines else 0.0
    return ToldLog(
        policies=RESOURCES,
        what="policy",
        unit="step",
        name="the log of sizes",
        by=tuple(by for by, _ in log),
        log=log,
        columns=("t",),
        cells=lambda line: (f"{line.t - begun_s:.0f} s",),
        head=lambda line: f"t {line.t:.0f}",
        words=lambda acts: "; ".join(map(_size_act, acts)) or "-",
        does="plans",
        silent=(Hold,),
        counts=ApplyPlan,
    )


def _size_act(act: AnySteeringAct) -> str:
    match act:
        case ApplyPlan(plan=plan, origin=origin):
            return f"plan: {plan.describe(origin)}"
        case TakeBack():
            return "take back"
        case JudgePlan(verdict=verdict):
            return f"judged {verdict}"
        case Hold():
            return f"keep: {act.describe()}"


SIZES = ReplayedLog(file="sizing.jsonl", place=log_of, read=_read_sizes, policies=RESOURCES)
