"""State, facts and acts of the loop around a resource policy: values, all recordable."""

from typing import Literal

import msgspec

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import Hold, NodeTarget, ResourcePlan
from paceline.features.sizes.policy.rates import JobRate
from paceline.policy.job_size import JobSize

FailedWhy = Literal["refused", "pending", "failed"]
Verdict = Literal["better", "as_before", "worse", "open"]


class SteeringRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the loop."""

    least_windows: int = 5
    """Windows that a rate is measured over, at least."""
    most_windows: int = 24
    """Windows after which a plan is judged however noisy they are."""
    settle_s: float = 10.0
    """After a change took effect its windows do not count for so long, or for as long as the change
    took, whichever is longer."""
    between_s: float = 60.0
    """Least seconds from one change that took effect to the next one."""
    ask_s: float = 60.0
    """Seconds from a question to the policy that gave no plan to the next question."""
    min_gain: float = 0.05
    """Relative gain that a plan must expect."""
    certainty: float = 2.0
    """Standard errors by which a rate must differ from another."""
    caution: float = 1.0
    """Errors of what a plan expects after which it must still gain. Half as many after a plan that
    helped, and as many more for each plan in a row that did not."""
    harm: float = 0.03
    """Relative loss that is not worth a taking back."""
    min_confidence: float = 0.3
    """Least confidence of a plan that is followed."""
    max_probes: int = 4
    """Changes of one job that are made to learn something."""
    avoid_s: float = 600.0
    """Seconds before a change that did not work out is tried again; doubled each time."""


class ChangeUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was ordered and has not taken effect."""

    plan: ResourcePlan
    origin: JobSize
    before: JobRate | None
    """The rate when it was ordered; None: not measured (an urgent plan)."""
    begun_s: float
    nodes_before: tuple[NodeTarget, ...] = ()
    """Sizes of single nodes before the plan."""
    back: bool = False
    """Whether it takes a plan back."""


class PlanOnTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A change that took effect, and is not judged yet."""

    change: ChangeUnderWay
    effect_s: float


class SteeringState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the loop remembers."""

    history: SizingHistory = SizingHistory()
    size: JobSize | None = None
    """The size seen last; None: nothing seen."""
    since_s: float | None = None
    """Windows that began earlier do not count; None: all do."""
    next_s: float | None = None
    """No change is ordered earlier; None: at any time."""
    change: ChangeUnderWay | None = None
    trial: PlanOnTrial | None = None
    asked_s: float | None = None
    """Time at which the policy was last asked; None: not since the last change."""
    failures: int = 0
    """Plans in a row that did not help or did not take effect."""


class SizeSeen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job as it is now: a fact for each window."""

    seen: ResourceObservation


class ResizeInEffect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The change under way is done."""

    now_s: float
    size: JobSize
    """Size that the job has now."""


class ResizeFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The change under way was given up; the job trains on with what it has."""

    now_s: float
    size: JobSize
    """Size that the job has now: the one before, or a part of the change."""
    why: FailedWhy
    detail: str = ""


AnySteeringFact = SizeSeen | ResizeInEffect | ResizeFailed


class ApplyPlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change the job's size."""

    plan: ResourcePlan
    origin: JobSize


class TakeBack(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give the job the size back that it had before a plan."""

    plan: ResourcePlan
    """The one that made things worse."""
    target: JobSize
    """The size before it."""
    nodes: tuple[NodeTarget, ...] = ()
    """Sizes of single nodes before the plan."""
    before: JobRate
    after: JobRate


class JudgePlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Expectation of a plan beside what was measured, for people who ask; nothing is to be done."""

    plan: ResourcePlan
    origin: JobSize
    before: JobRate
    after: JobRate
    verdict: Verdict
    back: bool = False
    """Whether it was the taking back of a plan."""


AnySteeringAct = ApplyPlan | TakeBack | JudgePlan | Hold
