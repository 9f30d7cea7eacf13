"""The weighted mean of all members' gradients, equal bit for bit however work is divided.

Each block of a step is one backward; its gradients, times its part of all samples, are a term of a
fixed sum (`SumTree`). A member adds up its own blocks as far as one node of the tree reaches. Then
each member gets one segment of all those partial sums from all members (an uneven all-to-all),
finishes the sum, and tells it to all: as much traffic as a ring where every member has one partial
sum. Buffers that forward passes change are summed alike.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from paceline.runtime.group.group import Group
from paceline.runtime.group.reducer import Bucket, Reducer, in_buckets
from paceline.runtime.holding.replicas.buffers import Buffers
from paceline.runtime.holding.replicas.summing import PartialSum, SumTree, tops_of


class BlockBucket(Bucket):
    """Some gradients of one block after the other in one flat tensor, and their partial sums."""

    def _make(self) -> None:
        super()._make()
        self._spare: list[Tensor] = []
        self._tree: SumTree[Tensor] = SumTree(0, self._add)
        self._is_open = False

    def divide(self, runs: Sequence[range], rank: int) -> None:
        """A step begins: the blocks of each member, and which one we are."""
        self._spare += [term for _, term in self._tree.tops]
        self._num_blocks = runs[-1].stop
        self._tree = SumTree(self._num_blocks, self._add)
        self._tops = [tops_of(run, self._num_blocks) for run in runs]
        self._block = runs[rank].start

    def _add(self, left: Tensor, right: Tensor) -> Tensor:
        if right is not self.flat:
            self._spare.append(right)
        return left.add_(right)

    def expect(self) -> None:
        """Expect the next block."""
        super().expect()
        self._is_open = True
        self._has = []
        for param in self.params:
            param.grad = None  # nothing of what was before is to be in its bits

    def take(self, part: float, *, last: bool = False) -> None:
        """Take the sum, of whole numbers without weights; the block is complete."""
        if not self._is_open:
            return
        exact = not (self.flat.is_floating_point() or self.flat.is_complex())
        super().take(1.0 if part and exact else part, last=last)
        self._is_open = False
        self.missing.clear()
        if part:
            self._complete()
            node, self._block = PartialSum(0, self._block), self._block + 1
            self._tree.put(node, self.flat)
            node, term = self._tree.tops[-1]
            if term is self.flat:
                own = self._spare.pop() if self._spare else torch.empty_like(self.flat)
                self._tree.tops[-1] = node, own.copy_(self.flat)

    def launch(self, group: Group) -> None:
        """Begin to exchange the partial sums."""
        terms = [term for _, term in self._tree.tops]
        edges = [len(self.flat) * k // group.size for k in range(group.size + 1)]
        self._segments = [high - low for low, high in pairwise(edges)]
        pieces = [term[low:high] for low, high in pairwise(edges) for term in terms]
        mine = terms[0] if len(terms) == 1 else torch.cat(pieces or [self.flat[:0]])
        size = self._segments[group.rank]
        come = [len(tops) * size for tops in self._tops]
        self._parts = torch.empty(sum(come), dtype=mine.dtype, device=mine.device)
        leave = [len(terms) * one for one in self._segments]
        self.sum = group.exchange(mine, leave, self._parts, come)

    def combine(self, group: Group) -> None:
        """Finish the sum of our segment, and begin to tell it to all."""
        assert self.sum is not None
        self.sum.wait()
        nodes = [node for tops in self._tops for node in tops]
        tree: SumTree[Tensor] = SumTree(self._num_blocks, torch.Tensor.add_)
        for node, term in zip(nodes, self._parts.tensor_split(len(nodes)), strict=True):
            tree.put(node, term)
        size = self._segments[group.rank]
        told = tree.total.repeat(group.size)
        self.sum = group.exchange(told, [size] * group.size, self.flat, self._segments)


class BlockReducer(Reducer):
    """A `Reducer` of steps that are divided by blocks, each with a backward of its own.

    Args:
        params: see `Reducer`.
        buffers: of the modules that they belong to.
        early: see `Reducer`.
    """

    sums_gradients = False

    def __init__(
        self, params: Sequence[nn.Parameter], buffers: Buffers, *, early: bool = True
    ) -> None:
        kinds = [*in_buckets(params), *in_buckets(buffers.kept)]
        self._blocks = [BlockBucket(kind) for kind in kinds]
        super().__init__(params, early=early, buckets=self._blocks)
        self._buffers = buffers
        self._in_step = self._is_first = self._is_noted = False

    def begin(self, group: Group, runs: Sequence[range], *, whole: bool = True) -> None:
        """Begin a step, which is always whole."""
        super().begin(group, runs, whole=whole)
        for bucket in self._blocks:
            bucket.divide(runs, group.rank)
        self._buffers.begin()
        self._in_step, self._is_first = True, runs[group.rank].start == 0

    def expect(self, part: float, on_end: Callable[[], None], *, last: bool) -> None:
        super().expect(part, on_end, last=last)
        self._buffers.restore()
        self._is_noted = False

    def _note_buffers(self) -> None:
        if not self._is_noted:
            self._buffers.note(is_first=self._is_first)
            self._is_noted = True
            self._is_first &= not self._part  # what does not count is no block of the step

    def take(self) -> None:
        self._note_buffers()
        super().take()

    def flush(self) -> None:
        self._note_buffers()
        super().flush()

    def update(self) -> None:
        """Set buffers to what all blocks have made of them."""
        self._buffers.update()

    def end(self) -> None:
        """End the step, and undo what else the script did to buffers."""
        if self._in_step:
            self._in_step = False
            self._buffers.restore()
