"""The digests of the script's variables of all members, gathered in a group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.runtime.variables.variables import Table, VariableDifference

if TYPE_CHECKING:
    from paceline.runtime.group.group import Group


MOST_NAMED = 5
"""Variables that one line names."""


def told_of(differ: Sequence[VariableDifference]) -> str:
    """Name variables that were equal in all workers, and are not any more."""
    named = [f"`{one.name}`" + (f" ({one.line})" if one.line else "") for one in differ]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    one = len(named) == 1
    return (
        f"{', '.join(named[:MOST_NAMED])}{more} of the script {'was' if one else 'were'} equal in "
        f"all workers, and {'differs' if one else 'differ'} from here on: each worker goes on with "
        f"{'its' if one else 'their'} own. If the training depends on it, compute it alike in all "
        "workers (from job.step, job.epoch, job.evaluate, or a seed), or keep it in job.state"
    )


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
