"""Sums whose order does not depend on which member adds what: a fixed binary tree over the terms.

Terms 0, 1, 2, ... are the leaves. Node (height, place) is the sum of its two children, (height - 1,
2 * place) and the one to its right; where that would lie beyond the last term, the first alone.
A member with a run of the terms adds up as much as lies below one node; what is left are the *tops*
of the run. The tops of all runs in their order give the whole sum by the very additions that one
run of all terms takes: in floating point equal bit for bit, however the terms are divided.
"""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

Term = TypeVar("Term")


class PartialSum(NamedTuple):
    """The sum of the terms from ``place << height`` on, ``1 << height`` of them."""

    height: int
    place: int


class SumTree(Generic[Term]):
    """Sums up what is put in, one after the other: terms, or the tops of other runs.

    Args:
        num_terms: of all runs together.
        add: the sum of a term and the one to its right; may reuse the first.
    """

    def __init__(self, num_terms: int, add: Callable[[Term, Term], Term]) -> None:
        self._num_terms, self._add = num_terms, add
        self.tops: list[tuple[PartialSum, Term]] = []
        """Nodes of what was put in, as few as they can be: at most two of each height."""

    def put(self, node: PartialSum, term: Term) -> None:
        """Put in what comes next in the order."""
        while not self._is_whole(node):
            height, place = node
            if place % 2 == 0:
                if (place + 1) << height < self._num_terms:
                    break  # what is to its right comes later
            elif self.tops and self.tops[-1][0] == (height, place - 1):
                _, left = self.tops.pop()
                term = self._add(left, term)
            else:
                break  # what is to its left is another run's
            node = PartialSum(height + 1, place // 2)
        self.tops.append((node, term))

    def _is_whole(self, node: PartialSum) -> bool:
        return node.place == 0 and 1 << node.height >= self._num_terms

    @property
    def total(self) -> Term:
        """The sum, once all is put in."""
        ((_, total),) = self.tops
        return total


def tops_of(run: Iterable[int], num_terms: int) -> list[PartialSum]:
    """The tops of a run of terms."""
    tree: SumTree[None] = SumTree(num_terms, lambda _left, _right: None)
    for term in run:
        tree.put(PartialSum(0, term), None)
    return [node for node, _ in tree.tops]
