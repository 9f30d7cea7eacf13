"""Whether ADJUST_LR by staleness helps a model that is trained asynchronously beside a straggler.

    python benchmarks/adjust_lr.py [--quick] [--seeds 7] [--rates 0.25 1 4] [--workers 6] [--slow 5]

Jobs in ASP, one of whose workers takes several times as long per batch (emulated compute), train
click models with SGD for one epoch, one per learning rate; loss and AUC on the same held-out rows.
Per seed two jobs make three arms of each rate:

- ``none``: at that rate;
- ``adjust_lr``: the same, times 1 / (1 + staleness) on each contribution (it acts in a warm-up at
  rate 0, so the whole epoch is trained under it);
- ``scaled``: without solution, at the rate times the mean factor that the server applied in the
  seed's job of ``adjust_lr``. Only what is better than this is more than a smaller rate.

Last, ``adjust_lr`` at its best rate against plain ASP (``none`` and ``scaled``) at its own. Prints
a table, ratios of losses over seeds with their 95 % intervals, and JSON.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from paceline_experiments import harness

from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

JOBS = Path(__file__).with_name("jobs")
ARMS = ("none", "adjust_lr", "scaled")
STEP_S = 0.06
BATCH_SIZE = 128


class Setting(NamedTuple):
    """Setting that is alike in all runs."""

    workers: int
    slow: float
    steps: int


class Model(NamedTuple):
    """Result of one model."""

    loss: float
    auc: float


class Run(NamedTuple):
    """One job."""

    models: list[Model]
    """Models by rate."""
    factor: float
    """Mean over the contributions of the epoch."""
    staleness: tuple[float, float]
    """Updates: median, and 99th percentile; of a job that adjusts nothing -1."""


class Trial(NamedTuple):
    """One seed."""

    arms: dict[str, list[Model]]
    """Models by arm and rate."""
    adjusted: Run


def run(setting: Setting, solution: str, rates: Sequence[float], seed: int) -> Run:
    """Train once.

    Raises:
        ArmError: the job failed, or its solution acted too late.
    """
    with harness.scratch() as out:
        flags = {
            "--out": out,
            "--workers": setting.workers,
            "--steps": setting.steps,
            "--batch-size": BATCH_SIZE,
            "--seed": seed,
            "--step-s": STEP_S,
            "--slow": setting.slow,
        }
        words = [word for flag in flags.items() for word in map(str, flag)]
        spec = JobSpec(
            script=str(JOBS / "stale.py"),
            args=(*words, "--rates", *map(str, rates)),
            name=f"adjust-lr-{solution.replace('_', '-')}",
            mode="asp",
            seed=seed,
            torch_threads=1,
            solution=solution,
            decide_every_s=0.1,
            workers=NodeSpec(count=setting.workers),
            servers=NodeSpec(count=1),
            checkpoint=CheckpointSpec(every_s=1_000.0),
            env={"PYTHONPATH": str(JOBS / "staleness"), "PACELINE_BENCH_FACTORS": str(out)},
        )
        with harness.running(spec) as job:
            harness.require(job, (out / "result.json").exists, harness.RUN_S, "no result")
        found = json.loads((out / "result.json").read_text())
        factors, stale = (
            np.fromfile(out / f"server-0.{name}.f32", np.float32)[-setting.steps :]
            for name in ("factors", "stale")
        )
    if solution == "adjust_lr" and not (stale.min() >= 0 and np.allclose(factors, 1 / (1 + stale))):
        raise harness.failure(solution, "not every contribution of the epoch was adjusted")
    median, p99 = np.percentile(stale, (50, 99))
    return Run([Model(**one) for one in found], float(factors.mean()), (float(median), float(p99)))


def trial(setting: Setting, rates: Sequence[float], seed: int) -> Trial:
    """Run all arms of one seed; ``scaled`` has to know the factors of ``adjust_lr``."""
    adjusted = run(setting, "adjust_lr", rates, seed)
    scaled = [rate * adjusted.factor for rate in rates]
    plain = run(setting, "none", [*rates, *scaled], seed).models
    arms = (plain[: len(rates)], adjusted.models, plain[len(rates) :])
    found = Trial(dict(zip(ARMS, arms, strict=True)), adjusted)
    print(f"seed {seed}: {found}", flush=True)
    return found


def against(pairs: Sequence[tuple[Model, Model]]) -> dict[str, Any]:
    """The first of each pair against the second, by seed."""
    return {
        "loss": harness.ratio([(ours.loss, theirs.loss) for ours, theirs in pairs]),
        "auc_difference": harness.summary([ours.auc - theirs.auc for ours, theirs in pairs]),
        "seeds_better": sum(ours.loss < theirs.loss for ours, theirs in pairs),
    }


def at_best(trials: Sequence[Trial], arms: Sequence[str]) -> list[Model]:
    """The models, by seed, of the arm and rate whose median loss is least."""
    columns = [
        [one.arms[arm][number] for one in trials]
        for arm in arms
        for number in range(len(trials[0].arms[arm]))
    ]
    return min(columns, key=lambda column: statistics.median(one.loss for one in column))


def compare(trials: Sequence[Trial], rates: Sequence[float]) -> dict[str, dict[str, Any]]:
    """``adjust_lr`` against the others, rate by rate and at its best."""
    found = {}
    for number, rate in enumerate(rates):
        columns = {arm: [one.arms[arm][number] for one in trials] for arm in ARMS}
        for other in ("none", "scaled"):
            pairs = list(zip(columns["adjust_lr"], columns[other], strict=True))
            found[f"rate {rate:g}: adjust_lr / {other}"] = against(pairs)
    best = zip(at_best(trials, ["adjust_lr"]), at_best(trials, ["none", "scaled"]), strict=True)
    found["best rate each: adjust_lr / plain"] = against(list(best))
    return found


def main() -> None:
    parser = harness.parser(__doc__, "1 seed, 1 rate, 3 workers, 120 contributions")
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25, 1.0, 4.0])
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--slow", type=float, default=5.0, help="times as long per batch")
    parser.add_argument("--steps", type=int, default=800, help="contributions of the epoch")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.rates, options.workers, options.steps = 1, [1.0], 3, 120
    setting = Setting(options.workers, options.slow, options.steps)
    trials = [trial(setting, options.rates, seed) for seed in range(options.seeds)]
    medians = [
        {
            "rate": rate,
            "arm": arm,
            "loss": round(statistics.median(t.arms[arm][number].loss for t in trials), 4),
            "auc": round(statistics.median(t.arms[arm][number].auc for t in trials), 4),
        }
        for number, rate in enumerate(options.rates)
        for arm in ARMS
    ]
    harness.table(list(medians[0]), [list(row.values()) for row in medians])
    compared = compare(trials, options.rates)
    harness.table(
        ("compared", "loss ratio", "95 % interval", "AUC difference", "seeds better"),
        [
            (
                name,
                of["loss"]["ratio"],
                f"{of['loss']['low95']} to {of['loss']['high95']}",
                of["auc_difference"]["median"],
                f"{of['seeds_better']} of {len(trials)}",
            )
            for name, of in compared.items()
        ],
    )
    adjusted = [one.adjusted for one in trials]
    harness.report(
        "adjust_lr",
        {
            "setting": setting._asdict(),
            "compute": f"emulated, {1e3 * STEP_S:g} ms a batch of {BATCH_SIZE}",
            "mean_factor": harness.summary([one.factor for one in adjusted]),
            "staleness_median": harness.summary([one.staleness[0] for one in adjusted]),
            "staleness_p99": harness.summary([one.staleness[1] for one in adjusted]),
            "medians": medians,
            "compared": compared,
        },
        file=options.json,
    )


if __name__ == "__main__":
    harness.run(main)
