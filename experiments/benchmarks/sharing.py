"""Two jobs on one core, by how the opportunistic one is held back: the guaranteed job's mini-batch.

    python benchmarks/sharing.py [--quick] [--windows 10] [--seconds 3] [--device cpu:0]
                                 [--wait 0.012] [--duty 0.4]

Both jobs are real ones of strategy script. The guaranteed one waits ``--wait`` seconds for each
input. This program takes the place of the device coordinator and gives its orders, in windows that
take turns:

    alone        the opportunistic job pauses
    packed       it is not held back
    duty         it uses ``--duty`` of its time, blindly
    gap          it waits while the guaranteed job computes
    controlled   the law of paceline: gaps, and a duty by feedback

Printed for each: the guaranteed job's mini-batch (median over windows of their medians, p99 of all
steps), by how much it is longer than alone, and the opportunistic job's speed as a part of what it
does when nobody else is there. Goal of the last: 0.8 of the guaranteed job's idle time, at 5 %.
The guaranteed job's losses must be those of a run without paceline, bit by bit.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.features.sharing.agent import coordinate
from paceline.features.sharing.gate_page import GatePage, page_of
from paceline.features.sharing.policy.law import SharingFacts, SharingRules, SharingState, decide
from paceline.features.sharing.wire import GateMode
from paceline.wire.spec import JobSpec, NodeSpec, ShareClass, ShareSpec
from paceline.wire.step_ledger import StepLedgerReader

SCRIPT = Path(__file__).with_name("jobs") / "shared.py"
LOOK_S = 0.1
SETTLE_S = 0.5
"""Seconds of each window that are not measured."""
START_S = 60.0
ARMS = ("alone", "packed", "duty", "gap", "controlled")


class Pair(NamedTuple):
    """Two jobs of one script."""

    script: Path
    name: str
    """Name of the device, for all jobs."""
    idle: Callable[[float, float, list[float]], float]
    """The part of a window in which the guaranteed job does not use the device, of its processor
    time, the window's length, and its steps."""
    same_steps: int = 2000
    """Number of losses that are compared."""
    learn_s: float = 30.0
    """Seconds for the law to settle before the first window."""


class Sharer:
    """A job that runs, and its steps."""

    def __init__(self, job: JobDir) -> None:
        self.job = job
        ledger = StepLedgerReader(NodeFiles(job, "worker-0").ledger)
        self._ledger = ledger
        harness.require(job, lambda: bool(self.steps_s()), START_S, "no step")
        self.page = GatePage.open(page_of(job, "worker-0"))
        self._pid = harness.status(job).nodes[0].pid

    def steps_s(self) -> list[float]:
        """Return what its steps took since the last call."""
        page = self._ledger.read()
        return [one.bpt_s for one in page.records if not one.marks] if page is not None else []

    def cpu_s(self) -> float:
        """Return the processor seconds of its process so far."""
        return harness.cpu_s(self._pid)


def spec_of(
    kind: ShareClass, notes: Path, wait_s: float, device: str, script: Path = SCRIPT
) -> JobSpec:
    return JobSpec(
        script=str(script),
        args=(str(notes), "100000000", str(wait_s)),
        name=kind,
        strategy="script",
        solution="none",
        workers=NodeSpec(count=1),
        share=ShareSpec(kind=kind, device=device),
    )


class Orders:
    """Orders of this program in place of the device coordinator."""

    def __init__(self, kept: Sharer, other: Sharer, duty: float) -> None:
        self._kept, self._other = kept, other
        beside = str(kept.page.path)
        self._orders = {
            "alone": (GateMode.PAUSE, 1.0, ""),
            "packed": (GateMode.OFF, 1.0, ""),
            "duty": (GateMode.DUTY, duty, ""),
            "gap": (GateMode.GAP, 1.0, beside),
        }
        self._beside, self._state, self._left_s = beside, SharingState(), time.monotonic()
        self.steps_s: list[float] = []
        """Steps of the guaranteed job in the newest window."""

    def follow(self, arm: str, seconds: float) -> None:
        """Give an arm's orders for a while; the law goes on as if other arms had not been."""
        start_s = now_s = time.monotonic()
        self.steps_s, away_s = [], start_s - self._left_s
        if arm == "controlled" and away_s > LOOK_S:
            self._kept.steps_s()
            since_s, measured_s = self._state.since_s + away_s, self._state.measured_s + away_s
            self._state = replace(self._state, since_s=since_s, measured_s=measured_s)
        while now_s < start_s + seconds:
            if arm == "controlled":
                self._look(now_s)
            else:
                self._other.page.order(*self._orders[arm])
                self.steps_s += self._kept.steps_s()
            time.sleep(LOOK_S)
            now_s = time.monotonic()
        if arm == "controlled":
            self._left_s = now_s

    def _look(self, now_s: float) -> None:
        steps_s = self._kept.steps_s()
        self.steps_s += steps_s
        facts = SharingFacts(
            now_s=now_s,
            guaranteed="guaranteed",
            others=("opportunistic",),
            steps_s=tuple(steps_s),
            tells_gaps=self._kept.page.tells_gaps,
        )
        self._state, decision = decide(self._state, facts, SharingRules())
        self._other.page.order(self._state.mode, self._state.duty, self._beside)
        if decision is not None:
            print(f"  {decision.allowed}: {decision.why}", flush=True)


def measure(options: Any, out: Path, pair: Pair) -> dict[str, Any]:
    lock = coordinate(pair.name)
    assert lock is not None, f"another job shares {options.device}"
    notes = out / "guaranteed"
    took: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    speeds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    idle = []
    with contextlib.closing(lock), contextlib.ExitStack() as stack:
        notes_of_other = out / "opportunistic"
        spec = spec_of("opportunistic", notes_of_other, 0.0, options.device, pair.script)
        other = Sharer(stack.enter_context(harness.running(spec)))
        time.sleep(1.0)
        other.steps_s()
        start_s = time.monotonic()
        time.sleep(options.seconds)
        solo = len(other.steps_s()) / (time.monotonic() - start_s)
        spec = spec_of("guaranteed", notes, options.wait, options.device, pair.script)
        kept = Sharer(stack.enter_context(harness.running(spec)))
        orders = Orders(kept, other, options.duty)
        orders.follow("controlled", 2.0 if options.quick else pair.learn_s)
        for _ in range(options.windows):
            for arm in ARMS:
                orders.follow(arm, SETTLE_S)
                other.steps_s()
                start_s, cpu_s = time.monotonic(), kept.cpu_s()
                orders.follow(arm, options.seconds)
                length_s = time.monotonic() - start_s
                took[arm].append(orders.steps_s)
                speeds[arm].append(len(other.steps_s()) / length_s)
                if arm == "alone":
                    idle.append(pair.idle(kept.cpu_s() - cpu_s, length_s, orders.steps_s))
    losses = notes.read_text().split()[: pair.same_steps]
    same = losses == losses_alone(out / "solo", len(losses), pair.script)
    return tell(took, speeds, solo, median(idle), same=same)


def losses_alone(notes: Path, steps: int, script: Path) -> list[str]:
    """Return what the script computes without paceline."""
    command = [sys.executable, str(script), str(notes), str(steps), "0"]
    harness.output_of("solo", command, {"OMP_NUM_THREADS": "1"})
    return notes.read_text().split()


def tell(
    took: dict[str, list[list[float]]],
    speeds: dict[str, list[float]],
    solo: float,
    idle: float,
    *,
    same: bool,
) -> dict[str, Any]:
    medians = {arm: [median(window) for window in took[arm]] for arm in ARMS}
    alone_s = median(medians["alone"])
    found: dict[str, Any] = {"idle_share": idle, "solo_steps_per_s": solo, "equal_losses": same}
    for arm in ARMS:
        steps_s = np.concatenate(took[arm])
        found[arm] = {
            "mini_batch_ms": 1e3 * median(medians[arm]),
            "longer": median(medians[arm]) / alone_s - 1,
            "p99_ms": 1e3 * float(np.quantile(steps_s, 0.99)),
            "speed": median(speeds[arm]) / solo,
            "speed_of_idle": median(speeds[arm]) / solo / idle,
        }
    return found


def add_arguments(parser: argparse.ArgumentParser, *, device: str, seconds: float) -> None:
    """Give a command the options of `measure`."""
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--device", default=device)
    parser.add_argument("--wait", type=float, default=0.012)
    parser.add_argument("--duty", type=float, default=0.4)


def main() -> None:
    parser = harness.parser(__doc__, "two short windows, no figures")
    add_arguments(parser, device="cpu:0", seconds=3.0)
    options = parser.parse_args()
    if options.quick:
        options.windows, options.seconds = 2, 1.0
    with harness.scratch() as out:
        pair = Pair(SCRIPT, options.device, lambda cpu_s, took_s, _steps_s: 1 - cpu_s / took_s)
        found = measure(options, out, pair)
    harness.report("sharing", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
