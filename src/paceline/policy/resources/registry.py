"""Resource policies by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.resources"]
    mine = "my_package.resources:Mine"
"""

from collections.abc import Mapping

from paceline.policy.plugins import Plugins
from paceline.policy.resources.planner import ResourcePolicy
from paceline.policy.resources.policies.es import ElasticScaling
from paceline.policy.resources.policies.none import KeepSize
from paceline.policy.resources.policies.optimus import Optimus
from paceline.policy.resources.policies.rm import DlroverRm
from paceline.policy.resources.policies.staged import SampleOptimiseAdjust

GROUP = "paceline.resources"

BUILT_IN: Mapping[str, type[ResourcePolicy]] = {
    "es": ElasticScaling,
    "none": KeepSize,
    "optimus": Optimus,
    "rm": DlroverRm,
    "sample_optimise_adjust": SampleOptimiseAdjust,
}

RESOURCES: Plugins[ResourcePolicy] = Plugins("resource policy", GROUP, ResourcePolicy, BUILT_IN)
