"""The digests of the script's variables of all members, gathered in a group."""

from typing import TYPE_CHECKING

from paceline.runtime.script.variables import Table

if TYPE_CHECKING:
    from paceline.runtime.group.group import Group


def gathered(group: "Group", table: Table) -> list[Table]:
    """The tables of all members, by rank; raises as `Group.gather`."""
    sizes = [size for (size,) in group.gather([len(table)]).wait()]
    most = max(sizes)
    if not most:
        return [[] for _ in sizes]
    told = [number for pair in table for number in pair] + [0] * (2 * (most - len(table)))
    found = group.gather(told).wait()
    return [
        [*zip(numbers[: 2 * size : 2], numbers[1 : 2 * size : 2], strict=True)]
        for numbers, size in zip(found, sizes, strict=True)
    ]
