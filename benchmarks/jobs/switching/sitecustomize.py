"""Has a job's master carry out actions by turns, as a solution would ask for them.

Python runs a module of this name at its start; a benchmark puts its folder on the path of the job
(`equality.switching`). ``$PACELINE_BENCH_ACTIONS`` is a JSON list of actions,
``$PACELINE_BENCH_EVERY`` the steps between two of them.
"""

import os
import sys
from typing import Any


def _switch(every: int, actions: str) -> None:
    import msgspec

    from paceline.master.training import Training
    from paceline.policy.straggler.actions import AnyAction
    from paceline.wire.messages import Committed

    inner, plans = Training.handle, msgspec.json.decode(actions, type=list[AnyAction])
    next_step, number = every, 0

    def handle(this: Training, node: str, message: Any, now_s: float) -> None:
        nonlocal next_step, number
        inner(this, node, message, now_s)
        if isinstance(message, Committed) and this.state.step >= next_step:
            this.carry_out(plans[number % len(plans)])
            next_step, number = this.state.step + every, number + 1

    Training.handle = handle  # type: ignore[method-assign]


if "PACELINE_BENCH_ACTIONS" in os.environ and "paceline.master" in sys.orig_argv:
    _switch(int(os.environ["PACELINE_BENCH_EVERY"]), os.environ["PACELINE_BENCH_ACTIONS"])
