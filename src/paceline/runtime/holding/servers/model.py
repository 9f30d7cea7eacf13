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
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.lookup import Lookups, TableLookup, embed, embed_bag
from paceline.runtime.holding.servers.noted import Noted
from paceline.runtime.holding.servers.optimizer import (
    FROZEN_GROUP,
    Elsewhere,
    Settings,
    check_fresh,
    check_rate,
    group_of,
    table_group,
)
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.script.embedding import Embedding, is_table
from paceline.runtime.server.rules import INSTEAD, check_group
from paceline.wire.messages.data import Changed
from paceline.wire.schema import DenseTensor, ModelSchema, OptimizerGroup, Table

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}

_EDITED = (
    "parameter {!r} was {} after job.prepare by something else than an optimizer; parameter "
    "servers hold it, and would not know. Do it before job.prepare, or run the job with --strategy "
    "allreduce, where every worker holds the model"
)

_AS_IT_IS = (
    "the rows of a sparse table come from parameter servers, batch by batch; compile the model "
    "without fullgraph=True"
)

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


@dataclass(frozen=True, slots=True)
class Flat:
    """Contribution of one optimizer when it stepped: gradients of dense parameters, settings."""

    parts: Mapping[str, Tensor]
    """Gradients by dtype, end to end; those of a parameter without a gradient are 0."""
    lacking: frozenset[int]
    """The parameters, by their places in the schema, that have none."""
    rates: Mapping[int, float]
    """Learning rates of its groups."""
    changed: Changed
    """Hyper-parameters of the optimizer that are not as the schema has them."""


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
        self._settings: list[dict[int, Settings]] = [{} for _ in optimizers]
        """Hyper-parameters, by optimizer and group."""
        self._kinds: list[tuple[OptimizerGroup, int, bool, frozenset[str]]] = []
        """Marks that tell one group from another."""
        self._trained_by = _owners(optimizers)
        named = dict(_named_modules(modules))
        self._paths = _paths(modules)
        readers = _table_readers(named.values())
        self.tables = [self._bind(index, mods) for index, mods in enumerate(readers.values())]
        self.dense = self._lay_out(_dense_parameters(named, readers))
        self._check_names()
        numbers = range(len(self.optimizers))
        self._params = [self._params_of(number) for number in numbers]
        self._places = [frozenset(self._places_of(number)) for number in numbers]
        self._frozen = [self._frozen_of(number) for number in numbers]
        self._sizes = list(map(_members, self.optimizers))
        self.schema = self._make_schema()
        self.flat: dict[str, Tensor] = {}
        self.is_back = False
        """Whether the script has taken it back (`take_back`): its own values count."""
        self._noted: Noted | None = None
        self._held: list[tuple[int, int]] = []
        """Torch's count of changes and the address of the values, for each dense parameter."""
        self._slots: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = []
        """Places where modules hold the parameters."""

    # ------------------------------------------------------------------ binding

    def _group(self, weight: nn.Parameter, readers: Sequence[nn.Module] = ()) -> int:
        """Index of the servers' group for ``weight``, of a table if modules look rows up in it."""
        owner, sparse = self._trained_by.get(id(weight)), bool(readers)
        own = frozenset[str]()
        if owner is None or not weight.requires_grad:
            return self._numbered(FROZEN_GROUP, (FROZEN_GROUP, 0, False, own))
        number, optimizer, given = owner
        group = group_of(optimizer, given, sparse=sparse)
        check_rate(optimizer, given, weight.dtype)
        if sparse and isinstance(readers[0], Embedding):
            table = readers[0]
            own = frozenset(table.optimizer_args)
            group = table_group(table.name, table.optimizer, table.optimizer_args, group)
        check_group(group.kind, group.hyper, sparse)
        index = self._numbered(group, (group, id(given), sparse, own))
        if index not in self._settings[number]:
            settings = Settings(optimizer, given, group, sparse=sparse, own=own)
            self._settings[number][index] = settings
        return index

    def _numbered(
        self, group: OptimizerGroup, kind: tuple[OptimizerGroup, int, bool, frozenset[str]]
    ) -> int:
        if kind not in self._kinds:
            self._kinds.append(kind)
            self._groups.append(group)
        return self._kinds.index(kind)

    def _bind(self, index: int, readers: list[nn.Module]) -> BoundTable:
        module = readers[0]
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        paths = tuple(dict.fromkeys(p for reader in readers for p in self._paths[id(reader)]))
        embedding = module if isinstance(module, Embedding) else None
        name = paths[0] or "embedding" if embedding is None else embedding.name
        dtype = _dtype_name(weight, f"table {name!r}")
        group = self._group(weight, readers)
        table = Table(name=name, dim=weight.shape[1], dtype=dtype, group=group)
        if embedding is not None:
            table = _dynamic(table, embedding, self.seed)
        else:
            table = msgspec.structs.replace(table, num_rows=weight.shape[0])
        if paths != (name,):
            table = msgspec.structs.replace(table, modules=paths)
        for reader in readers:
            _check_table_module(name, reader)
        lookup = TableLookup(
            index=index,
            name=name,
            dim=table.dim,
            dtype=weight.dtype,
            num_rows=table.num_rows,
            trained=self._groups[group] != FROZEN_GROUP,
            device=weight.device,
            mixed=len({getattr(one, "padding_idx", None) for one in readers}) > 1,
        )
        return BoundTable(table, weight, readers, lookup)

    def _lay_out(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Dense]:
        dense = []
        for name, param in parameters:
            _dtype_name(param, f"parameter {name!r}")
            group = self._group(param)
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

    def _params_of(self, optimizer: int) -> dict[str, list[tuple[int, nn.Parameter]]]:
        """Return what an optimizer trains, with places in the schema: by dtype, in flat order."""
        params: dict[str, list[tuple[int, nn.Parameter]]] = {}
        for place, one in enumerate(self.dense):
            if one.optimizer == optimizer:
                params.setdefault(_DTYPES[one.param.dtype], []).append((place, one.param))
        return params

    def _places_of(self, optimizer: int) -> list[int]:
        return [place for place, one in enumerate(self.dense) if one.optimizer == optimizer]

    def _frozen_of(self, optimizer: int) -> list[Dense]:
        """Return what an optimizer was given that it does not train."""
        return [
            one
            for one in self.dense
            if one.optimizer == NOBODY
            and self._trained_by.get(id(one.param), (NOBODY,))[0] == optimizer
        ]

    def _check_names(self) -> None:
        names = [bound.table.name for bound in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"two tables are called {twice[0]!r}; give each pl.Embedding a name of its own"
            )

    def _make_schema(self) -> ModelSchema:
        names: dict[int, tuple[str, ...]] = {}
        for root, prefix in prefixed(self.modules):
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
            # Keeps its shape without its memory; computing with it gives NaN, not a guess.
            empty = torch.full((1, 1), torch.nan, dtype=bound.weight.dtype)
            bound.weight.data = empty.to(bound.weight.device).expand(bound.weight.shape)
            for module in bound.modules:
                forward: Callable[..., Tensor] = (
                    embed_bag if isinstance(module, nn.EmbeddingBag) else embed
                )
                found = partial(forward, lookups, bound.lookup, module)
                # In a model that is compiled it runs as it is: what it does differs by the batch.
                module.forward = torch.compiler.disable(found, reason=_AS_IT_IS)

        pieces: dict[str, list[tuple[int, int]]] = {}
        for one in self.dense:
            piece = one.offset, one.param.numel()
            pieces.setdefault(_DTYPES[one.param.dtype], []).append(piece)
        self._noted = Noted(self.flat, pieces)
        self._held = [(one.param._version, one.param.data_ptr()) for one in self.dense]
        known = {id(one.param) for one in self.dense}
        self._slots = [
            (module._parameters, name, param)
            for root in self.modules
            for module in root.modules()
            for name, param in module._parameters.items()
            if id(param) in known
        ]

    def check_values(self) -> None:
        """Refuse what the script did to parameters, which are the servers' to change.

        An edit by way of ``.data`` of few values shows only where all were noted (`Noted`).

        Raises:
            ConfigError: a parameter was changed, converted, moved or replaced.
        """
        if self.is_back:
            return
        for one, (version, place) in zip(self.dense, self._held, strict=True):
            if one.param.data_ptr() != place:
                raise ConfigError(_EDITED.format(one.name, "converted, moved or given other data"))
            if one.param._version != version:
                raise ConfigError(_EDITED.format(one.name, "changed"))
        for bound in self.tables:
            if bound.weight.dtype != bound.lookup.dtype:
                raise ConfigError(_EDITED.format(bound.table.name, "converted"))
        for held, name, param in self._slots:
            if held.get(name) is not param:
                raise ConfigError(_EDITED.format(name, "replaced"))
        changed = self._noted.changed() if self._noted is not None else None
        if changed is not None:
            raise ConfigError(_EDITED.format(self._name_at(*changed), "changed"))

    def _name_at(self, dtype: str, place: int) -> str:
        return next(
            one.name
            for one in self.dense
            if _DTYPES[one.param.dtype] == dtype
            and one.offset <= place < one.offset + one.param.numel()
        )

    def view(self, flat: Mapping[str, Tensor], one: Dense) -> Tensor:
        """The part of the flat vectors that is this parameter."""
        part = flat[_DTYPES[one.param.dtype]][one.offset : one.offset + one.param.numel()]
        return part.view(one.param.shape)

    def load(self, dense: Mapping[str, Array], *, whole: bool | None = None) -> None:
        """Copy pulled values into the parameters; ``whole``: see `Noted.note`.

        Torch then refuses a backward through a forward of before, as after any change in place: its
        gradients would be of values of both.
        """
        if self.is_back:
            return
        for dtype, values in dense.items():
            self.flat[dtype].copy_(torch.from_numpy(values))
        increment_version([one.param for one in self.dense])
        # Added to what was noted, not read again: an edit that nobody has looked for yet stays one.
        self._held = [(version + 1, place) for version, place in self._held]
        if self._noted is not None:
            self._noted.note(whole=whole)

    def take_back(self, dense: Mapping[str, Array], rows: Sequence[Array]) -> None:
        """Become an ordinary model with these values: whole tables, which it reads itself."""
        self.load(dense)
        self.is_back = True
        for bound, values in zip(self.tables, rows, strict=True):
            bound.weight.data = torch.from_numpy(values).to(bound.weight.device)
            for module in bound.modules:
                del module.__dict__["forward"]

    # ------------------------------------------------------------------ gradients

    def gradient_of(self, optimizer: int) -> Flat:
        """A copy of the gradients of an optimizer's dense parameters, and its settings.

        Raises:
            ConfigError: the weight of a table was used other than by looking up rows, or the script
                changed something in the optimizer that servers cannot follow.
        """
        self.check_values()
        self._check_same(optimizer)
        parts: dict[str, Tensor] = {}
        lacking: list[int] = []
        for dtype, params in self._params[optimizer].items():
            grads = []
            for place, param in params:
                grad = param.grad
                if grad is None:
                    lacking.append(place)
                    grad = torch.zeros_like(param)
                elif grad.is_sparse:
                    grad = grad.to_dense()
                grads.append(grad.reshape(-1))
            parts[dtype] = torch.cat(grads)
        settings = self._settings[optimizer]
        return Flat(
            parts,
            frozenset(lacking),
            rates={group: one.rate for group, one in settings.items()},
            changed=tuple(
                (group, *some) for group, one in settings.items() for some in one.changed()
            ),
        )

    def _check_same(self, optimizer: int) -> None:
        for bound in self.tables:
            if bound.weight.grad is not None:
                raise ConfigError(
                    f"the weight of table {bound.table.name!r} was used directly; it is not in the "
                    "worker: look rows up by calling the module, or use sparse=False"
                )
        held = self.optimizers[optimizer].state
        if not isinstance(held, Elsewhere):
            Elsewhere(type(self.optimizers[optimizer]).__name__, held).refuse()
        if _members(self.optimizers[optimizer]) != self._sizes[optimizer]:
            raise ConfigError(
                f"the parameter groups of optimizer {optimizer} hold other parameters than at "
                "job.prepare, which parameter servers cannot follow; prepare it with all that is "
                f"to be trained. {INSTEAD}"
            )
        for one in self._frozen[optimizer]:
            if one.param.grad is not None:
                raise ConfigError(
                    f"parameter {one.name!r} has a gradient, but was frozen at job.prepare, so "
                    "that servers do not train it; prepare it with requires_grad=True, and call "
                    "requires_grad_(False) after that: until it is thawed it has no gradient, and "
                    "stays as it is"
                )

    def lacking(self, grads: Sequence[Flat]) -> tuple[int, ...]:
        """Return the places of parameters that have no gradient, of all optimizers."""
        return tuple(sorted(place for flat in grads for place in flat.lacking))

    def whole_gradient(self, grads: Sequence[Flat]) -> dict[str, Array] | None:
        """The flat gradients from those of all optimizers, in their order; what lacks is 0.

        None: nothing has a gradient.
        """
        if all(flat.lacking == self._places[number] for number, flat in enumerate(grads)):
            return None
        whole = {}
        for dtype, flat in self.flat.items():
            found = [one.parts[dtype] for one in grads if dtype in one.parts]
            if sum(map(Tensor.numel, found)) == flat.numel():
                whole[dtype] = (found[0] if len(found) == 1 else torch.cat(found)).cpu().numpy()
            else:
                whole[dtype] = self._spread(dtype, [one.parts for one in grads])
        return whole

    def _spread(self, dtype: str, parts: Sequence[Mapping[str, Tensor]]) -> Array:
        whole = np.zeros(self.flat[dtype].numel(), dtype)
        for index, part in enumerate(parts):
            if dtype in part:
                first = next(
                    one
                    for one in self.dense
                    if one.optimizer == index and _DTYPES[one.param.dtype] == dtype
                )
                grads = part[dtype].cpu().numpy()
                whole[first.offset : first.offset + grads.size] = grads
        return whole

    def rates(self, grads: Sequence[Flat]) -> tuple[float, ...]:
        """Learning rate of each group of the schema; of what nobody trains 0."""
        found = {group: rate for flat in grads for group, rate in flat.rates.items()}
        return tuple(found.get(group, 0.0) for group in range(len(self._groups)))


# ---------------------------------------------------------------------------- finding things


def prefixed(roots: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str]]:
    """Yield each model, and what the names of its parts begin with."""
    for index, root in enumerate(roots):
        yield root, "" if len(roots) == 1 else str(index)


def _named_modules(roots: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for root, prefix in prefixed(roots):
        yield from root.named_modules(prefix=prefix)


def _paths(roots: Sequence[nn.Module]) -> dict[int, list[str]]:
    """Return all names of each module, by its id: one may be in several places."""
    found: dict[int, list[str]] = {}
    for root, prefix in prefixed(roots):
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
    """Yield every parameter once, under its first name, that is not a table."""
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
    """Map a parameter's id to its optimizer's number, the optimizer, and the parameter group."""
    owners: dict[int, tuple[int, Optimizer, dict[str, Any]]] = {}
    for number, optimizer in enumerate(optimizers):
        check_fresh(optimizer, number)
        for settings in optimizer.param_groups:
            for param in settings["params"]:
                if id(param) in owners:
                    raise ConfigError(
                        f"a parameter of shape {tuple(param.shape)} is given to optimizer "
                        f"{owners[id(param)][0]} and to optimizer {number}; give each parameter "
                        "to one"
                    )
                owners[id(param)] = number, optimizer, settings
    return owners


def _members(optimizer: Optimizer) -> list[list[int]]:
    """Return the identities of the parameters that each group of an optimizer holds."""
    return [list(map(id, settings["params"])) for settings in optimizer.param_groups]


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
