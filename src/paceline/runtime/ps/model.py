"""The user's modules as a model that servers hold.

Dense parameters become views of one flat tensor per dtype, in the order in which the optimizers
take them, so that a pull is one copy and a gradient one concatenation. Embeddings with sparse
gradients become tables: their weight leaves the worker and their forward works on fetched rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.ps.embedding import Embedding, is_table
from paceline.runtime.ps.lookup import Lookups, TableLookup, embed, embed_bag
from paceline.runtime.ps.optimizer import FROZEN, group_of, table_group
from paceline.runtime.ps.port import Ids
from paceline.runtime.ps.rules import INSTEAD, check_group
from paceline.wire.schema import DenseTensor, ModelSchema, OptimizerGroup, Table

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}

NOBODY = -1
"""Stands for the optimizer of parameters that are not trained."""


@dataclass(slots=True, eq=False)
class Dense:
    """One dense parameter and its place in the flat vector of its dtype."""

    param: nn.Parameter
    name: str
    optimizer: int
    group: int
    offset: int = 0


@dataclass(slots=True, eq=False)
class BoundTable:
    """One table, the parameter that stands for it and the modules that read it."""

    table: Table
    weight: nn.Parameter
    modules: list[nn.Module]
    lookup: TableLookup


class Model:
    """Modules and optimizers, bound to each other and described by ``schema``.

    Making it changes nothing; ``attach`` does, once the model is held elsewhere.

    Raises:
        ConfigError: something that servers cannot hold or run; the message says what instead.
    """

    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], seed: int
    ) -> None:
        self.modules, self.optimizers, self.seed = tuple(modules), tuple(optimizers), seed
        self._groups: list[OptimizerGroup] = []
        self._settings: list[dict[str, Any] | None] = []
        """The torch parameter group whose lr is the rate; None: rate 0."""
        self._trained_by = _owners(optimizers)
        named = dict(_named_modules(modules))
        self._paths = _paths(modules)
        readers = _table_readers(named.values())
        self.tables = [self._bind(index, mods) for index, mods in enumerate(readers.values())]
        self.dense = self._lay_out(_dense_parameters(named, readers))
        self._check_complete(readers)
        self._params = [self._params_of(number) for number in range(len(self.optimizers))]
        self.schema = self._make_schema()
        self.flat: dict[str, Tensor] = {}

    # ------------------------------------------------------------------ binding

    def _group(self, weight: nn.Parameter, embedding: Embedding | None = None) -> int:
        """Index of the servers' group for ``weight``."""
        owner = self._trained_by.get(id(weight))
        if owner is None or not weight.requires_grad:
            group, settings = FROZEN, None
        else:
            optimizer, settings = owner[1], owner[2]
            group = group_of(optimizer, settings)
            if embedding is not None:
                group = table_group(
                    embedding.name, embedding.optimizer, embedding.optimizer_args, group
                )
        for index, (known, known_settings) in enumerate(
            zip(self._groups, self._settings, strict=True)
        ):
            if known == group and known_settings is settings:
                return index
        self._groups.append(group)
        self._settings.append(settings)
        return len(self._groups) - 1

    def _bind(self, index: int, readers: list[nn.Module]) -> BoundTable:
        module = readers[0]
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        paths = tuple(dict.fromkeys(p for reader in readers for p in self._paths[id(reader)]))
        embedding = module if isinstance(module, Embedding) else None
        name = paths[0] or "embedding" if embedding is None else embedding.name
        dtype = _dtype_name(weight, f"table {name!r}")
        group = self._group(weight, embedding)
        table = Table(name=name, dim=weight.shape[1], dtype=dtype, group=group)
        if embedding is not None:
            table = _dynamic(table, embedding, self.seed)
        else:
            table = msgspec.structs.replace(table, num_rows=weight.shape[0])
        if paths != (name,):
            table = msgspec.structs.replace(table, modules=paths)
        for reader in readers:
            _check_table_module(name, reader)
        check_group(self._groups[group].kind, self._groups[group].hyper, sparse=True)
        lookup = TableLookup(
            index=index,
            name=name,
            dim=table.dim,
            dtype=weight.dtype,
            num_rows=table.num_rows,
            trained=self._settings[group] is not None,
            device=weight.device,
        )
        return BoundTable(table, weight, readers, lookup)

    def _lay_out(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Dense]:
        dense = []
        for name, param in parameters:
            _dtype_name(param, f"parameter {name!r}")
            group = self._group(param)
            check_group(self._groups[group].kind, self._groups[group].hyper, sparse=False)
            owner = self._trained_by.get(id(param))
            frozen = owner is None or not param.requires_grad
            dense.append(Dense(param, name, NOBODY if frozen else owner[0], group))  # type: ignore[index]
        devices = {one.param.device for one in dense}
        if len(devices) > 1:
            raise ConfigError(
                f"parameters are on {sorted(map(str, devices))}; put the whole model on one device"
            )
        dense.sort(key=lambda one: (one.optimizer == NOBODY, one.optimizer))  # stable
        ends: dict[torch.dtype, int] = {}
        for one in dense:
            one.offset = ends.get(one.param.dtype, 0)
            ends[one.param.dtype] = one.offset + one.param.numel()
        return dense

    def _params_of(self, optimizer: int) -> dict[str, list[nn.Parameter]]:
        """What an optimizer trains, by dtype, in flat order."""
        params: dict[str, list[nn.Parameter]] = {}
        for one in self.dense:
            if one.optimizer == optimizer:
                params.setdefault(_DTYPES[one.param.dtype], []).append(one.param)
        return params

    def _check_complete(self, readers: Mapping[int, list[nn.Module]]) -> None:
        known = {id(one.param) for one in self.dense} | set(readers)
        for number, _, settings in self._trained_by.values():
            for param in settings["params"]:
                if id(param) not in known:
                    raise ConfigError(
                        f"optimizer {number} trains a parameter of shape {tuple(param.shape)} that "
                        "is in no model given to job.prepare; pass all models and their "
                        "optimizers in one call"
                    )
        names = [bound.table.name for bound in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"two tables are called {twice[0]!r}; give each pl.Embedding a name of its own"
            )

    def _make_schema(self) -> ModelSchema:
        names: dict[int, tuple[str, ...]] = {}
        for root, prefix in _prefixed(self.modules):
            for name, param in root.named_parameters(prefix, remove_duplicate=False):
                names[id(param)] = (*names.get(id(param), ()), name)
        return ModelSchema(
            dense=tuple(
                DenseTensor(
                    name=one.name,
                    shape=tuple(one.param.shape),
                    dtype=_DTYPES[one.param.dtype],
                    offset=one.offset,
                    group=one.group,
                    names=() if names[id(one.param)] == (one.name,) else names[id(one.param)],
                )
                for one in self.dense
            ),
            tables=tuple(bound.table for bound in self.tables),
            groups=tuple(self._groups),
        )

    # ------------------------------------------------------------------ values

    def initial(self) -> tuple[dict[str, Array], dict[int, Array]]:
        """The values that the modules hold now: (dtype -> flat vector, fixed table -> rows)."""
        tables = {
            index: bound.weight.detach().cpu().numpy()
            for index, bound in enumerate(self.tables)
            if bound.table.num_rows is not None
        }
        return {d: flat.cpu().numpy() for d, flat in self._concatenated().items()}, tables

    def _concatenated(self) -> dict[str, Tensor]:
        by_dtype: dict[str, list[Tensor]] = {}
        for one in self.dense:
            values = one.param.detach().reshape(-1)
            by_dtype.setdefault(_DTYPES[one.param.dtype], []).append(values)
        return {dtype: torch.cat(values) for dtype, values in by_dtype.items()}

    def attach(self, lookups: Lookups) -> None:
        """Make dense parameters views of the flat vectors, and tables read fetched rows."""
        self.flat = self._concatenated()
        for one in self.dense:
            one.param.data = self.view(self.flat, one)
        for bound in self.tables:
            # Keeps its shape without its memory; whoever computes with it gets NaN, not a guess.
            empty = torch.full((1, 1), torch.nan, dtype=bound.weight.dtype)
            bound.weight.data = empty.to(bound.weight.device).expand(bound.weight.shape)
            for module in bound.modules:
                forward: Callable[..., Tensor] = (
                    embed_bag if isinstance(module, nn.EmbeddingBag) else embed
                )
                module.forward = partial(forward, lookups, bound.lookup, module)

    def view(self, flat: Mapping[str, Tensor], one: Dense) -> Tensor:
        """The part of the flat vectors that is this parameter."""
        part = flat[_DTYPES[one.param.dtype]][one.offset : one.offset + one.param.numel()]
        return part.view(one.param.shape)

    def load(self, dense: Mapping[str, Array]) -> None:
        """Copy pulled values into the parameters."""
        for dtype, values in dense.items():
            self.flat[dtype].copy_(torch.from_numpy(values))

    # ------------------------------------------------------------------ gradients

    def gradient_of(self, optimizer: int) -> dict[str, Tensor] | None:
        """A copy of the gradients of an optimizer's dense parameters, by dtype; None: none has one.

        Raises:
            ConfigError: the weight of a table was used other than by looking up rows.
        """
        for bound in self.tables:
            if bound.weight.grad is not None:
                raise ConfigError(
                    f"the weight of table {bound.table.name!r} was used directly; it is not in the "
                    "worker: look rows up by calling the module, or use sparse=False"
                )
        parts = {}
        found = False
        for dtype, params in self._params[optimizer].items():
            grads = [param.grad for param in params]
            lacking = [index for index, grad in enumerate(grads) if grad is None or grad.is_sparse]
            for index in lacking:
                grad = grads[index]
                grads[index] = torch.zeros_like(params[index]) if grad is None else grad.to_dense()
                found = found or grad is not None
            found = found or len(lacking) < len(grads)
            parts[dtype] = torch.cat([grad.reshape(-1) for grad in grads if grad is not None])
        return parts if found else None

    def whole_gradient(self, parts: Sequence[Mapping[str, Tensor] | None]) -> dict[str, Array]:
        """The flat gradients from those of all optimizers, in their order; what lacks is 0."""
        whole = {}
        for dtype, flat in self.flat.items():
            grads = [part[dtype] for part in parts if part is not None and dtype in part]
            if sum(map(Tensor.numel, grads)) == flat.numel():
                whole[dtype] = (grads[0] if len(grads) == 1 else torch.cat(grads)).cpu().numpy()
            else:
                whole[dtype] = self._spread(dtype, parts)
        return whole

    def _spread(self, dtype: str, parts: Sequence[Mapping[str, Tensor] | None]) -> Array:
        whole = np.zeros(self.flat[dtype].numel(), dtype)
        for index, part in enumerate(parts):
            if part is not None and dtype in part:
                first = next(
                    one
                    for one in self.dense
                    if one.optimizer == index and _DTYPES[one.param.dtype] == dtype
                )
                grads = part[dtype].cpu().numpy()
                whole[first.offset : first.offset + grads.size] = grads
        return whole

    def rates(self) -> tuple[float, ...]:
        """Learning rate of each group of the schema, now."""
        return tuple(0.0 if group is None else float(group["lr"]) for group in self._settings)


# ---------------------------------------------------------------------------- finding things


def _prefixed(roots: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str]]:
    """Each model, and what the names of its parts begin with."""
    for index, root in enumerate(roots):
        yield root, "" if len(roots) == 1 else str(index)


def _named_modules(roots: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for root, prefix in _prefixed(roots):
        yield from root.named_modules(prefix=prefix)


def _paths(roots: Sequence[nn.Module]) -> dict[int, list[str]]:
    """All names of each module, by its id: one may be in several places."""
    found: dict[int, list[str]] = {}
    for root, prefix in _prefixed(roots):
        for name, module in root.named_modules(prefix=prefix, remove_duplicate=False):
            found.setdefault(id(module), []).append(name)
    return found


def _table_readers(modules: Iterable[nn.Module]) -> dict[int, list[nn.Module]]:
    """The modules that read each table, by the id of its weight."""
    readers: dict[int, list[nn.Module]] = {}
    for module in modules:
        if is_table(module):
            readers.setdefault(id(module.weight), []).append(module)
    return readers


def _dense_parameters(
    named: Mapping[str, nn.Module], readers: Mapping[int, list[nn.Module]]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter once, under its first name, that is not a table."""
    seen: set[int] = set()
    for path, module in named.items():
        for name, param in module._parameters.items():
            full = f"{path}.{name}" if path else name
            if param is None or id(param) in seen:
                continue
            if id(param) not in readers:
                seen.add(id(param))
                yield full, param
            elif module not in readers[id(param)]:
                raise ConfigError(
                    f"{full} is also the weight of an embedding with sparse=True; a weight that is "
                    "shared with another kind of layer stays in the worker: use sparse=False"
                )


def _owners(optimizers: Sequence[Optimizer]) -> dict[int, tuple[int, Optimizer, dict[str, Any]]]:
    """By the id of a parameter: number of its optimizer, the optimizer, its parameter group."""
    owners: dict[int, tuple[int, Optimizer, dict[str, Any]]] = {}
    for number, optimizer in enumerate(optimizers):
        for settings in optimizer.param_groups:
            group_of(optimizer, settings)
            for param in settings["params"]:
                if id(param) in owners:
                    raise ConfigError(
                        f"a parameter of shape {tuple(param.shape)} is given to optimizer "
                        f"{owners[id(param)][0]} and to optimizer {number}; give each parameter "
                        "to one"
                    )
                owners[id(param)] = number, optimizer, settings
    return owners


def _check_table_module(name: str, module: nn.Module) -> None:
    for option in ("max_norm", "scale_grad_by_freq"):
        value = getattr(module, option, None)
        if value:
            raise ConfigError(
                f"table {name!r}: {option}={value!r} cannot be done for rows on servers; leave it "
                "out, or use sparse=False to keep the whole embedding in the worker"
            )
    if getattr(module, "mode", "sum") not in ("sum", "mean"):
        raise ConfigError(f"table {name!r}: mode={module.mode!r}; expected sum or mean")


def _dtype_name(param: Tensor, what: str) -> str:
    name = _DTYPES.get(param.dtype)
    if name is None:
        raise ConfigError(
            f"{what} is {param.dtype}; servers hold float32 and float64: convert the model with "
            f".float(), and use torch.autocast for faster arithmetic. {INSTEAD}"
        )
    return name


def _dynamic(table: Table, module: Embedding, seed: int) -> Table:
    # Each table draws its own rows from the job's seed.
    own = (seed * 0x9E3779B1 + crc32(module.name.encode())) % 2**62
    return msgspec.structs.replace(
        table,
        init_seed=own if module.seed is None else module.seed,
        init_std=module.std,
        admit=module.admit,
        ttl_steps=module.ttl_steps,
        capacity=module.capacity,
    )


def rows_in_order(ids: Ids, rows: Array) -> tuple[Ids, Array]:
    """Exported rows by ascending id."""
    order = np.argsort(ids, kind="stable")
    return ids[order], rows[order]
