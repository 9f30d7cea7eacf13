"""The master's side of a simulated job: the port that the job decides through."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from paceline.policy.actions import AnyAction, Partial, Share
from paceline.policy.observation import RestartCost
from paceline.policy.stats.history import ProfiledTimes
from paceline.wire.messages.agent import NodeFacts


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The job as the master knows it when a decision is due."""

    now_s: float
    step: int
    """Synchronous: steps; asynchronous: contributions."""
    iterations: float
    steps_left: int
    committed: int
    """Samples in the model."""
    workers: dict[str, Share]
    """Workers that have a process, with their part of the plan in force."""
    backup: int
    partial: Partial
    replacing: str = ""
    """The server whose successor starts."""
    fixed: bool = False
    """Asynchronous: the `AdjustBatch` in force is a fixed one."""


class Control(Protocol):
    """The master's side of a run."""

    @property
    def next_s(self) -> float:
        """Time at which it wants to look next whether a decision is due."""
        ...

    @property
    def num_decisions(self) -> int:
        """Decisions so far."""
        ...

    def report(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """Take in what a node did."""
        ...

    def profiled(self, node: str, profiled: ProfiledTimes) -> None:
        """Take in what batches took that were not applied."""
        ...

    def killed(self, node: str, now_s: float) -> None:
        """A node's process has ended."""
        ...

    def restarted(self, node: str, inc: int, cost: RestartCost) -> None:
        """A node that was killed is back, as another incarnation; ``cost`` is what it took."""
        ...

    def is_due(self, now_s: float, iterations: float) -> bool:
        """Look whether to decide now."""
        ...

    def decide(self, now: Situation) -> Sequence[AnyAction]:
        """Say what to do."""
        ...
