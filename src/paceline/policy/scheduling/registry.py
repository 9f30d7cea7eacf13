"""Scheduling policies by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.schedulers"]
    mine = "my_package.schedulers:Mine"
"""

from collections.abc import Mapping

from paceline.policy.plugins import Plugins
from paceline.policy.scheduling.policies.antman import AntMan
from paceline.policy.scheduling.policies.plain import Fifo, YarnCs
from paceline.policy.scheduling.policy import SchedulingPolicy

BUILT_IN: Mapping[str, type[SchedulingPolicy]] = {
    "antman": AntMan,
    "fifo": Fifo,
    "yarn_cs": YarnCs,
}

SCHEDULERS: Plugins[SchedulingPolicy] = Plugins(
    "policy", "paceline.schedulers", SchedulingPolicy, BUILT_IN
)
