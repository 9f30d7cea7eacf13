"""Switches plans in a job's master, for ``plan_switch.py`` and ``equality.py``.

Python runs a module of this name at its start; a benchmark puts its folder on the path of the job.
``$PACELINE_BENCH_PLANS`` is JSON: ``every``, steps between two plans, and ``plans``, which come by
turns: node -> [batch size, accumulation].
"""

import json
import os
import sys
from typing import Any


def _switch(every: int, plans: list[dict[str, tuple[int, int]]]) -> None:
    from paceline.master.training import Training
    from paceline.policy.straggler.actions import AdjustBatch, Share
    from paceline.wire.messages import Committed

    inner = Training.handle
    next_step, number = every, 0

    def handle(this: Training, node: str, message: Any, now_s: float) -> None:
        nonlocal next_step, number
        inner(this, node, message, now_s)
        if isinstance(message, Committed) and this.state.step >= next_step:
            shares = plans[number % len(plans)]
            named = {node: Share(*share) for node, share in shares.items()}
            this.carry_out(AdjustBatch(shares=named))
            next_step, number = this.state.step + every, number + 1

    Training.handle = handle  # type: ignore[method-assign]


if "PACELINE_BENCH_PLANS" in os.environ and "paceline.master" in sys.orig_argv:
    _switch(**json.loads(os.environ["PACELINE_BENCH_PLANS"]))
