"""Parameters that members train, and their reducer; both change when a script regroups."""

from collections.abc import Sequence

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.runtime.group.closures import calls_again
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.holding.replicas.blocks import BlockReducer
from paceline.runtime.holding.replicas.buffers import Buffers
from paceline.runtime.holding.replicas.turns import TurnReducer
from paceline.runtime.holding.replicas.undo import Undo
from paceline.runtime.script.prepared import check_parameters
from paceline.runtime.script.stepping import params_of, trained_by


class Averaging:
    """Parameters that one member trains, and their reducer.

    Args:
        modules: that were prepared.
        optimizers: that were prepared.
        schedulers: that were prepared.
        scalers: that were prepared.
        deterministic: whether sums are the same, whichever member computes what.
        in_turn: whether several optimizers may take turns.
        training: see `Watcher`.

    Attributes:
        params: what is trained.
        reducer: averages its gradients.
        watcher: compares what the members hold.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler],
        *,
        deterministic: bool,
        in_turn: bool = True,
        training: int = 0,
    ) -> None:
        self._modules, self._optimizers = modules, optimizers
        #: What is trained though it may be frozen now: it was not when it was prepared.
        self._first = self.params = trained_by(optimizers)
        self._buffers = Buffers(modules) if deterministic else None
        self._undo = Undo(optimizers, schedulers)
        self._scaled, self._in_turn = bool(scalers), in_turn
        named = dict if self._buffers is None else self._buffers.named
        self.watcher = Watcher(modules, optimizers, named, training=training)
        self.watcher.trains(self.params)
        self._known = self._every()
        self.reducer = self._reducing()

    def _every(self) -> set[int]:
        return {id(param) for one in self._optimizers for param in params_of(one)}

    def _reducing(self) -> Reducer:
        # With several optimizers a backward may belong to any of them: nothing leaves before one
        # of them steps.
        early = len(self._optimizers) == 1
        if self._buffers is not None:
            return BlockReducer(self.params, self._buffers, early=early)
        by_closure = {k for k, one in enumerate(self._optimizers) if calls_again(one)}
        if not by_closure and (early or not self._in_turn):
            return Reducer(self.params, early=early)
        trained = set(map(id, self.params))
        of_each = [
            [param for param in params_of(one) if id(param) in trained] for one in self._optimizers
        ]
        return TurnReducer(of_each, self._undo, scaled=self._scaled, by_closure=by_closure)

    def regroup(self) -> bool:
        """Take in what the script has thawed, or added to an optimizer; whether there is any.

        Raises:
            ConfigError: it is in no model that was prepared, or in two optimizers, or has a
                gradient already.
        """
        params, every = trained_by(self._optimizers, self._first), self._every()
        if [*map(id, params)] == [*map(id, self.params)] and every == self._known:
            return False
        check_parameters(self._modules, self._optimizers, alone=False)
        self._check_fresh(params)
        self.params, self._known = params, every
        self.watcher.trains(params)
        self.reducer.close()
        self.reducer = self._reducing()
        return True

    def _check_fresh(self, params: Sequence[nn.Parameter]) -> None:
        """Refuse gradients from before parameters were trained: they are this life's alone."""
        before = set(map(id, self.params))
        stale = {
            id(one)
            for one in params
            if id(one) not in before and one.grad is not None and bool(one.grad.any())
        }
        named = [each for module in self._modules for each in module.named_parameters()]
        found = next((name for name, param in named if id(param) in stale), None)
        if found is not None:
            raise ConfigError(
                f"{found!r} begins to train, and has a gradient already: torch would add it to "
                "that of the next step, and a worker that joins would not have it; clear it when "
                "the layer is added to the optimizer (layer.zero_grad()), or freeze the layer "
                "until then (layer.requires_grad_(False))"
            )
