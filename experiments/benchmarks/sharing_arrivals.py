"""Arrivals on a shared core: for how long the guaranteed job is above its budget.

    python benchmarks/sharing_arrivals.py [--quick] [--rounds 5] [--device cpu:0]

Real jobs of strategy script, and the device coordinator of their agents. In each round a guaranteed
job runs alone; then an opportunistic one comes, later a second one, which leaves again, and at last
the guaranteed job leaves. A control window is half a second, as the law has it. Printed for each
moment: how many of the windows that follow are above the budget, which is 3 % over the median of
the windows alone. The windows begin when the job is launched, so they contain the start of its
processes, and end some time after its first step. `alone`: the same of as many windows alone, which
is this machine's noise. For the last moment: the windows until the opportunistic job has no limit.
Floor of each: 3 windows more than alone.
"""

import contextlib
import time
from pathlib import Path
from statistics import median
from typing import Any

from paceline_experiments import harness
from sharing import Sharer, spec_of

from paceline.features.sharing.gate_page import GatePage
from paceline.features.sharing.policy.law import SharingRules
from paceline.features.sharing.wire import GateMode

RULES = SharingRules()
WAIT_S = 0.012
NUM_WINDOWS = 24
"""Watched at each moment; a job has its first step within some 4 s."""
START_S = 60.0


class Watched:
    """The guaranteed job, window by window."""

    def __init__(self, kept: Sharer, windows: int) -> None:
        self._kept = kept
        self.windows_s(1)
        self.budget_s = median(self.windows_s(windows)) * (1 + RULES.budget)

    def windows_s(self, number: int) -> list[float]:
        """Medians of the next windows."""
        found = []
        self._kept.steps_s()
        for _ in range(number):
            time.sleep(RULES.window_s)
            steps_s = self._kept.steps_s()
            assert steps_s, "the guaranteed job made no step in a window"
            found.append(median(steps_s))
        return found

    def over(self, number: int) -> int:
        """Count the windows above the budget."""
        return sum(step_s > self.budget_s for step_s in self.windows_s(number))


def until_free(page: GatePage) -> int:
    """Count windows until a job has no limit."""
    for window in range(NUM_WINDOWS):
        if page.newest.mode is GateMode.OFF:
            return window
        time.sleep(RULES.window_s)
    return NUM_WINDOWS


def round_of(out: Path, device: str, windows: int) -> dict[str, int]:
    """Let jobs come and leave, and count windows."""
    found = {}
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as first:
            spec = spec_of("guaranteed", out / "kept", WAIT_S, device)
            kept = Sharer(first.enter_context(harness.running(spec)))
            time.sleep(1.0)
            watched = Watched(kept, windows)
            found["alone"] = watched.over(windows)
            spec = spec_of("opportunistic", out / "other", 0.0, device)
            launched = stack.enter_context(harness.running(spec))
            found["first_arrival"] = watched.over(windows)
            other = Sharer(launched)
            spec = spec_of("opportunistic", out / "second", 0.0, device)
            with harness.running(spec) as job:
                found["second_arrival"] = watched.over(windows)
                Sharer(job)
            found["departure"] = watched.over(windows)
        found["guaranteed_left"] = until_free(other.page)
    return found


def main() -> None:
    parser = harness.parser(__doc__, "one round of few windows, no figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu:0")
    options = parser.parse_args()
    rounds, windows = (1, 4) if options.quick else (options.rounds, NUM_WINDOWS)
    every: list[dict[str, int]] = []
    for number in range(rounds):
        with harness.scratch() as out:
            every.append(round_of(out, options.device, windows))
        print(f"round {number}: {every[-1]}", flush=True)
    found: dict[str, Any] = {
        moment: {"median": median(values), "worst": max(values)}
        for moment in every[0]
        for values in [[one[moment] for one in every]]
    }
    harness.report("sharing_arrivals", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
