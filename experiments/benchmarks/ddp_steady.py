"""Steady state of strategy allreduce beside torch's DDP: the ratio of their speeds.

    python benchmarks/ddp_steady.py [--quick] [--rounds 20] [--pairs 8] [--workers 2]
                                    [--models resnet transformer]

A ResNet-18 for small images and a small transformer, each trained by `job.batches` and by DDP (its
own gloo group, torch's sampler and loader) in the same processes, in turns of ``--steps`` steps,
the order alternating; neither makes checkpoints. Where memory lies makes one of two equal models
some percent faster for as long as their processes live, so there are ``--rounds`` of fresh ones, in
turns with the one or the other built first. Printed: DDP's time divided by ours (above 1: we are
faster), its median over all pairs, and the geometric mean with a 95 % interval over rounds and
their pairs. Floor: lower end >= 0.98, median >= 0.99.
"""

import json

from paceline_experiments import harness

from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

JOB_S = 1800.0
CASES = {"resnet": (16, 4), "transformer": (32, 6)}
"""Global batch, steps of a run."""


def measured(
    model: str, pairs: int, workers: int, *, quick: bool, theirs_first: bool
) -> list[tuple[float, float]]:
    """Seconds of (DDP, ours) for each pair, in processes of their own."""
    batch_size, steps = CASES[model]
    with harness.scratch() as out:
        result = out / "pairs.json"
        flags = ["--out", str(result), "--model", model, "--batch-size", str(batch_size)]
        flags += ["--pairs", str(pairs), "--steps", str(1 if quick else steps)]
        flags += ["--theirs-first"] if theirs_first else []
        spec = JobSpec(
            script=str(harness.TINY.with_name("beside_ddp.py")),
            args=tuple(flags),
            name=f"beside-ddp-{model}",
            strategy="allreduce",
            workers=NodeSpec(count=workers),
            solution="none",
            checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
        )
        with harness.running(spec) as job:
            harness.require(job, result.exists, JOB_S, "no result")
            return [(theirs, ours) for ours, theirs in json.loads(result.read_text())]


def main() -> None:
    parser = harness.parser(__doc__, "a few short runs, no figures")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rounds, pairs = (1, 2) if options.quick else (options.rounds, options.pairs)
    found = {}
    for model in options.models:
        took = []
        for number in range(rounds):
            first, quick = number % 2 == 1, options.quick
            took.append(measured(model, pairs, options.workers, quick=quick, theirs_first=first))
            print(f"{model}, round {number + 1}:", json.dumps(harness.ratio(took[-1])), flush=True)
        found[model] = {
            "ours_s": harness.summary([ours for one in took for _, ours in one]),
            "ddp_s": harness.summary([theirs for one in took for theirs, _ in one]),
            "ratio": harness.ratio_of_rounds(took),
        }
    harness.report("ddp_steady", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
