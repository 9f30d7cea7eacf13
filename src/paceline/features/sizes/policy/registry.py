"""Resource policies by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.resources"]
    mine = "my_package.resources:Mine"
"""

from collections.abc import Mapping

from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.policies.none import KeepSize
from paceline.features.sizes.policy.policies.rm import DlroverRm
from paceline.policy.plugins import Plugins

GROUP = "paceline.resources"

BUILT_IN: Mapping[str, type[ResourcePolicy]] = {
    "none": KeepSize,
    "rm": DlroverRm,
}

RESOURCES: Plugins[ResourcePolicy] = Plugins("resource policy", GROUP, ResourcePolicy, BUILT_IN)
