"""Solutions by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.solutions"]
    mine = "my_package.solutions:Mine"
"""

from collections.abc import Mapping

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy.solution import MODES, Solution
from paceline.features.stragglers.policy.solutions.auto import Auto
from paceline.features.stragglers.policy.solutions.dedicated import Dedicated
from paceline.features.stragglers.policy.solutions.falcon import Falcon
from paceline.features.stragglers.policy.solutions.non_dedicated import NonDedicated
from paceline.features.stragglers.policy.solutions.static import (
    Backup,
    Even,
    LeaveOut,
    Nothing,
    Rates,
)
from paceline.policy.plugins import Plugins

GROUP = "paceline.solutions"

BUILT_IN: Mapping[str, type[Solution]] = {
    "adjust_lr": Rates,
    "auto": Auto,
    "backup_workers": Backup,
    "dd": Dedicated,
    "even": Even,
    "falcon": Falcon,
    "nd": NonDedicated,
    "none": Nothing,
    "partial": LeaveOut,
}


def _check_modes(name: str, kind: type[Solution]) -> None:
    modes: object = kind.modes
    if not isinstance(modes, tuple) or not modes or any(mode not in MODES for mode in modes):
        raise ConfigError(
            f"solution {name}: {kind.__name__}.modes is {modes!r}; write a tuple of some of "
            f'{", ".join(MODES)} and no type, as in modes = ("bsp",)'
        )


SOLUTIONS: Plugins[Solution] = Plugins("solution", GROUP, Solution, BUILT_IN, _check_modes)
names = SOLUTIONS.names
kind_of = SOLUTIONS.kind_of
solution = SOLUTIONS.make
