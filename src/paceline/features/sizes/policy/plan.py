"""Answers of a resource policy: a plan, or why there is none.

Reference: DLRover-RM section 4.2 (gain and cost of a plan). A plan carries what it promises, so
that it can be held against what was measured after it took effect.
"""

from typing import Literal

import msgspec

from paceline.policy.job_size import DIMENSIONS, Dimension, JobSize

Aim = Literal["faster", "cheaper", "learn", "safe"]
"""More samples per second; fewer resources at a bounded loss; a size that tells the terms of the
model apart; memory before it runs out."""
Relief = Literal[
    "compute",
    "server_work",
    "sync",
    "lookup",
    "shared",
    "hot_server",
    "idle_server_cores",
    "idle_cores",
    "slow_machine",
    "too_little_known",
    "memory",
    "no_term",
]
"""Cost that a plan lowers: a term of a step, or a cause of its own. ``no_term``: the policy does
not look at terms."""
HoldCause = Literal[
    "change_under_way",
    "settling",
    "nodes_absent",
    "too_little_measured",
    "not_settled",
    "noise",
    "no_gain",
    "not_worth_its_cost",
    "bounds",
    "refused_before",
    "ends_soon",
    "low_confidence",
    "pause_after_failure",
    "asked_recently",
    "not_asked",
]

_RELIEF_WORDS: dict[Relief, str] = {
    "compute": "the workers' computation",
    "server_work": "the servers' work",
    "sync": "the transfer of dense parameters",
    "lookup": "the lookup of embedding rows",
    "shared": "what all workers share",
    "hot_server": "a server with more load than its peers",
    "idle_server_cores": "cores of servers that are not used",
    "idle_cores": "cores that bring nothing",
    "slow_machine": "a server on a slow machine",
    "too_little_known": "what the measurements leave open",
    "memory": "memory that runs out",
    "no_term": "no term in particular",
}
_HOLD_WORDS: dict[HoldCause, str] = {
    "change_under_way": "a change of size is under way",
    "settling": "the last change is settling",
    "nodes_absent": "nodes are absent",
    "too_little_measured": "too few windows are measured at this size",
    "not_settled": "the rate has not settled",
    "noise": "the expected gain is within the noise",
    "no_gain": "no size within the bounds is expected to be better",
    "not_worth_its_cost": "the change costs more than it brings until the end",
    "bounds": "the size is outside the bounds",
    "refused_before": "such a change did not work out recently",
    "ends_soon": "the job ends soon",
    "low_confidence": "too little is known about that size",
    "pause_after_failure": "the plans before did not help, so the next one waits",
    "asked_recently": "nothing was to be changed recently",
    "not_asked": "the policy does not change sizes",
}


class NodeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One node that gets another size than its peers, or another machine."""

    node: str
    cpu: float
    """Cores; 0: no limit."""
    memory: int = 0
    """Bytes; 0: no limit."""
    migrate: bool = False
    """Whether a new node on another machine must take over, even at the same size."""


class ResourcePlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A size that a job should have, with what it promises and what it costs."""

    target: JobSize
    nodes: tuple[NodeTarget, ...] = ()
    """Nodes that differ from the target's size for their role."""
    aim: Aim = "faster"
    relieves: Relief = "no_term"
    present_per_s: float
    """Samples per second now."""
    expected_per_s: float
    expected_error: float = 0.0
    """Relative standard error of what is expected."""
    allowed_loss: float = 0.0
    """Part of the present rate that may be lost (``cheaper``, ``learn``)."""
    cost_s: float = 0.0
    """Work that the change costs, as seconds of standing still."""
    cost_per_hour: float = 0.0
    """Price of the target over that of the present size, by the user's prices; below 0: it is
    less."""
    confidence: float = 1.0
    """0 to 1: how far what was measured determines what is expected."""
    extrapolates: tuple[Dimension, ...] = ()
    """Dimensions in which the target lies outside of all that was measured."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Nodes that get a size or a machine of their own, sorted."""
        return tuple(sorted(each.node for each in self.nodes))

    def describe(self, origin: JobSize) -> str:
        """Say it in one sentence.

        Args:
            origin: the size from which it starts.
        """
        parts = [_step(each, origin, self.target) for each in origin.differing(self.target)]
        parts += [
            f"{each.node} to another machine"
            if each.migrate
            else f"{each.node} to {each.cpu:g} cores"
            for each in self.nodes
        ]
        outside = f", beyond what was measured in {_words(self.extrapolates)}"
        return (
            f"{', '.join(parts) or 'no change'}: relieves {_RELIEF_WORDS[self.relieves]}; expects "
            f"{self.expected_per_s:.4g} samples/s after {self.present_per_s:.4g} "
            f"(confidence {self.confidence:.2f}{outside if self.extrapolates else ''}); costs "
            f"{self.cost_s:.3g} s, and {self.cost_per_hour:+.3g} an hour"
        )


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The size stays as it is."""

    cause: HoldCause
    detail: str = ""
    """The numbers behind it."""
    passed: ResourcePlan | None = None
    """The plan that was not followed."""

    def describe(self) -> str:
        """Say why."""
        return _HOLD_WORDS[self.cause] + (f": {self.detail}" if self.detail else "")


def _step(dimension: Dimension, origin: JobSize, target: JobSize) -> str:
    before, after = getattr(origin, dimension), getattr(target, dimension)
    return f"{dimension.replace('_', ' ')} {before:g} -> {after:g}"


def _words(dimensions: tuple[Dimension, ...]) -> str:
    ordered = [each for each in DIMENSIONS if each in dimensions]
    return " and ".join(each.replace("_", " ") for each in ordered)
