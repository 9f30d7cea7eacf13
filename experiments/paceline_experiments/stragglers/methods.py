"""The methods that are compared: solutions with the parameters they have in the experiments.

Reference: AntDT section VII-A-3 (baselines) and VII-A-5 (hyperparameters).
"""

import msgspec

from paceline.features.stragglers.policy.registry import solution
from paceline.features.stragglers.policy.solution import Solution
from paceline.policy.stats.history import Lengths
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.results import Method

BSP = Method(label="BSP", solution="none")
ASP = Method(label="ASP", solution="even")
"""Every worker has its own part of the data, as in TensorFlow."""
ASP_DDS = Method(label="ASP-DDS", solution="none")
"""Leases are drawn on demand."""
SSP = Method(label="SSP", solution="none")
DDP = Method(label="DDP", solution="none")
BACKUP = Method(label="backup workers", solution="backup_workers", parameters={"count": 6})
"""6 of 20 reproduces both published figures."""
BACKUP_TENTH = Method(label="backup workers (a tenth)", solution="backup_workers")
LB_BSP = Method(label="LB-BSP", solution="lb_bsp")
ND = Method(label="ND", solution="nd", windows="paper")
"""Method ND as published: windows of 5 and 10 minutes, decisions every 5 minutes."""
ND_OWN = Method(label="ND, own windows", solution="nd")
"""Method ND with windows in iterations, too: 100 and 200. Decisions come every 100 iterations, at
least 30 s."""
DD = Method(label="DD", solution="dd", parameters={"largest": 128})
OVER_TIME = (ND.label, ASP_DDS.label)
"""Methods that the paper draws over time."""
PARTIAL = Method(label="partial", solution="partial")
AUTO = Method(label="auto", solution="auto")

SYNCHRONOUS = (BSP, BACKUP, LB_BSP, ND, ND_OWN, PARTIAL, AUTO)
ASYNCHRONOUS = (ASP, ASP_DDS, ND, ND_OWN, AUTO)
BOUNDED = (SSP, ND, ND_OWN, AUTO)

BLIND = frozenset({"none", "even", "backup_workers", "partial"})
"""Solutions that do not look at how fast anybody is."""

PAPER_SHORT_S, PAPER_LONG_S, PAPER_EVERY_S = 300.0, 600.0, 300.0


def solution_of(method: Method, scenario: Scenario) -> Solution:
    """The solution, set as the method says.

    Raises:
        ConfigError: no such solution, or a parameter that it does not have.
    """
    parameters: dict[str, object] = dict(method.parameters)
    if method.windows == "paper":
        parameters = {
            "every_s": PAPER_EVERY_S * scenario.time_scale,
            "every_steps": 0,
            **parameters,
        }
    return solution(method.solution, parameters)


def lengths_of(method: Method, scenario: Scenario) -> Lengths:
    """Return the windows' lengths: the default, or the paper's in the scenario's time."""
    scale = scenario.time_scale
    if method.windows == "paper":
        return Lengths(
            short_iterations=None,
            short_s=PAPER_SHORT_S * scale,
            long_iterations=None,
            long_s=PAPER_LONG_S * scale,
        )
    default = Lengths()
    if default.short_s is None or default.long_s is None:
        return default
    return msgspec.structs.replace(
        default,
        short_s=default.short_s * scale,
        long_s=default.long_s * scale,
        block_s=default.block_s * scale,
    )
