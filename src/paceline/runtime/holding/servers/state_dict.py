"""``model.state_dict()`` of a prepared model: the values that the job holds, not the worker's.

Works for any prepared module at any time, also in the middle of a step: what the step computes on
is not touched. Tables of fixed size appear whole under the name of their weight, tables of
`pl.Embedding` as ``keys`` and ``rows``, by ascending key.

``model.load_state_dict(best)`` after the last loop takes the model back from its holder: from then
on the worker's own values count, and the script trains no more with them.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paceline.base.errors import ConfigError
from paceline.runtime.holding.servers.model import BoundTable, Dense, Model, rows_in_order
from paceline.runtime.holding.servers.port import TrainingPort
from paceline.runtime.script.embedding import is_table

_HOOKS = ("_state_dict_hooks", "_load_state_dict_pre_hooks")
"""Attributes in which a module keeps what is called with its state."""


class Gatherer:
    """Puts true values in the state dicts of a model's modules.

    Args:
        trainer: the holder.
        model: what was prepared.
        check_over: raises ConfigError while the model still trains.
    """

    def __init__(self, trainer: TrainingPort, model: Model, check_over: Callable[[], None]) -> None:
        self._trainer, self._model, self._check_over = trainer, model, check_over
        self._dense: dict[int, Dense] = {id(one.param): one for one in model.dense}
        self._tables: dict[int, BoundTable] = {id(one.weight): one for one in model.tables}
        self._hooks: list[RemovableHandle] = []
        self._flat: Mapping[str, Tensor] = {}
        self._filled: ref[Any] | None = None
        """The state dict that ``_flat`` was gathered for: one gathering serves all its modules."""

    def attach(self) -> None:
        """Hook into every module that has parameters of its own."""
        seen: set[int] = set()
        for root in self._model.modules:
            self._hooks.append(root.register_load_state_dict_pre_hook(self._take_back))
            for module in root.modules():
                if id(module) in seen:
                    continue
                seen.add(id(module))
                if module._parameters:
                    # torch marks the hook, which a bound method does not allow.
                    hook = module.register_state_dict_post_hook(partial(self._fill))
                    self._hooks.append(hook)
                # `copy` asks an object for this, in its own dict.
                module.__dict__["__deepcopy__"] = partial(self._copy, module)

    def _take_back(self, *_: object) -> None:
        """Have all values here, whole, before others are loaded.

        Raises:
            ConfigError: the model still trains, or has a table that no worker can hold.
        """
        if self._model.is_back:
            return
        self._check_over()
        growing = [bound.table.name for bound in self._model.tables if not bound.table.num_rows]
        if growing:
            raise ConfigError(
                f"load_state_dict was called on a prepared model with pl.Embedding {growing[0]!r}, "
                "whose rows live in a table of the job; evaluate the model as it is, or train a "
                "job to the step that is the best"
            )
        self._trainer.settle()
        rows = [
            rows_in_order(*self._trainer.export(bound.lookup.index))[1]
            for bound in self._model.tables
        ]
        self._model.take_back(self._trainer.dense(), rows)
        ours = {handle.id for handle in self._hooks}
        for module in {part for root in self._model.modules for part in root.modules()}:
            module.__dict__.pop("__deepcopy__", None)
            for hooks in (module.__dict__[name] for name in _HOOKS):
                # Replaced, not removed: torch goes through one of the two at this moment.
                hooks.update((key, _do_nothing) for key in hooks if key in ours)

    def _copy(self, module: nn.Module, memo: dict[int, Any]) -> nn.Module:
        """An ordinary module with the values that the job holds now.

        Raises:
            ConfigError: its tables are not here to be copied.
        """
        if any(is_table(one) for one in module.modules()):
            raise ConfigError(
                "a prepared model with sparse tables was copied (copy.deepcopy), whose rows the "
                "worker does not hold; copy it before job.prepare, or use job.state_dict()"
            )
        if id(self) not in memo:  # the outermost
            memo[id(self)] = self._gather()
        del module.__dict__["__deepcopy__"]
        hooks = {name: module.__dict__[name] for name in _HOOKS}
        try:
            ours = {handle.id for handle in self._hooks}
            for name, found in hooks.items():
                kept = ((key, hook) for key, hook in found.items() if key not in ours)
                module.__dict__[name] = OrderedDict(kept)
            made = deepcopy(module, memo)
        finally:
            module.__dict__.update(hooks)
            module.__dict__["__deepcopy__"] = partial(self._copy, module)
        # Into the copy only: backward of the batch in hand needs the values that it computed with.
        for param in module._parameters.values():
            if id(param) in self._dense:
                values = self._model.view(memo[id(self)], self._dense[id(param)])
                memo[id(param)].data.copy_(values)
        return made

    def _gather(self) -> dict[str, Tensor]:
        """The flat vectors that the job holds now."""
        self._model.check_values()
        self._trainer.settle()
        dense = self._trainer.dense()
        return {dtype: torch.from_numpy(values) for dtype, values in dense.items()}

    def _fill(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        if self._filled is None or self._filled() is not state:
            self._flat = self._gather()
            self._filled = ref(state)
        for name, param in module._parameters.items():
            if id(param) in self._dense:
                one = self._dense[id(param)]
                # A copy: formats like safetensors refuse tensors that share memory.
                state[prefix + name] = (
                    self._model.view(self._flat, one).to(one.param.device).clone()
                )
            elif id(param) in self._tables:
                self._fill_table(self._tables[id(param)], state, prefix, name)

    def _fill_table(self, bound: BoundTable, state: Any, prefix: str, name: str) -> None:
        keys, rows = rows_in_order(*self._trainer.export(bound.lookup.index))
        if bound.table.num_rows is not None:
            state[prefix + name] = torch.from_numpy(rows)
            return
        del state[prefix + name]
        state[prefix + "keys"] = torch.from_numpy(keys)
        state[prefix + "rows"] = torch.from_numpy(rows)


def _do_nothing(*_: object) -> None:
    """Stand for a hook of a model that is an ordinary one again."""
