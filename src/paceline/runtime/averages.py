"""Averages of weights that follow the job's steps."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

_FOLLOWS = "_follows_steps"


def update_when(average: AveragedModel, is_due: Callable[[], bool]) -> None:
    """Have ``average.update_parameters`` do nothing unless this is true; again: nothing.

    Copies and pickles are of the class that the average had, and are updated at each call.
    """
    if hasattr(average, _FOLLOWS):
        return
    kind = type(average)

    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        # A copy that a method of its class has made may be of this class.
        if self is not average or is_due():
            kind.update_parameters(self, model)

    def reduce(self: AveragedModel, _protocol: Any) -> Any:
        # What later protocols make must be of the object's own class.
        made = kind.__reduce_ex__(self, 1)
        if not isinstance(made, tuple):
            return made
        function, arguments, *others = made
        plain = tuple(kind if one is type(self) else one for one in arguments)
        return kind if function is type(self) else function, plain, *others

    # A class of its own: what an object holds itself goes into its copies and pickles.
    own = {"update_parameters": update_parameters, "__reduce_ex__": reduce, _FOLLOWS: True}
    average.__class__ = type(kind.__name__, (kind,), own)
