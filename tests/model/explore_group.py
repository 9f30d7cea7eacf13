"""Breadth-first search of `GroupWorld`; ``python -m tests.model.explore_group --help``."""

import argparse
from collections.abc import Callable

from .explore import Search, print_progress, print_result
from .group_bounds import FAILURES, Bounds, Machines
from .group_world import GroupWorld


class GroupExplorer(Search):
    """A search of a job that trains by all-reduce."""

    def __init__(
        self,
        bounds: Bounds,
        machines: Machines | None = None,
        *,
        finish_every: int = 1,
        max_states: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        world = GroupWorld(bounds, machines)
        super().__init__(world, finish_every=finish_every, max_states=max_states, progress=progress)


def main(arguments: list[str] | None = None) -> int:
    """Explore within the bounds given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--members", type=int, default=2)
    add("--slices", type=int, default=2)
    add("--slice", type=int, default=1)
    add("--per-worker", action="store_true", help="as many slices a step as members do it")
    add("--feeds", type=int, default=1)
    add("--failures", type=int, default=0)
    add("--kinds", nargs="+", choices=FAILURES, default=list(FAILURES))
    add("--joiners", type=int, default=0)
    add("--distant", action="store_true", help="who comes is on another machine")
    add("--from-start", action="store_true")
    add("--remembers", action="store_true")
    add("--returns", action="store_true")
    add("--no-reduce", action="store_true")
    add("--finish-every", type=int, default=1, help="check F in every n-th state; 0: never")
    add("--max-states", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    finish_every, max_states = given.pop("finish_every"), given.pop("max_states")
    given["reduce"] = not given.pop("no_reduce")
    given["begun"] = not given.pop("from_start")
    given["forgets"] = not given.pop("remembers")
    given["kinds"] = tuple(given["kinds"])
    explorer = GroupExplorer(
        Bounds(**given),
        finish_every=finish_every,
        max_states=max_states,
        progress=print_progress,
    )
    return print_result(explorer.run())


if __name__ == "__main__":
    raise SystemExit(main())
