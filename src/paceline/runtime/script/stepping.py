"""Common part of strategies whose workers change the model with torch's own optimizers."""

from collections.abc import Callable, Collection, Sequence
from operator import is_
from types import MethodType
from typing import Any, Literal

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.script.scaling import follow_steps
from paceline.runtime.script.step_frame import NO_GRADIENT, OUTSIDE, StepFrame
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.variables.variables import Variables
from paceline.wire.spec import JobSpec

BEGIN_LATER = (
    "give the optimizer all of its groups before job.prepare, with requires_grad=True, and call "
    "requires_grad_(False) after it on what is to begin later: until it is thawed it has no "
    "gradient, and stays as it is"
)
"""The remedy, which computes what torch does for a group that is added later."""
BY_EPOCH = (
    "do it between two loops over job.batches, by the number of the epoch, so that a worker that "
    "joins later does it, too: if epoch >= 3"
)
"""The remedy of members that may change groups between two loops."""
Regrouping = Literal["never", "between loops", "freely"]


class Stepping:
    """The part of a `Strategy` that makes ``optimizer.step()`` a step of the job."""

    _loop: StepFrame[Any] | None
    regrouping: Regrouping = "never"
    """Moments at which scripts may add groups to an optimizer, or thaw what was frozen."""
    checks_gradients = False
    """Whether a step without any gradient is refused here: its loop does not see that."""

    def __init__(self, spec: JobSpec, rank: int) -> None:
        self.spec, self.rank = spec, rank
        self.script_state = ScriptState()
        """See `Strategy.script_state`."""
        self.variables = Variables()
        """See `Strategy.variables`."""
        self._optimizers: Sequence[Optimizer] = ()
        self._loop = None
        self.accumulate = 1
        """See `Strategy.accumulate`."""
        #: The optimizers' own steps.
        self._takes: list[Callable[..., Any]] = []
        #: For each optimizer: what the members know of its parameters.
        self._known: list[KnownParams] = []

    @property
    def stands_in(self) -> bool:
        """See `Strategy.stands_in`."""
        return False

    def close_step(self) -> None:
        """See `Strategy.close_step`."""
        if self._loop is not None:
            self._loop.close_step()

    @property
    def in_step(self) -> bool:
        return self._loop is not None and self._loop.in_step

    def _follow_all(
        self, optimizers: Sequence[Optimizer], scalers: Sequence[GradScaler] = ()
    ) -> None:
        self._optimizers, self._takes = optimizers, []
        self._know(trained_by(optimizers))
        for number, optimizer in enumerate(optimizers):
            self._follow(optimizer, number)
        for scaler in scalers:
            follow_steps(scaler, optimizers, lambda: self._loop)

    def _trained_by(self, optimizer: int) -> list[nn.Parameter]:
        """Return what an optimizer trains."""
        return trained_by([self._optimizers[optimizer]])

    def _know(self, trained: Sequence[nn.Parameter]) -> None:
        """Have members know all parameters of the optimizers from here on, and train these."""
        numbers = set(map(id, trained))
        self._known = [KnownParams(params_of(one), numbers) for one in self._optimizers]

    def _follow(self, optimizer: Optimizer, number: int) -> None:
        """Make ``optimizer.step()`` apply the mean over all workers, or nothing."""
        self._check_kind(optimizer)
        # The step of its class, also if a training before had this optimizer.
        take = getattr(optimizer.step, "_takes", optimizer.step)
        self._takes.append(take)

        def step(own: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if not any(one is own for one in self._optimizers):
                raise ConfigError(_OVER.format(type(own).__name__))
            if self._loop is None:
                raise ConfigError(OUTSIDE)
            own._opt_called = True  # type: ignore[attr-defined]
            self._check_known(own, self._known[number])
            if closure is not None:
                return self._step_by(closure, number)
            self._check_gradients()
            found = take() if self._loop.on_step(number) else None
            self._loop.stepped()
            return found

        # Schedulers made before look for this, to see whether somebody took `step` from them.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        step._takes = take  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        if self.regrouping != "freely":
            self._guard_groups(optimizer)

    def _check_kind(self, optimizer: Optimizer) -> None:
        """Raise ConfigError if this strategy cannot have an optimizer step."""

    def _check_gradients(self) -> None:
        """Raise ConfigError if the last optimizer is about to step on a batch without gradients."""
        loop = self._loop if self.checks_gradients else None
        step = loop.step if loop is not None else None
        if loop is None or step is None or step.has_gradients or loop.is_left_out:
            return
        params = (param for one in self._optimizers for param in params_of(one))
        step.has_gradients = any(param.grad is not None for param in params)
        if not step.has_gradients and len(step.stepped) + 1 >= len(self._optimizers):
            raise ConfigError(NO_GRADIENT)

    def _step_by(self, closure: Callable[[], Any], number: int) -> Any:
        """Have an optimizer step that calls a closure, which computes the gradients."""
        raise NotImplementedError

    def _guard_groups(self, optimizer: Optimizer) -> None:
        add = optimizer.add_param_group

        def add_param_group(own: Optimizer, group: dict[str, Any]) -> None:
            said = f"{type(own).__name__}.add_param_group was called"
            if self.regrouping == "never":
                raise ConfigError(
                    f"{said} after job.prepare; other workers, and cuts, have the groups of then: "
                    f"{BEGIN_LATER}"
                )
            if self._loop is not None:
                raise ConfigError(f"{said} in a loop over job.batches; {BY_EPOCH}")
            add(group)

        optimizer.add_param_group = MethodType(add_param_group, optimizer)  # type: ignore[method-assign]

    def _check_known(self, optimizer: Optimizer, known: "KnownParams") -> None:
        """Raises ConfigError: it would train something by the gradients of this worker alone."""
        params = params_of(optimizer)
        if self.regrouping == "freely" or known.are_all(params):
            return
        then, remedy = "at job.prepare", BEGIN_LATER
        if self.regrouping == "between loops":
            then, remedy = "when the loop over job.batches began", f"{BY_EPOCH}; or {BEGIN_LATER}"
        for param in params:
            shape = tuple(param.shape)
            if not known.has(param):
                raise ConfigError(
                    f"a parameter of shape {shape} was not in the groups of "
                    f"{type(optimizer).__name__} {then}, so that no other worker, and no cut, "
                    f"knows it; {remedy}"
                )
            if not known.trains(param) and param.grad is not None:
                raise ConfigError(
                    f"a parameter of shape {shape} has a gradient, but was frozen {then}, so that "
                    f"it is not averaged over the workers; {remedy}"
                )


class KnownParams:
    """The parameters of one optimizer that all members know.

    Args:
        params: all of them, in their order.
        trained: ids of those that are trained; the others are frozen.
    """

    def __init__(self, params: Sequence[nn.Parameter], trained: Collection[int]) -> None:
        self._params = params
        self._trains = {id(param): id(param) in trained for param in params}
        self._frozen = [param for param in params if not self._trains[id(param)]]

    def are_all(self, params: Sequence[nn.Parameter]) -> bool:
        """Tell whether these are the same, and none that is frozen has a gradient."""
        are_same = len(params) == len(self._params) and all(map(is_, params, self._params))
        return are_same and all(param.grad is None for param in self._frozen)

    def has(self, param: nn.Parameter) -> bool:
        return id(param) in self._trains

    def trains(self, param: nn.Parameter) -> bool:
        return self._trains[id(param)]


_OVER = (
    "{0}.step() was called after job.prepare has begun the next training, in which this optimizer "
    "is not; models and optimizers that train together belong in one call of job.prepare"
)


def params_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups of an optimizer, in their order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def trained_by(
    optimizers: Sequence[Optimizer], before: Sequence[nn.Parameter] = ()
) -> list[nn.Parameter]:
    """The parameters of all optimizers, each once, in their order.

    Args:
        optimizers: all.
        before: parameters that count, though they may be frozen now.

    Raises:
        ConfigError: one that is not there, or is in two optimizers.
    """
    counting, params = set(map(id, before)), list[nn.Parameter]()
    for optimizer in optimizers:
        of_one = params_of(optimizer)
        params += [param for param in of_one if param.requires_grad or id(param) in counting]
    if len({id(param) for param in params}) < len(params):
        raise ConfigError("a parameter is in two optimizers (or twice in one); give it to one")
    return params


def clip_whole(params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Clip as torch's ``clip_grad_norm_``; return the norm, of the whole if it is in shards."""
    norm = clip_grad_norm_(params, max_norm)
    # Not by its type, whose import takes a second, also where nothing is in shards.
    whole: Tensor = getattr(norm, "full_tensor", lambda: norm)()
    return whole
