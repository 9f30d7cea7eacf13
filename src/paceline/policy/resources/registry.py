"""Resource policies by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.resources"]
    mine = "my_package.resources:Mine"
"""

from collections.abc import Mapping

from paceline.policy.plugins import Plugins
from paceline.policy.resources.planner import ResourcePolicy
from paceline.policy.resources.policies.none import KeepSize
from paceline.policy.resources.policies.rm import DlroverRm

GROUP = "paceline.resources"

BUILT_IN: Mapping[str, type[ResourcePolicy]] = {
    "none": KeepSize,
    "rm": DlroverRm,
}

RESOURCES: Plugins[ResourcePolicy] = Plugins("resource policy", GROUP, ResourcePolicy, BUILT_IN)
