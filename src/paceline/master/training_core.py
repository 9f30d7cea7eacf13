"""Core that the rooms of one `Training` share."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from paceline.master.holding.edge import HolderEdge
from paceline.protocol.acts import Instruction
from paceline.protocol.training import MasterState


class TrainingCore(NamedTuple):
    """The state machine of a training, and how its instructions are carried out."""

    state: MasterState
    edge: HolderEdge
    """Edge for what is done for its kind of holder alone."""
    do: Callable[[Iterable[Instruction]], None]
    fail: Callable[[str], None]
    """End the job for this reason."""
