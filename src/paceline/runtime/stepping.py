"""What is alike in strategies whose workers change the model with torch's own optimizers."""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.scaling import follow_steps
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.step_frame import OUTSIDE, StepFrame
from paceline.wire.spec import JobSpec

BEGIN_LATER = (
    "give the optimizer all of its groups before job.prepare, with requires_grad=True, and call "
    "requires_grad_(False) after it on what is to begin later: until it is thawed it has no "
    "gradient, and stays as it is"
)
"""The remedy, which computes what torch does for a group that is added later."""


class Stepping:
    """The part of a `Strategy` that makes ``optimizer.step()`` a step of the job."""

    _loop: StepFrame[Any] | None

    def __init__(self, spec: JobSpec, rank: int) -> None:
        self.spec, self.rank = spec, rank
        self.script_state = ScriptState()
        """See `Strategy.script_state`."""
        self._optimizers: Sequence[Optimizer] = ()
        self._loop = None
        self.accumulate = 1
        """See `Strategy.accumulate`."""
        #: What the optimizers' own steps are.
        self._takes: list[Callable[[], Any]] = []

    @property
    def step_in_hand(self) -> int:
        """See `Strategy.step_in_hand`."""
        return 0

    @property
    def in_step(self) -> bool:
        return self._loop is not None and self._loop.in_step

    def _follow_all(
        self, optimizers: Sequence[Optimizer], scalers: Sequence[GradScaler] = ()
    ) -> None:
        self._optimizers = optimizers
        for number, optimizer in enumerate(optimizers):
            self._follow(optimizer, number)
        for scaler in scalers:
            follow_steps(scaler, optimizers, lambda: self._loop)

    def _follow(self, optimizer: Optimizer, number: int) -> None:
        """Make ``optimizer.step()`` apply the mean over all workers, or nothing."""
        if isinstance(optimizer, LBFGS):
            raise ConfigError(
                "job.prepare: LBFGS computes gradients again and again within a step, and a job "
                "computes them once for each batch; use another optimizer"
            )
        take = optimizer.step
        known = {id(param): param.requires_grad for param in params_of(optimizer)}
        self._takes.append(take)

        def step(own: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                raise ConfigError(
                    f"{type(own).__name__}.step() was given a closure, which computes gradients "
                    "again and again; a job takes optimizers that use them once"
                )
            if self._loop is None:
                raise ConfigError(OUTSIDE)
            own._opt_called = True  # type: ignore[attr-defined]
            _check_known(own, known)
            if self._loop.on_step(number):
                take()
            self._loop.stepped()
            return None

        # What schedulers made before look for, to see whether somebody took `step` away from them.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.add_param_group = MethodType(_refuse_group, optimizer)  # type: ignore[method-assign]


def _refuse_group(optimizer: Optimizer, *_: Any) -> None:
    raise ConfigError(
        f"{type(optimizer).__name__}.add_param_group was called after job.prepare; other workers, "
        f"and cuts, have the groups of then: {BEGIN_LATER}"
    )


def params_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All of its groups, in their order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def _check_known(optimizer: Optimizer, known: dict[int, bool]) -> None:
    """Raises ConfigError: it would train something by the gradients of this worker alone."""
    for param in params_of(optimizer):
        if id(param) not in known:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} was not in the groups of "
                f"{type(optimizer).__name__} at job.prepare, so that no other worker, and no cut, "
                f"knows it; {BEGIN_LATER}"
            )
        if not known[id(param)] and param.grad is not None:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} has a gradient, but was frozen at "
                f"job.prepare, so that it is not averaged over the workers; {BEGIN_LATER}"
            )


def trained_by(optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """The parameters of all optimizers, each once, in their order.

    Raises:
        ConfigError: one that is not there, or is in two optimizers.
    """
    params: list[nn.Parameter] = []
    for optimizer in optimizers:
        params += [param for param in params_of(optimizer) if param.requires_grad]
    if len({id(param) for param in params}) < len(params):
        raise ConfigError("a parameter is in two optimizers (or twice in one); give it to one")
    return params


def clip_whole(params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """As torch's ``clip_grad_norm_``; the norm of gradients in shards is that of the whole."""
    norm = clip_grad_norm_(params, max_norm)
    # Not by its type, whose import takes a second, also where nothing is in shards.
    whole: Tensor = getattr(norm, "full_tensor", lambda: norm)()
    return whole
