"""Embedding look-ups of one batch on rows that were fetched for it.

A table's weight is not in the worker. Before each batch the rows of its unique ids arrive as a
compact matrix, a leaf of autograd; ids become positions in it, so gradients come out summed per
unique id. Ids that were not foreseen are fetched when the forward asks for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.state import kernels

FetchRows = Callable[[int, Ids], Array]


@dataclass(slots=True)
class Compact:
    """Rows of one fetch: ``leaf[i]`` belongs to ``ids[i]``."""

    ids: Ids
    leaf: Tensor


@dataclass(slots=True)
class Call:
    """One look-up: ``inverse`` are positions in ``rows``, in the shape of ``ids``."""

    ids: Tensor
    inverse: Tensor
    rows: Compact | None = None
    """None: foreseen, and its rows are not here yet."""
    paddings: set[int | None] = field(default_factory=set)
    """The padding id of each module that asked for it; none: it was not used."""
    version: int = 0
    """Torch's version of ``ids``: the user may change the batch, and so a view, in place."""

    @property
    def used(self) -> bool:
        """Whether a module asked for it."""
        return bool(self.paddings)

    def answers(self, ids: Tensor) -> bool:
        """Tell whether ``ids`` are what this look-up was prepared for."""
        mine = self.ids
        if mine.shape != ids.shape or mine.dtype != ids.dtype or mine._version != self.version:
            return False
        return (mine.data_ptr() == ids.data_ptr() and mine.stride() == ids.stride()) or torch.equal(
            mine, ids
        )


@dataclass(slots=True)
class Foreseen:
    """Look-ups of the next batch in one table, as foreseen."""

    unique: Ids
    calls: list[Call]


@dataclass(slots=True, eq=False)
class TableLookup:
    """One table in the worker."""

    index: int
    name: str
    dim: int
    dtype: torch.dtype
    num_rows: int | None
    trained: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    calls: list[Call] = field(default_factory=list)
    """Foreseen and asked for in the batch in hand."""
    fetched: list[Compact] = field(default_factory=list)
    num_cold: int = 0
    """Look-ups of this batch that were not foreseen."""

    mixed: bool = False
    """Whether its modules differ in the id that takes no gradient."""


class Lookups:
    """Look-ups in all tables of the job. ``fetch`` gets rows during a step (the slow way)."""

    def __init__(self, tables: Sequence[TableLookup], fetch: FetchRows) -> None:
        self.tables = tables
        self.fetch = fetch
        self.watch: Callable[[int, Tensor], None] | None = None
        """Told every look-up while ids are being learned: (table, ids)."""
        self.open = False
        """Whether there is a batch in hand."""
        self.waited_s = 0.0
        """Seconds spent on waiting for rows that were not foreseen, in the batch in hand."""

    def begin(self, foreseen: Mapping[int, Foreseen], rows: Mapping[int, Array]) -> None:
        """Start a batch whose ids are as foreseen, with their rows."""
        for table in self.tables:
            table.calls, table.fetched, table.num_cold = [], [], 0
            if table.index in foreseen:
                expected = foreseen[table.index]
                compact = _compact(table, expected.unique, rows[table.index])
                table.calls = expected.calls
                for call in table.calls:
                    call.rows = compact
        self.open, self.waited_s = True, 0.0

    def end(self) -> None:
        """The batch is done: let go of its rows."""
        for table in self.tables:
            table.calls, table.fetched = [], []
        self.open = False

    def find(
        self, table: TableLookup, ids: Tensor, padding: int | None = None
    ) -> tuple[Tensor, Compact]:
        """Positions of ``ids`` and the rows that they are in.

        Args:
            table: what is looked up in.
            ids: of any shape.
            padding: the id that takes no gradient by this look-up.

        Raises:
            ConfigError: outside of a batch, or the ids are no whole numbers.
        """
        if not self.open:
            raise ConfigError(
                f"table {table.name!r} was used outside of job.batches and job.evaluate; its rows "
                "are there only for the batch in hand; compute on held-out data with "
                'job.evaluate(lambda batch: {"score": model(batch)}, dataset)'
            )
        _check_ids(table, ids)
        if self.watch is not None:
            self.watch(table.index, ids)
        # Foreseen calls come in the order of the first batch, so the first unused one is it,
        # unless the model asks again for the same ids (checkpointing does).
        calls = table.calls
        for call in calls if len(calls) < 2 else sorted(calls, key=_is_used):
            if call.answers(ids):
                call.paddings.add(padding)
                assert call.rows is not None
                return call.inverse, call.rows
        return self._find_cold(table, ids, padding)

    def _find_cold(
        self, table: TableLookup, ids: Tensor, padding: int | None
    ) -> tuple[Tensor, Compact]:
        table.num_cold += 1
        unique, inverse = kernels.unique(flat_ids(ids))
        out_of_range = bad_id(unique, table.num_rows)
        if out_of_range is not None:
            raise IndexError(
                f"table {table.name!r}: id {out_of_range} is not in [0, {table.num_rows})"
            )
        start_s = monotonic()
        rows = self.fetch(table.index, unique)
        self.waited_s += monotonic() - start_s
        compact = _compact(table, unique, rows)
        positions = _shaped(inverse, ids)
        table.calls.append(Call(ids, positions, compact, {padding}, version=ids._version))
        return positions, compact

    def leaves(self) -> list[Tensor]:
        """The rows of the batch in hand that take gradients."""
        found = [compact.leaf for table in self.tables for compact in table.fetched]
        return [leaf for leaf in found if leaf.requires_grad]

    def gradients(self) -> dict[int, tuple[Ids, Array]]:
        """Table -> (unique ids, summed gradients ``[n, dim]``) of the batch in hand."""
        found = {table.index: _gradient(table) for table in self.tables if table.trained}
        return {index: grads for index, grads in found.items() if grads is not None}


def foresee(table: TableLookup, ids: Sequence[Tensor]) -> Foreseen | None:
    """Prepare the look-ups ``ids`` of the next batch; None: one of them will raise."""
    flat = [flat_ids(one) for one in ids]
    unique, inverse = kernels.unique(flat[0] if len(flat) == 1 else np.concatenate(flat))
    if bad_id(unique, table.num_rows) is not None:
        return None
    calls, start = [], 0
    for one, its_ids in zip(ids, flat, strict=True):
        stop = start + its_ids.size
        calls.append(Call(one, _shaped(inverse[start:stop], one), version=one._version))
        start = stop
    return Foreseen(unique, calls)


def _shaped(inverse: Ids, ids: Tensor) -> Tensor:
    """Positions in the shape of the ids and where they are."""
    positions = torch.from_numpy(inverse).view(ids.shape)
    return positions if ids.is_cpu else positions.to(ids.device)


def _check_ids(table: TableLookup, ids: Tensor) -> None:
    """Torch's embeddings take int32 and int64; keys may be any whole numbers."""
    if ids.dtype in (torch.int64, torch.int32):
        return
    if table.num_rows is not None or ids.dtype not in _KEYS:
        wanted = "int64 or int32" if table.num_rows is not None else "int64 (or a smaller integer)"
        raise ConfigError(
            f"table {table.name!r} was asked for {ids.dtype} ids; give {wanted}: floating-point "
            "numbers would merge ids that differ"
        )


_KEYS = {torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32}


def flat_ids(ids: Tensor) -> Ids:
    """Ids as an int64 vector on the cpu."""
    if ids.dtype is torch.int64 and ids.is_cpu:
        return ids.reshape(-1).numpy()
    return ids.detach().to(device="cpu", dtype=torch.int64).reshape(-1).numpy()


def bad_id(ids: Ids, num_rows: int | None) -> int | None:
    """An id that is out of range, if there is one."""
    if num_rows is None or not ids.size:
        return None
    # As unsigned numbers, negative ones are the largest: one pass finds both ends.
    worst = int(ids.view(np.uint64).argmax())
    return None if 0 <= ids[worst] < num_rows else int(ids[worst])


class _TakeRows(torch.autograd.Function):
    """``F.embedding`` on the cpu, whose own backward is several times slower."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.size = values.shape[0]
        out = values.new_empty((*inverse.shape, values.shape[1]))
        flat = out.view(-1, values.shape[1]).numpy()
        kernels.gather(values.detach().numpy(), inverse.view(-1).numpy(), flat)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated itself
            return torch.ops.aten.embedding_dense_backward(grad, inverse, ctx.size, -1, False), None
        # Often a slice of a wide matrix: copied, its rows share cache lines and pages.
        flat = grad.reshape(-1, grad.shape[-1]).contiguous().numpy()
        summed = grad.new_zeros((ctx.size, grad.shape[-1]))
        kernels.add_rows(inverse.view(-1).numpy(), flat, summed.numpy())
        return summed, None


def embed(lookups: Lookups, table: TableLookup, module: nn.Module, ids: Tensor) -> Tensor:
    """Compute what ``nn.Embedding.forward`` does, on the rows of this batch."""
    padding_id = getattr(module, "padding_idx", None)
    inverse, rows = lookups.find(table, ids, padding_id)
    padding = _padding_position(padding_id, rows)
    # Where it is the same for all modules its gradient is left out in the end.
    shared = table.mixed and padding is not None
    if rows.leaf.is_cpu and inverse.is_contiguous() and not shared:
        return _TakeRows.apply(rows.leaf, inverse)  # type: ignore[no-any-return, no-untyped-call]
    return F.embedding(inverse, rows.leaf, padding)


def embed_bag(
    lookups: Lookups,
    table: TableLookup,
    module: nn.EmbeddingBag,
    input: Tensor,  # noqa: A002
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Compute what ``nn.EmbeddingBag.forward`` does, on the rows of this batch."""
    inverse, rows = lookups.find(table, input, module.padding_idx)
    if offsets is not None:
        offsets = offsets.to(inverse.dtype)  # torch wants one dtype for both
    return F.embedding_bag(
        inverse,
        rows.leaf,
        offsets,
        mode=module.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=module.include_last_offset,
        padding_idx=_padding_position(module.padding_idx, rows),
    )


def _padding_position(padding: int | None, rows: Compact) -> int | None:
    if padding is None:
        return None
    found = np.flatnonzero(rows.ids == padding)
    return int(found[0]) if found.size else None


def _compact(table: TableLookup, unique: Ids, rows: Array) -> Compact:
    leaf = torch.from_numpy(rows).to(table.device)
    if table.trained and torch.is_grad_enabled():
        leaf.requires_grad_()
    compact = Compact(unique, leaf)
    table.fetched.append(compact)
    return compact


def _is_used(call: Call) -> bool:
    return call.used


def _gradient(table: TableLookup) -> tuple[Ids, Array] | None:
    parts = []
    for compact in table.fetched:
        if compact.leaf.grad is not None:
            ids, grads = compact.ids, compact.leaf.grad.cpu().numpy()
            keep = _looked_up(table, compact)
            parts.append((ids, grads) if keep is None else (ids[keep], grads[keep]))
    if len(parts) < 2:
        return parts[0] if parts else None
    return kernels.dedup(
        np.concatenate([ids for ids, _ in parts]), np.concatenate([grads for _, grads in parts])
    )


def _looked_up(table: TableLookup, compact: Compact) -> Array | None:
    """Return a mask of the rows that were really asked for and take a gradient; None: all.

    A row with a gradient of zero is not the same as no gradient: lazy Adam moves it.
    """
    used = [call for call in table.calls if call.used]
    if len(used) == len(table.calls) and all(call.paddings == {None} for call in used):
        return None
    keep = np.zeros(compact.ids.size, dtype=np.bool_)
    for call in used:
        if call.rows is compact:
            mine = np.zeros_like(keep)
            mine[call.inverse.cpu().numpy()] = True
            if len(call.paddings) == 1 and None not in call.paddings:
                mine &= compact.ids != next(iter(call.paddings))
            keep |= mine
    return keep
