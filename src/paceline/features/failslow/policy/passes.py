"""Passes of validation: in each, a rank measures at most one link, so that no two disturb.

Reference: FALCON section 3.6 (arXiv:2410.12588), ring and tree passes.
Differs: the order of a ring is that of the group's ranks, not read from the library's memory. The
links of several groups share passes where no rank is in two of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest

Hop = tuple[int, int]
"""Sender, receiver."""


def ring_passes(ranks: Sequence[int]) -> list[list[Hop]]:
    """Divide the links of a ring into 2 passes, or 3 where its size is odd."""
    size = len(ranks)
    if size < 2:
        return []
    hops = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    even = size - size % 2
    passes = [hops[0:even:2], hops[1:even:2]]
    return passes if size == even else [*passes, hops[even:]]


def tree_passes(parents: Mapping[int, int | None]) -> list[list[Hop]]:
    """Divide the links of a binary tree, child to parent, into at most 4 passes.

    A pass has the left, or the right, children of the even, or of the odd, levels. An only child
    counts as the left one.

    Args:
        parents: of each rank; None: it is the root.

    Raises:
        ValueError: a rank has more than two children, or no way to the root.
    """
    passes: list[list[Hop]] = [[], [], [], []]
    by_parent = sorted((parent, child) for child, parent in parents.items() if parent is not None)
    for parent, family in groupby(by_parent, key=lambda one: one[0]):
        children = [child for _, child in family]
        if len(children) > 2:
            raise ValueError(f"rank {parent}: got {len(children)} children, expected at most 2")
        is_odd = _level(children[0], parents) % 2
        for side, child in enumerate(children):
            passes[2 * is_odd + side].append((child, parent))
    return [one for one in passes if one]


def _level(rank: int, parents: Mapping[int, int | None]) -> int:
    """Count the links from a rank to the root."""
    level, parent = 0, parents[rank]
    while parent is not None:
        level, parent = level + 1, parents.get(parent)
        if level > len(parents):
            raise ValueError(f"rank {rank}: its parents form a ring, expected a tree")
    return level


def tree_of(ranks: Sequence[int]) -> dict[int, int | None]:
    """Return the parent of each rank in NCCL's binary tree, whose root has one child."""
    parents: dict[int, int | None] = {}
    for place, rank in enumerate(ranks):
        lowest = place & -place
        above = (place ^ lowest) | (lowest << 1)
        if above >= len(ranks):
            above = place ^ lowest
        parents[rank] = ranks[above] if place else None
    return parents


def share_passes(groups: Iterable[list[list[Hop]]]) -> list[list[Hop]]:
    """Lay the passes of several groups over one another; a hop that finds a rank busy waits.

    Disjoint groups need no more passes than the largest of them.
    """
    waiting = list(
        dict.fromkeys(
            hop for each in zip_longest(*groups, fillvalue=[]) for one in each for hop in one
        )
    )
    passes: list[list[Hop]] = []
    while waiting:
        busy: set[int] = set()
        now: list[Hop] = []
        for hop in waiting:
            if busy.isdisjoint(hop):
                now.append(hop)
                busy.update(hop)
        passes.append(now)
        waiting = [hop for hop in waiting if hop not in set(now)]
    return passes
