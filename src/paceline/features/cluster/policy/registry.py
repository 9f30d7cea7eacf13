"""Scheduling policies by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.schedulers"]
    mine = "my_package.schedulers:Mine"
"""

from collections.abc import Mapping

from paceline.features.cluster.policy.base import SchedulingPolicy
from paceline.features.cluster.policy.policies.antman import AntMan
from paceline.features.cluster.policy.policies.plain import Fifo, YarnCs
from paceline.policy.plugins import Plugins

BUILT_IN: Mapping[str, type[SchedulingPolicy]] = {
    "antman": AntMan,
    "fifo": Fifo,
    "yarn_cs": YarnCs,
}

SCHEDULERS: Plugins[SchedulingPolicy] = Plugins(
    "policy", "paceline.schedulers", SchedulingPolicy, BUILT_IN
)
