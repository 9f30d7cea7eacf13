"""Small simulated jobs, and a controller that does as it is told, when it is told."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from paceline_experiments.sim.asynchronous import Asynchronous
from paceline_experiments.sim.control import Situation
from paceline_experiments.sim.costs import Compute, Traffic
from paceline_experiments.sim.job import SimJob
from paceline_experiments.sim.outcome import SimOutcome
from paceline_experiments.sim.scenarios import Recovery, Scenario
from paceline_experiments.sim.synchronous import Synchronous

from paceline.policy.actions import AnyAction
from paceline.policy.observation import RestartCost
from paceline.policy.stats.history import ProfiledTimes
from paceline.wire.messages.agent import NodeFacts

S = TypeVar("S", bound=msgspec.Struct)

SMALL = Scenario(
    name="small",
    mode="bsp",
    workers=4,
    servers=2,
    num_samples=2_050,
    epochs=2,
    batch_size=400,
    compute=Compute(per_sample_s=0.01),
    recovery=Recovery(worker=RestartCost(start_s=7.0), server=RestartCost(start_s=5.0)),
)
"""A step takes one second, but for the last one of an epoch."""

NOISY = msgspec.structs.replace(
    SMALL,
    compute=Compute(per_sample_s=0.01, fixed_s=0.02, noise=0.05),
    traffic=Traffic(message_s=0.02, part_s=0.001, update_s=0.01),
)


class Scripted:
    """Does what the script says at its times."""

    def __init__(self, script: Sequence[tuple[float, Sequence[AnyAction]]] = ()) -> None:
        self.script = sorted(script, key=lambda one: one[0])
        self.num_decisions = 0
        self.reports: list[tuple[str, NodeFacts, float]] = []
        self.profiles: list[tuple[str, ProfiledTimes]] = []
        self.kills: list[tuple[str, float]] = []
        self.restarts: list[tuple[str, int]] = []
        self.seen: list[Situation] = []

    @property
    def next_s(self) -> float:
        return self.script[0][0] if self.script else math.inf

    def report(self, node: str, facts: NodeFacts, now_s: float) -> None:
        self.reports.append((node, facts, now_s))

    def profiled(self, node: str, profiled: ProfiledTimes) -> None:
        self.profiles.append((node, profiled))

    def killed(self, node: str, now_s: float) -> None:
        self.kills.append((node, now_s))

    def restarted(self, node: str, inc: int, cost: RestartCost) -> None:
        self.restarts.append((node, inc))

    def is_due(self, now_s: float, iterations: float) -> bool:
        return True

    def decide(self, now: Situation) -> Sequence[AnyAction]:
        self.seen.append(now)
        return self.script.pop(0)[1]


def changed(struct: S, **changes: object) -> S:
    return msgspec.structs.replace(struct, **changes)


def job_of(scenario: Scenario, control: Scripted | None = None, seed: int = 0) -> SimJob:
    kind = Synchronous if scenario.mode in {"bsp", "allreduce"} else Asynchronous
    return kind(scenario, seed, control or Scripted())


def run(
    scenario: Scenario, *script: tuple[float, Sequence[AnyAction]], seed: int = 0
) -> tuple[SimOutcome, Scripted]:
    control = Scripted(script)
    return job_of(scenario, control, seed).run(), control
