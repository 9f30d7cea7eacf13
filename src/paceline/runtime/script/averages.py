"""Averages of weights that follow the job's steps, or are refused: of weights held elsewhere."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any
from weakref import ref

from torch import nn
from torch.optim.swa_utils import AveragedModel

from paceline.base.errors import ConfigError
from paceline.runtime.state.restoring import restore_module

_FOLLOWS, _ELSEWHERE = "_follows_steps", "_held_elsewhere"

OnMade = Callable[[AveragedModel, nn.Module], None]
"""Called with an average and what it is of."""


class _Made:
    """The averages that this process has made, in order."""

    def __init__(self) -> None:
        self._averages: list[tuple[ref[AveragedModel], ref[nn.Module]]] = []
        self._on_made: OnMade | None = None

    def note(self, average: AveragedModel, source: nn.Module) -> None:
        """Note one more average."""
        self._averages.append((ref(average), ref(source)))
        if self._on_made is not None:
            self._on_made(average, source)

    def tell(self, on_made: OnMade) -> None:
        """Tell this function, and no other, of each that lives, and of each that is made later."""
        self._averages = [pair for pair in self._averages if all(one() for one in pair)]
        self._on_made = on_made
        for average, source in ((one(), other()) for one, other in list(self._averages)):
            if average is not None and source is not None:
                on_made(average, source)


made = _Made()
_begin = AveragedModel.__init__


@wraps(_begin)
def _noted(self: AveragedModel, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    _begin(self, model, *args, **kwargs)
    made.note(self, model)


AveragedModel.__init__ = _noted  # type: ignore[method-assign]


class KeptAverage:
    """An average of the script's in `job.state`, as long as the script has it."""

    def __init__(self, average: AveragedModel) -> None:
        self._average = ref(average)

    def holds(self, average: AveragedModel) -> bool:
        """Tell whether it is this average."""
        return self._average() is average

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the average; empty: the script no longer has it."""
        average = self._average()
        return {} if average is None else average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another worker, or a cut, holds."""
        average = self._average()
        if average is not None and state:
            restore_module(average, state)


def follows_steps(kind: type) -> bool:
    """Tell whether an average of this class has its updates by `update_when`."""
    return hasattr(kind, _FOLLOWS)


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


_update = AveragedModel.update_parameters


@wraps(_update)
def _checked(self: AveragedModel, model: nn.Module) -> None:
    if any(hasattr(param, _ELSEWHERE) for param in model.parameters()):
        raise ConfigError(
            f"{type(self).__name__}.update_parameters was given a model that parameter servers "
            "hold: after optimizer.step() this worker still has the values of before it; run the "
            "job with --strategy allreduce, and keep the average in job.state"
        )
    _update(self, model)


def refuse_averages_of(params: Iterable[nn.Parameter]) -> None:
    """Have ``AveragedModel.update_parameters`` refuse models of these, whose values are elsewhere.

    Nobody knows which averages a script has, so this is asked of the class.
    """
    for param in params:
        setattr(param, _ELSEWHERE, True)
    AveragedModel.update_parameters = _checked  # type: ignore[method-assign]
