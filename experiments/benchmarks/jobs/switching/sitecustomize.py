"""Has a job's master carry out actions by turns, as a solution would ask for them.

Python runs a module of this name at its start; a benchmark puts its folder on the path of the job
(`equality.switching`). ``$PACELINE_BENCH_ACTIONS`` is a JSON list of actions,
``$PACELINE_BENCH_EVERY`` the steps between two of them. For each three monotonic times are appended
to ``$PACELINE_BENCH_PHASES`` (float64): asked for, committed, all workers granted something anew
(on servers only).
"""

import contextlib
import os
import sys
import time
from typing import Any


class _Phases:
    """Phases of the action on its way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked_s = self._committed_s = 0.0
        self._before: dict[int, int] = {}

    def asked(self, state: Any) -> None:
        """An action is to be carried out now."""
        self._asked_s, self._committed_s = time.monotonic(), 0.0
        # Who has just come back was granted nothing yet.
        self._before = {inc: state.grants[inc].n for inc in state.workers if inc in state.grants}

    def refused(self) -> None:
        """Note that the action is not on its way."""
        self._asked_s = 0.0

    def look(self, state: Any) -> None:
        """Look at the state after each message."""
        if not self._asked_s or state.plans.preparing is not None:
            return
        self._committed_s = self._committed_s or time.monotonic()
        there = {inc: n for inc, n in self._before.items() if inc in state.grants}
        if all(state.grants[inc].n > n for inc, n in there.items() if inc in state.workers):
            self._write(time.monotonic())
            self._asked_s = 0.0

    def _write(self, granted_s: float) -> None:
        import numpy as np

        with open(self._path, "ab") as file:
            file.write(np.array([self._asked_s, self._committed_s, granted_s]).tobytes())


def _switch(every: int, actions: str, phases: _Phases) -> None:
    import msgspec

    from paceline.base.errors import ConfigError
    from paceline.master.holding.servers import ServerEdge
    from paceline.policy.actions import AnyAction
    from paceline.wire.messages.node import Committed

    inner, plans = ServerEdge.handle, msgspec.json.decode(actions, type=list[AnyAction])
    next_step, number = every, 0

    def handle(this: ServerEdge, node: str, message: Any, now_s: float) -> bool:
        nonlocal next_step, number
        is_its_own = inner(this, node, message, now_s)
        training = this.training
        if isinstance(message, Committed) and training.state.step >= next_step:
            phases.asked(training.state)
            try:
                training.leasing.carry_out(plans[number % len(plans)])
            except ConfigError:  # the last sample of a feed has just been committed
                phases.refused()
            next_step, number = training.state.step + every, number + 1
        phases.look(training.state)
        return is_its_own

    ServerEdge.handle = handle  # type: ignore[method-assign]


def _switch_group(every: int, actions: str) -> None:
    """Do the same for all-reduce, whose members find the step on their own: nothing is granted."""
    import msgspec

    from paceline.base.errors import ConfigError
    from paceline.master.holding.group import GroupEdge
    from paceline.policy.actions import AnyAction
    from paceline.wire.messages.group import Progress

    inner, plans = GroupEdge.handle, msgspec.json.decode(actions, type=list[AnyAction])
    next_step, number = every, 0

    def handle(this: GroupEdge, node: str, message: Any, now_s: float) -> bool:
        nonlocal next_step, number
        is_its_own = inner(this, node, message, now_s)
        training = this.training
        if isinstance(message, Progress) and training.state.step >= next_step:
            # After the last sample of a feed it is refused.
            with contextlib.suppress(ConfigError):
                training.leasing.carry_out(plans[number % len(plans)])
            next_step, number = training.state.step + every, number + 1
        return is_its_own

    GroupEdge.handle = handle  # type: ignore[method-assign]


if "PACELINE_BENCH_ACTIONS" in os.environ and "paceline.master" in sys.orig_argv:
    _switch(
        int(os.environ["PACELINE_BENCH_EVERY"]),
        os.environ["PACELINE_BENCH_ACTIONS"],
        _Phases(os.environ.get("PACELINE_BENCH_PHASES", os.devnull)),
    )
    _switch_group(int(os.environ["PACELINE_BENCH_EVERY"]), os.environ["PACELINE_BENCH_ACTIONS"])
