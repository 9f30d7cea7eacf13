"""Breadth-first search of `World`, with traces; ``python -m tests.model.explore --help``."""

import argparse
import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from .bounds import FAILURES, Bounds, Machines, Table
from .cells import Violation
from .network import Label, State
from .world import BROKEN, World


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found."""

    states: int
    transitions: int
    depth: int
    complete: bool
    seconds: float
    violation: str = ""
    trace: tuple[str, ...] = ()


class Searched(Protocol):
    """A transition system."""

    reducing: bool
    labels: Table[Label]

    def initial(self) -> State: ...
    def successors(self, state: State) -> Iterator[tuple[Label, State]]: ...
    def check(self, state: State) -> None: ...
    def is_done(self, state: State) -> bool: ...
    def rounds(self, state: State) -> State: ...
    def without_messages(self, state: State) -> State: ...
    def tell(self, label: Label) -> str: ...


class Search:
    """One search; `run` stops at the first violation, which is then a shortest one."""

    def __init__(
        self,
        world: Searched,
        *,
        finish_every: int = 1,
        max_states: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.world, self.reduces = world, world.reducing
        self.finish_every, self.max_states, self.progress = finish_every, max_states, progress
        self.seen: set[State] = set()
        self.parents = array("i")
        self.labels = array("i")
        self.ends: set[State] = set()
        self.transitions = 0
        self.next_report = 0.0

    def run(self) -> Result:
        """Search everything within the bounds, or up to ``max_states``."""
        began, depth = time.monotonic(), 0
        level: list[tuple[int, State]] = []
        try:
            start = self.world.initial()
            self._add(start, -1, -1, level)
            while level:
                level = self._next_level(level)
                depth += 1
                self._report(began, depth, len(level))
                if self.max_states and len(self.seen) > self.max_states:
                    return self._result(began, depth, complete=False)
        except _Found as found:
            return self._result(began, depth, complete=False, found=found)
        return self._result(began, depth, complete=True)

    def _next_level(self, level: list[tuple[int, State]]) -> list[tuple[int, State]]:
        after: list[tuple[int, State]] = []
        for index, state in level:
            moves = self.world.successors(state)
            while True:
                try:
                    move = next(moves, None)
                except Violation as broken:
                    raise _Found(str(broken), index, "…") from broken
                except BROKEN as broken:
                    raise _Found(_alarm(broken), index, "…") from broken
                if move is None:
                    break
                self.transitions += 1
                label, new = move
                if new not in self.seen:
                    self._add(new, index, self.world.labels(label), after)
        return after

    def _add(self, state: State, parent: int, label: int, level: list[tuple[int, State]]) -> None:
        index = len(self.parents)
        self.seen.add(state)
        self.parents.append(parent)
        self.labels.append(label)
        try:
            self.world.check(state)
            if self._is_sampled(index) and not self._ends_well(state):
                raise Violation("F", "the end cannot be reached from here")
        except Violation as broken:
            raise _Found(str(broken), index, "") from broken
        except BROKEN as broken:
            raise _Found(_alarm(broken), index, "(on the way to the end)") from broken
        level.append((index, state))

    def _is_sampled(self, index: int) -> bool:
        return self.finish_every > 0 and index % self.finish_every == 0

    def _ends_well(self, state: State) -> bool:
        self.world.reducing = False
        try:
            return self._finishes(state)
        finally:
            self.world.reducing = self.reduces

    def _finishes(self, state: State) -> bool:
        """Everything under way is lost; do repetitions alone lead to the end?"""
        world = self.world
        path: list[State] = []
        state = world.without_messages(state)
        for _ in range(40):
            if state in self.ends or world.is_done(state):
                self.ends.update(path)
                return True
            path.append(state)
            after = world.without_messages(world.rounds(state))
            if after == state:
                return False
            state = after
        return False

    def trace(self, index: int) -> list[str]:
        """What led to a state."""
        lines: list[str] = []
        while index > 0:
            lines.append(self.world.tell(self.world.labels.values[self.labels[index]]))
            index = self.parents[index]
        return lines[::-1]

    def _report(self, began: float, depth: int, width: int) -> None:
        if self.progress and time.monotonic() > self.next_report:
            self.next_report = time.monotonic() + 5
            seconds = time.monotonic() - began
            self.progress(
                f"depth {depth}: {len(self.seen):,} states, {width:,} new, "
                f"{len(self.seen) / seconds:,.0f}/s, {_peak_mib():,} MiB"
            )

    def _result(
        self, began: float, depth: int, *, complete: bool, found: "_Found | None" = None
    ) -> Result:
        return Result(
            states=len(self.seen),
            transitions=self.transitions,
            depth=depth,
            complete=complete,
            seconds=time.monotonic() - began,
            violation=found.text if found else "",
            trace=(*self.trace(found.index), found.last) if found else (),
        )


class Explorer(Search):
    """A search of a job on parameter servers."""

    def __init__(
        self,
        bounds: Bounds,
        machines: Machines | None = None,
        *,
        finish_every: int = 1,
        max_states: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        world = World(bounds, machines)
        super().__init__(world, finish_every=finish_every, max_states=max_states, progress=progress)


class _Found(Exception):
    def __init__(self, text: str, index: int, last: str) -> None:
        super().__init__(text)
        self.text, self.index, self.last = text, index, last


def _alarm(broken: BaseException) -> str:
    """A machine stopped the job by itself: the letter of what it says."""
    text = repr(broken)
    letter = "B" if "are in the model" in text else "H" if "offered twice" in text else "A"
    return f"{letter}: {text}"


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def print_progress(line: str) -> None:
    """To standard error, as it comes."""
    print(line, file=sys.stderr, flush=True)


def print_result(result: Result) -> int:
    """The trace, if there is one, and what was searched; the exit code."""
    for line in result.trace:
        print("  ", line)
    print(
        f"{result.violation or 'clean'}; {result.states:,} states, "
        f"{'complete' if result.complete else 'not complete'}, {result.transitions:,} transitions, "
        f"depth {result.depth}, {result.seconds:.1f} s, {_peak_mib():,} MiB"
    )
    return 1 if result.violation else 0


def main(arguments: list[str] | None = None) -> int:
    """Explore within the bounds given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--mode", choices=("asp", "bsp"), default="asp")
    add("--samples", type=int, default=2)
    add("--epochs", type=int, default=1)
    add("--slice", type=int, default=2)
    add("--workers", type=int, default=2)
    add("--servers", type=int, default=2)
    add("--leases", type=int, nargs="+", default=[1])
    add("--window", type=int, default=1)
    add("--failures", type=int, default=0)
    add("--kinds", nargs="+", choices=FAILURES, default=list(FAILURES))
    add("--cuts", type=int, default=1)
    add("--moves", type=int, default=0)
    add("--joins", type=int, default=1)
    add("--leaves", type=int, default=1)
    add("--moves-first", action="store_true")
    add("--fails-in-moves", action="store_true")
    add("--rests-in-moves", action="store_true")
    add("--plans", type=int, default=0)
    add("--left-out", type=int, default=0)
    add("--leads", type=int, nargs="+", default=[1])
    add("--restarts", choices=("alone", "any"), default="alone")
    add("--prefetch", action="store_true")
    add("--late", action="store_true")
    add("--no-reduce", action="store_true")
    add("--finish-every", type=int, default=1, help="check F in every n-th state; 0: never")
    add("--max-states", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    finish_every = given.pop("finish_every")
    given["reduce"] = not given.pop("no_reduce")
    max_states = given.pop("max_states")
    for name in ("leases", "kinds", "leads"):
        given[name] = tuple(given[name])
    explorer = Explorer(
        Bounds(**given),
        finish_every=finish_every,
        max_states=max_states,
        progress=print_progress,
    )
    return print_result(explorer.run())


if __name__ == "__main__":
    raise SystemExit(main())
