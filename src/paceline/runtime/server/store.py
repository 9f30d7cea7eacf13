"""The share of a model that one parameter server holds: values, optimizer state, updates, saves.

The store is a plain object without threads, clocks or sockets; the server process calls it in the
order of updates, and another thread may copy what it set aside. Equal calls give equal bits. It
never imports torch.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.base.errors import InternalError, PermanentError
from paceline.runtime.checkpoint.cutfile import Scattered
from paceline.runtime.server import sums
from paceline.runtime.server.bucket_load import BucketLoad
from paceline.runtime.server.rules import Rule
from paceline.runtime.server.scripts import Kept, Scripts, saved_in
from paceline.runtime.server.snapshot_while_serving import Aside
from paceline.runtime.server.tables import DynamicTable, FixedTable
from paceline.runtime.state import layout
from paceline.runtime.state.arrays import Array, Int64s
from paceline.runtime.state.kernels import dedup, plain
from paceline.wire.messages.base import TableHeld
from paceline.wire.messages.data import Changed
from paceline.wire.schema import ModelSchema


@dataclass(frozen=True, slots=True)
class Gradients:
    """One contribution's part for one server; arrays are read only."""

    dense: Mapping[str, Array]
    """Per dtype the gradient of what the server owns of its flat vector (`layout.dense_spans`)."""
    sparse: Mapping[int, tuple[Int64s, Array]]
    """Per table index: ids or keys [n] and gradients [n, dim]; ids may repeat."""
    weight: float
    """Samples behind it; the gradients are of the mean loss over them."""
    rates: tuple[float, ...]
    """Learning rate of each optimizer group at that step."""
    distinct: bool = False
    """True: no table's ids repeat, so they need not be merged."""
    changed: Changed = ()
    """Hyper-parameters that are not as the schema has them."""
    lacking: tuple[int, ...] = ()
    """Dense parameters, by their places in the schema, that have no gradient: what ``dense`` holds
    for them is 0."""
    position: int = 0
    """Schedule position at which this contribution was computed (`ps.schedule`)."""


class Store:
    """Share of a model that server ``me`` of an owner map holds."""

    def __init__(self, schema: ModelSchema, owners: Sequence[int], me: int) -> None:
        """Make room for the owned share: values 0, optimizer state fresh.

        Args:
            schema: what the model consists of.
            owners: server of each of the NUM_BUCKETS buckets.
            me: index of this server.

        Raises:
            ConfigError: an optimizer group cannot be run on servers.
        """
        self.schema = schema
        self.buckets = layout.owned_buckets(owners, me)
        self.updates = 0
        """Updates applied since the model was made; the clock of ages."""
        self.scripts = Scripts()
        self.load_of_buckets = BucketLoad(schema, self.buckets)
        self._dense = {
            dtype: _Dense(schema, dtype, self.buckets, spans)
            for dtype, spans in layout.dense_spans(schema, owners, me).items()
        }
        self._tables: list[FixedTable | DynamicTable] = []
        for table in schema.tables:
            kind = DynamicTable if table.num_rows is None else FixedTable
            self._tables.append(kind(table, schema.groups[table.group], self.buckets))
        self._aside: Aside | None = None

    def growing(self) -> tuple[TableHeld, ...]:
        """Return what the tables hold that grow."""
        return tuple(
            TableHeld(table.table.name, table.index.used, table.slabs.row_bytes)
            for table in self._tables
            if isinstance(table, DynamicTable)
        )

    def dense(self) -> dict[str, Array]:
        """Return per dtype the flat values of the owned blocks: live views, not to be written."""
        self.load_of_buckets.dense(*self._dense)
        return {dtype: held.arrays["value"] for dtype, held in self._dense.items()}

    def rows(self, table: int, ids: Int64s, out: Array | None = None) -> Array:
        """Copy embedding rows ``[n, dim]``, into ``out`` if given (contiguous, the table's dtype).

        A key that a dynamic table does not hold reads as its would-be first row; reading creates
        nothing.

        Raises:
            PermanentError: an id is not in a fixed table; names table, id and number of rows.
        """
        spec = self.schema.tables[table]
        ids = plain(ids, np.int64)
        self.load_of_buckets.rows(table, ids)
        if out is None:
            out = np.empty((ids.size, spec.dim), spec.dtype)
        self._tables[table].read(ids, out)
        return out

    def apply(self, parts: Sequence[Gradients], factor: float = 1.0) -> None:
        """Apply ONE update: the exact weighted mean of ``parts``, then each optimizer once.

        Sums run in the given order. Learning rates are those of the last part, times ``factor``, as
        are the other hyper-parameters (a step's contributions have the same). A parameter that no
        part has a gradient of stays as it is, with all of its state. Without any weight nothing
        happens.

        Raises:
            PermanentError: an id is not in a fixed table. The update may then be applied in part:
                the store must not be used any more. (Workers read rows before they push to them.)
            InternalError: a part does not fit this server's share; also fatal.
        """
        parts = [part for part in parts if part.weight]
        if not parts:
            return
        self.updates += 1
        rates, changed = parts[-1].rates, _by_group(parts[-1].changed)
        if factor != 1.0:
            rates = tuple(rate * factor for rate in rates)
        if self._aside is not None and self._aside.is_over:
            self._tell(None)
        total = sum(part.weight for part in parts)
        shares = [part.weight / total for part in parts]
        for dtype, held in self._dense.items():
            given = [
                (part.dense[dtype], s)
                for part, s in zip(parts, shares, strict=True)
                if dtype in part.dense
            ]
            if given:
                self.load_of_buckets.dense(dtype)
                if self._aside is not None:
                    self._aside.before_dense()
                lacking = [set(part.lacking) for part in parts if dtype in part.dense]
                held.apply(given, rates, changed, set.intersection(*lacking))
        for index in sorted({index for part in parts for index in part.sparse}):
            given_rows = [
                (*part.sparse[index], s)
                for part, s in zip(parts, shares, strict=True)
                if index in part.sparse
            ]
            merged = len(given_rows) == 1 and all(part.distinct for part in parts)
            slabs = self._tables[index].slabs
            slabs.change(changed.get(self.schema.tables[index].group, {}))
            slabs.step += 1
            self._apply_rows(index, given_rows, rates, merged=merged)
        for table in self._tables:
            if isinstance(table, DynamicTable):
                table.evict(self.updates)

    def _apply_rows(
        self,
        index: int,
        given: list[tuple[Int64s, Array, float]],
        rates: tuple[float, ...],
        *,
        merged: bool,
    ) -> None:
        spec = self.schema.tables[index]
        for ids, grads, _ in given:
            if grads.shape != (ids.size, spec.dim):
                raise InternalError(
                    f"table {spec.name!r}: gradients of shape {grads.shape} for {ids.size} ids, "
                    f"expected {(ids.size, spec.dim)}"
                )
        if len(given) == 1 and given[0][2] == 1.0:
            ids, grads = plain(given[0][0], np.int64), plain(given[0][1], spec.dtype)
        else:
            ids = np.concatenate([ids for ids, _, _ in given]).astype(np.int64, copy=False)
            scaled = [np.multiply(grads, share, dtype=spec.dtype) for _, grads, share in given]
            grads = np.concatenate(scaled)
        if ids.size:
            self.load_of_buckets.rows(index, ids)
            if not merged:
                ids, grads = dedup(ids, grads)
            self._tables[index].apply(ids, grads, float(rates[spec.group]), self.updates)

    def save(self) -> dict[str, Array]:
        """Arrays that fully describe this share: **live views**, to be copied before another apply.

        Names: ``buckets``, ``updates``, ``script.N``, ``script.N.at``, ``table_steps``,
        ``dense.<dtype>.<what>``, ``table.<name>.<what>``.
        """
        arrays = {**self._counts(self.buckets), **self.scripts.save()}
        for dtype, held in self._dense.items():
            arrays |= {f"dense.{dtype}.{name}": array for name, array in held.arrays.items()}
            arrays[f"dense.{dtype}.step"] = held.steps
        for spec, table in zip(self.schema.tables, self._tables, strict=True):
            arrays |= {f"table.{spec.name}.{name}": array for name, array in table.save().items()}
        return arrays

    def _counts(self, buckets: Sequence[int]) -> dict[str, Array]:
        return {
            "buckets": np.array(buckets, np.int64),
            "updates": np.array([self.updates], np.int64),
            "table_steps": np.array([table.slabs.step for table in self._tables], np.int64),
        }

    def part(self, buckets: Sequence[int]) -> dict[str, Array | Scattered]:
        """Return what `save` of a holder of ``buckets``, which are of these, would.

        Live views, but for tables that grow: of these it copies the rows.
        """
        if tuple(buckets) == self.buckets:
            return dict(self.save())
        arrays: dict[str, Array | Scattered] = {**self._counts(buckets), **self.scripts.save()}
        for dtype, held in self._dense.items():
            arrays |= {f"dense.{dtype}.{name}": one for name, one in held.part(buckets).items()}
        for spec, table in zip(self.schema.tables, self._tables, strict=True):
            arrays |= {f"table.{spec.name}.{name}": a for name, a in table.part(buckets).items()}
        return arrays

    def places(self, buckets: Sequence[int]) -> dict[str, list[tuple[int, Array]]]:
        """Return where the bytes of a part of ``buckets`` belong: by array, its byte and the place.

        Arrays that are not named are for `load`.
        """
        found: dict[str, list[tuple[int, Array]]] = {}
        for dtype, held in self._dense.items():
            found |= {f"dense.{dtype}.{name}": a for name, a in held.places(buckets).items()}
        for spec, table in zip(self.schema.tables, self._tables, strict=True):
            if isinstance(table, FixedTable):
                given = table.places(buckets).items()
                found |= {f"table.{spec.name}.{name}": places for name, places in given}
        return found

    def set_aside(self) -> Aside:
        """The share as it is now, for another thread to copy while updates go on.

        An update that this has to wait for blocks (`Aside`). Not before the last one is over.
        """
        aside = Aside(self.save())
        self._tell(aside)
        return aside

    def _tell(self, aside: Aside | None) -> None:
        self._aside = aside
        for table in self._tables:
            table.aside = aside

    def load(self, saved: Iterable[Mapping[str, Array]]) -> None:
        """Take what this (fresh) store owns from the saves of ALL servers of any owner map.

        State that the saves do not hold (a model's first cut has values only) stays initial.

        Raises:
            PermanentError: an owned bucket is in none of the saves.
        """
        missing = set(self.buckets)
        scripts: list[Kept] = []
        for arrays in saved:
            scripts += saved_in(arrays)
            buckets = [int(bucket) for bucket in arrays["buckets"]]
            missing -= set(buckets)
            if "updates" in arrays:
                self.updates = max(self.updates, int(arrays["updates"][0]))
            for dtype, held in self._dense.items():
                held.load(_under(arrays, f"dense.{dtype}."), buckets)
            for spec, table in zip(self.schema.tables, self._tables, strict=True):
                table.load(_under(arrays, f"table.{spec.name}."), buckets)
            for step, table in zip(arrays.get("table_steps", ()), self._tables, strict=False):
                table.slabs.step = max(table.slabs.step, int(step))
        self.scripts.load(scripts)
        if missing:
            raise PermanentError(
                f"the cut lacks buckets {sorted(missing)} of the model: a server's file is missing"
            )

    def export(self, table: int) -> tuple[Int64s, Array]:
        """Ids or keys of all rows held here, and copies of the rows."""
        ids, rows, _ = self.piece(table, 0, sys.maxsize)
        return ids, rows

    def piece(self, table: int, start: int, count: int) -> tuple[Int64s, Array, int | None]:
        """A part of `export` of about ``count`` rows, and where the next one starts; None: nowhere.

        The first starts at 0. Updates between two pieces do not disturb: a row held all the time is
        in exactly one, any other in one at most.
        """
        return self._tables[table].piece(start, count)


def _by_group(changed: Changed) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for group, name, value in changed:
        found.setdefault(group, {})[name] = value
    return found


def _under(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


@dataclass(slots=True)
class _Plan:
    """Plan of an update of dense parameters, as long as the same ones have gradients."""

    lacking: frozenset[int]
    counting: set[int]
    """Groups that count the step."""
    grown: Int64s
    """Growth of the count of steps, by tensor."""
    due: list[tuple[int, int, int, int]]


class _Dense:
    """The owned blocks of one dtype's flat vector."""

    def __init__(
        self,
        schema: ModelSchema,
        dtype: str,
        buckets: Sequence[int],
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self.schema = schema
        self.buckets = buckets
        self.dtype = dtype
        #: The tensors of this dtype, by their places in the schema, and where each counts.
        self._places = {
            tensor: number
            for number, tensor in enumerate(
                tensor for tensor, one in enumerate(schema.dense) if one.dtype == dtype
            )
        }
        self._group_of = [schema.dense[tensor].group for tensor in self._places]
        self._rules = {
            group: Rule(schema.groups[group], sparse=False) for group in set(self._group_of)
        }
        self._runs = [
            (schema.dense[tensor].group, tensor, start, stop)
            for tensor, start, stop in layout.dense_runs(schema, dtype, spans)
        ]
        self._plan: _Plan | None = None
        self.steps = np.zeros(len(self._places), np.int64)
        """Updates of each tensor so far, wherever it is; all servers count alike."""
        size = sum(stop - start for start, stop in spans)
        self.arrays: dict[str, Array] = {"value": np.zeros(size, dtype)}
        for group, _, start, stop in self._runs:
            for state in self._rules[group].states:
                held = self.arrays.setdefault(state.name, np.zeros(size, dtype))
                held[start:stop] = state.initial

    def apply(
        self,
        given: list[tuple[Array, float]],
        rates: tuple[float, ...],
        changed: Mapping[int, Mapping[str, float]],
        lacking: Collection[int] = (),
    ) -> None:
        """Take one optimizer step with the mean of ``given`` (gradient, share).

        Args:
            given: gradients and their shares.
            rates: of each group.
            changed: by group, hyper-parameters that are not the schema's.
            lacking: tensors that have no gradient.
        """
        values = self.arrays["value"]
        for grads, _ in given:
            if grads.shape != values.shape:
                raise InternalError(
                    f"{self.dtype} gradient of shape {grads.shape}, this server owns {values.shape}"
                )
        rules = {
            group: rule.changed(changed[group]) if group in changed else rule
            for group, rule in self._rules.items()
        }
        mean = self._mean(given)
        for group, start, stop, step in self._due(rules, frozenset(lacking)):
            rule, run = rules[group], slice(start, stop)
            states = [self.arrays[state.name][run] for state in rule.states]
            rule.step_dense(values[run], mean[run], states, float(rates[group]), step)

    def _due(
        self, rules: Mapping[int, Rule], lacking: frozenset[int]
    ) -> list[tuple[int, int, int, int]]:
        """Count a step; ``(group, start, stop, step)`` of what is updated alike, ascending."""
        counting = {group for group, rule in rules.items() if rule.counts}
        plan = self._plan
        if plan is None or (plan.lacking, plan.counting) != (lacking, counting):
            self._plan = plan = self._make_plan(rules, lacking, counting)
        else:
            # All that is updated has counted alike since: what could be merged still can.
            plan.due = [
                (group, start, stop, step + (group in counting))
                for group, start, stop, step in plan.due
            ]
        self.steps += plan.grown
        return plan.due

    def _make_plan(
        self, rules: Mapping[int, Rule], lacking: frozenset[int], counting: set[int]
    ) -> "_Plan":
        grown = np.array(
            [
                group in counting and tensor not in lacking
                for tensor, group in zip(self._places, self._group_of, strict=True)
            ],
            np.int64,
        )
        steps = (self.steps + grown).tolist()
        due: list[tuple[int, int, int, int]] = []
        for group, tensor, start, stop in self._runs:
            if tensor in lacking or not rules[group].trains:
                continue
            step = steps[self._places[tensor]]
            if due and (due[-1][0], *due[-1][2:]) == (group, start, step):
                start = due.pop()[1]
            due.append((group, start, stop, step))
        return _Plan(lacking, counting, grown, due)

    def _mean(self, given: list[tuple[Array, float]]) -> Array:
        (grads, share), *others = given
        if share == 1.0:
            return plain(grads, self.dtype)
        mean = np.empty(grads.size, self.dtype)
        sums.scale_into(mean, plain(grads, self.dtype), share)
        for grads, share in others:
            sums.add_scaled(mean, plain(grads, self.dtype), share)
        return mean

    def load(self, saved: Mapping[str, Array], buckets: Sequence[int]) -> None:
        """Take the blocks held here from a save of a holder of ``buckets``."""
        if "step" in saved:
            self._plan = None
            np.maximum(self.steps, saved["step"], out=self.steps)
        for target, source in self._overlaps(self.buckets, buckets):
            for name, array in self.arrays.items():
                if name in saved:
                    array[target] = saved[name][source]

    def _overlaps(self, mine: Sequence[int], theirs: Sequence[int]) -> list[tuple[slice, slice]]:
        size = layout.dense_sizes(self.schema)[self.dtype]
        return layout.dense_overlaps(size, self.schema.block_elems, mine, theirs)

    def part(self, buckets: Sequence[int]) -> dict[str, Array | Scattered]:
        """The arrays of a holder of some of these buckets: views."""
        runs = [slice(0, 0)]
        for _, source in self._overlaps(buckets, self.buckets):
            touches = runs[-1].stop == source.start
            runs.append(slice(runs.pop().start if touches else source.start, source.stop))
        arrays = {n: Scattered(tuple(a[run] for run in runs)) for n, a in self.arrays.items()}
        return {**arrays, "step": self.steps}

    def places(self, buckets: Sequence[int]) -> dict[str, list[tuple[int, Array]]]:
        """Return where the bytes of the arrays of such a part belong."""
        overlaps = self._overlaps(self.buckets, buckets)
        return {
            name: [
                (source.start * array.itemsize, array[target].view(np.uint8))
                for target, source in overlaps
            ]
            for name, array in self.arrays.items()
        }
