"""Steady state of strategy allreduce beside torch's DDP: the ratio of their speeds.

    python benchmarks/ddp_steady.py [--quick] [--pairs 24] [--workers 2]

A ResNet-18 for small images and a small transformer, each trained by `job.batches` and by DDP (its
own gloo group, torch's sampler and loader) in the same processes, in turns of ``--steps`` steps,
the order alternating; neither makes checkpoints. Printed: DDP's time divided by ours (above 1: we
are faster), its median and the geometric mean with a 95 % interval over pairs. Floor: lower end >=
0.98, median >= 0.99.
"""

import argparse
import json
import statistics

import harness

from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

JOB_S = 1800.0
CASES = {"resnet": (16, 4), "transformer": (32, 6)}
"""Global batch, steps of a run."""


def measured(model: str, pairs: int, workers: int, quick: bool) -> list[list[float]]:
    """Seconds of [ours, DDP] for each pair."""
    batch_size, steps = CASES[model]
    with harness.scratch() as out:
        result = out / "pairs.json"
        flags = ["--out", str(result), "--model", model, "--batch-size", str(batch_size)]
        flags += ["--pairs", str(pairs), "--steps", str(1 if quick else steps)]
        spec = JobSpec(
            script=str(harness.TINY.with_name("beside_ddp.py")),
            args=tuple(flags),
            name="beside-ddp",
            strategy="allreduce",
            workers=NodeSpec(count=workers),
            solution="none",
            checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
        )
        with harness.running(spec) as job:
            harness.until(lambda: result.exists() or job.outcome.exists(), JOB_S)
            if not result.exists():
                raise RuntimeError(f"no result; see {job.logs}")
            return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few short runs, no figures")
    options = parser.parse_args()
    pairs = 2 if options.quick else options.pairs
    found = {}
    for model in CASES:
        took = measured(model, pairs, options.workers, options.quick)
        ratios = [theirs / ours for ours, theirs in took]
        found[model] = {
            "ours_s": harness.summary([ours for ours, _ in took]),
            "ddp_s": harness.summary([theirs for _, theirs in took]),
            "median": round(statistics.median(ratios), 4),
            "ratio": harness.ratio([(theirs, ours) for ours, theirs in took]),
        }
        print(model, json.dumps(found[model]))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
