"""Grants for workers that ask for work: which samples, computed in which batches.

Pure, and part of `MasterState`, which grants it and records the grant.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span, between, num_samples
from paceline.protocol.records import Place
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.ledger import Ledger, Part
from paceline.protocol.samples.plans import Plans, fixed_parts, part_edges, portion_of
from paceline.wire.messages.feeds import Batching, Slice
from paceline.wire.messages.node import LeaseRequest

Standing = tuple[list[str], int]
"""The nodes that share the work, in the order of their parts, and which of them is meant."""


def standing(workers: Mapping[Inc, str], inc: Inc) -> Standing:
    """Where an incarnation stands among these workers (incarnation -> node)."""
    order = sorted((node, inc) for inc, node in workers.items())
    return [node for node, _ in order], order.index((workers[inc], inc))


class Dealt(NamedTuple):
    """How far a worker has been dealt what is its own."""

    by: tuple[object, ...]
    """Workers and plan by which it was dealt; if they change, all slices are looked at again."""
    upto: int
    """Number of the last slice of which nothing more is to do by this worker."""


class Deal:
    """The answer to one request.

    Args:
        ledger: what is to do.
        plans: whose part is how large.
        message: what the worker asks.
        workers: who shares the work, the asking one included: incarnation -> node.
        step: the newest one that is known to be decided.
        dealt: how far each worker has been dealt its own, which this deal reads and changes.
    """

    def __init__(
        self,
        ledger: Ledger,
        plans: Plans,
        message: LeaseRequest,
        *,
        workers: Mapping[Inc, str],
        step: StepNo,
        dealt: MutableMapping[Inc, Dealt] | None = None,
    ) -> None:
        self._ledger, self._plans, self._message = ledger, plans, message
        self._workers, self._step = workers, step
        self._dealt = {} if dealt is None else dealt
        self._feed = ledger.feeds[message.feed]

    def pick(self, sizing: Sizing) -> list[Span]:
        """The samples; empty: there is nothing now."""
        if self._plans.in_steps(self._feed):
            urgent, spared = self._urgent() if self._message.starving else (0, 0)
            parts = self._parts(sizing.steps)
            edge = self._edge if self._feed.blocks else None
            return self._ledger.pick_parts(parts, urgent=urgent, spared=spared, edge=edge)
        if self._plans.has_fixed_parts(self._feed):
            parts = fixed_parts(self._plans.newest, *self._me, self._feed)
            return between(self._ledger.pick_parts(parts), 0, sizing.samples)
        batch_size = sizing.batch_size or max(1, self._feed.batch_size // len(self._workers))
        return self._ledger.pick(self._message.feed, sizing.samples, batch_size)

    def batching(self) -> tuple[Batching, ...]:
        """How the worker computes its parts, from the slice on that it is at."""
        if not self._plans.in_steps(self._feed):
            return ()
        place = self._plans.place(self._message.slice or self._plans.undecided())
        return self._plans.batching(place, *self._me)

    @cached_property
    def _me(self) -> Standing:
        return standing(self._workers, self._message.inc)

    @cached_property
    def _undecided(self) -> Slice:
        """Slice of the undecided step; worker or ledger says it, whichever knows more."""
        known = self._message.slice if self._message.step > self._step else ()
        return known or self._plans.undecided()

    def _urgent(self) -> tuple[int, int]:
        """How much to take of what others left of its step: as much as usual, at least one sample.

        And what the step may lack: a worker that is late with that had better join it, and a
        helper would be late for the next step.
        """
        whole, batch_size = self._undecided, self._feed.batch_size
        plan = self._plans.at(self._plans.place(whole))
        lacking = plan.lacking.of_slice(sum(len(span) for span in whole), batch_size)
        usual = max(1, portion_of(plan, *self._me).size(batch_size))
        return usual, max(lacking.left_out, lacking.late)

    def _parts(self, num_steps: int) -> Iterator[Part]:
        """The next slices, as far as a grant may reach now, and this worker's part of each."""
        edges: dict[tuple[int, int], list[int]] = {}
        nodes, index = self._me
        for place, whole in self._next_slices(num_steps):
            plan, size = self._plans.at(place), num_samples(whole)
            key = plan.no, size
            if key not in edges:
                edges[key] = part_edges(plan, nodes, size, self._feed.batch_size)
            part = between(whole, edges[key][index], edges[key][index + 1])
            yield whole, list(self._in_blocks(part)) if self._feed.blocks else part

    def _edge(self, position: int) -> int:
        """The first edge of a block that is not before this position."""
        return self._feed.block_end(position - 1) if position else 0

    def _in_blocks(self, part: Sequence[Span]) -> Iterator[Span]:
        """The same as whole blocks: the block that two parts divide belongs to the first."""
        for span in part:
            start, stop = self._edge(span.start), self._edge(span.stop)
            if start < stop:
                yield Span(span.line, start, stop)

    def _next_slices(self, num_steps: int) -> Iterator[tuple[Place, Slice]]:
        """Yield the undecided step's slice, and then those after it, each with its place."""
        feed, line, whole = self._feed, self._feed.line(), self._undecided
        if not whole or whole[0].line != line:
            return
        first = feed.rank(whole)
        if not feed.is_in_order(whole):
            yield Place(line, feed.start_of(first)), whole
        inc, by = self._message.inc, self._dealt_by
        known = self._dealt.get(inc)
        upto = known.upto if known is not None and known.by == by else 0
        end = min(first + num_steps, feed.num_slices + 1)
        # Of the undecided step a worker may get what others left.
        for number in chain(range(first, min(first + 1, end)), range(max(first, upto) + 1, end)):
            span = feed.slice_no(number)
            place = Place(line, span.start)
            if self._plans.reserves(place):
                return
            self._dealt[inc] = Dealt(by, max(number, upto))
            yield place, (span,)

    @property
    def _dealt_by(self) -> tuple[object, ...]:
        """The workers and the plan that parts follow from, and how often a part has come back."""
        nodes, index = self._me
        return self._feed.feed, self._ledger.num_back, self._plans.newest.no, index, *nodes
