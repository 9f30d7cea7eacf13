"""AntDT-DD on workers of two speeds: the time to train a fixed number of samples, beside others.

    python benchmarks/dd.py [--quick] [--rounds 3] [--epochs 16] [--batch-size 64] [--arms ARM ...]

Four workers on this machine with cpu quotas of 0.6, 0.6, 0.2 and 0.2 cores (3:1, 1.6 cores in all)
train `jobs/divided.py`, one thread each, everything computed. The arms, all of them in every round:
torch's DDP (even, in the same quotas), paceline with ``lb_bsp``, with ``dd`` (its profile
included), and with the static divisions of the step that were found to be the best, in force from
the start; if asked for, without a solution (even), and other divisions. The oracle is the division
with the least median. Time: from the first batch of the first worker to the last update of the last
one. Printed: medians; the ratios of each round's times, and what they say of ``dd`` against the
oracle, against LB-BSP and against DDP.

Goal: ``dd`` within 10 % of the oracle, in the median of the rounds.
"""

import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from paceline_experiments import harness

from paceline.features.stragglers.policy.decision_log import Decided, log_of
from paceline.features.stragglers.stories import read_log
from paceline.policy.actions import AdjustBatch, Profile
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

CORES = (0.6, 0.6, 0.2, 0.2)
IMAGES, QUICK_IMAGES = 2048, 512
"""Images of an epoch."""
EVEN_OR_SOLVED = ("ddp", "none", "lb_bsp", "dd")
DIVISIONS = {f"static {part}": part for part in (0.7, 0.75, 0.8, 0.85, 0.9)}
"""Parts of a step that the two fast workers have."""
ARMS = [*EVEN_OR_SOLVED, *DIVISIONS]
DEFAULT = ["ddp", "lb_bsp", "dd", "static 0.8", "static 0.85"]
QUICK = ["ddp", "dd", "static 0.8"]
GOAL = 1.10
RUN_S = 1200.0

STATIC = """
from paceline.policy.actions import AdjustBatch, Share
from paceline.features.stragglers.policy.solution import Solution

class Static(Solution, frozen=True):
    every_steps: int = 1
    fast: int = 1
    slow: int = 1

    def decide(self, seen):
        sizes = self.fast, self.fast, self.slow, self.slow
        shares = {each.node: Share(size) for each, size in zip(seen.workers, sizes)}
        present = {each.node: Share(each.batch_size, each.accumulation) for each in seen.workers}
        return [] if shares == present else [AdjustBatch(shares=shares, reason="static")]
"""


def install_static(site: Path) -> None:
    """Have jobs find the solution that divides once, as it is told to."""
    info = site / "static-0.1.dist-info"
    info.mkdir(parents=True)
    (site / "static_division.py").write_text(STATIC)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: static\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[paceline.solutions]\nstatic = static_division:Static\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


def spec_of(arm: str, out: Path, images: int, batch_size: int, epochs: int) -> JobSpec:
    """The job of an arm."""
    flags = ["--out", str(out), "--images", str(images)]
    flags += ["--batch-size", str(batch_size), "--epochs", str(epochs)]
    fields: dict[str, Any] = {"strategy": "allreduce", "solution": arm}
    if arm == "ddp":
        fields = {"strategy": "script", "solution": "none"}
        flags.append("--ddp")
    if arm in DIVISIONS:
        fast = round(DIVISIONS[arm] * batch_size / 2)
        slow = (batch_size - 2 * fast) // 2
        fields["solution"] = "static"
        fields["solution_args"] = {"fast": str(fast), "slow": str(slow)}
    return JobSpec(
        script=str(harness.TINY.with_name("divided.py")),
        args=tuple(flags),
        name=f"divided-{arm.replace(' ', '-')}",
        workers=NodeSpec(count=len(CORES), cpu=CORES),
        torch_threads=1,
        checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
        **fields,
    )


def run(arm: str, root: Path, images: int, batch_size: int, epochs: int) -> tuple[float, str]:
    """Seconds of one job, and what its solution did."""
    out = root / "out"
    out.mkdir(exist_ok=True)
    for old in out.glob("*.f64"):
        old.unlink()
    with harness.running(spec_of(arm, out, images, batch_size, epochs)) as job:
        harness.finish(job, RUN_S)
        if any(event["event"] == "no_limits" for event in harness.events(job)):
            raise harness.failure(arm, "this machine sets no cpu quotas, so its workers are alike")
        times = [harness.stamps(out / f"{rank}.f64") for rank in range(len(CORES))]
        if any(len(each) != 2 for each in times):
            raise harness.failed_job(job, "a worker did not come to its end")
        told = decided(log_of(job))
    begun, ended = np.array(times).T
    return float(ended.max() - begun.min()), told


def decided(log: Path) -> str:
    """Say how many batches were profiled, and what the last division was."""
    if not log.exists():
        return ""
    lines = [line for line in read_log(log) if isinstance(line, Decided)]
    actions = [action for line in lines for action in line.actions]
    profiles = sum(isinstance(action, Profile) for action in actions)
    shares = [action.shares for action in actions if isinstance(action, AdjustBatch)]
    parts = [f"{s.batch_size}x{s.accumulation}" for s in shares[-1].values()] if shares else []
    return f"{profiles} profiles, {len(shares)} divisions, last {' '.join(parts) or 'even'}"


def main() -> None:
    parser = harness.parser(__doc__, "one round of one short epoch, three arms, no figures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--arms", nargs="+", choices=ARMS)
    options = parser.parse_args()
    rounds, epochs, images = options.rounds, options.epochs, IMAGES
    if options.quick:
        rounds, epochs, images = 1, 1, QUICK_IMAGES
    arms = options.arms or (QUICK if options.quick else DEFAULT)
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    with harness.scratch() as root:
        install_static(root / "site")
        for number in range(rounds):
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                took_s, told = run(arm, root, images, options.batch_size, epochs)
                found[arm].append(took_s)
                print(f"round {number} {arm}: {took_s:.2f} s {told}", flush=True)
    rows = [[arm, *harness.summary(times_s).values()] for arm, times_s in found.items()]
    harness.table(("arm", "n", "median s", "min", "max"), rows)
    report(found, epochs * images // options.batch_size, options.json)


def report(found: dict[str, list[float]], steps: int, file: Path | None) -> None:
    """Print what dd is worth, for people and as JSON."""
    ratios = {
        arm: harness.ratio(list(zip(found["dd"], times_s, strict=True)))
        for arm, times_s in found.items()
        if "dd" in found and arm != "dd"
    }
    known = [arm for arm in DIVISIONS if arm in found]
    oracle = min(known, key=lambda arm: statistics.median(found[arm]), default=None)
    verdicts = {}
    if oracle in ratios:
        over = ratios[oracle]["median"]
        met = "met" if over <= GOAL else "missed"
        verdicts["oracle"] = f"{met}: dd takes {over:.3f} times {oracle}, goal {GOAL}"
    for arm in ("lb_bsp", "ddp"):
        if arm in ratios:
            over = ratios[arm]["median"]
            verdicts[arm] = f"{'faster' if over < 1 else 'slower'}: {over:.3f} times {arm}"
    for told in verdicts.values():
        print(told)
    figures = {"cores": CORES, "steps": steps, "oracle": oracle, "verdicts": verdicts}
    medians = {arm: round(statistics.median(times_s), 3) for arm, times_s in found.items()}
    compared = {f"dd / {arm}": one for arm, one in ratios.items()}
    figures |= {"median_s": medians, "seconds": found, **compared}
    harness.report("dd", figures, file=file)


if __name__ == "__main__":
    harness.run(main)
