"""What watching a script costs it: torch's DDP with the probe of its steps and calls, and without.

    python benchmarks/failslow_overhead.py [--quick] [--rounds 5] [--pairs 8] [--workers 2]
                                           [--models resnet transformer]

Plain processes of torchrun. In each, the same model trains in turns of ``--steps`` steps, with the
probe and without it, the order alternating; ``--rounds`` of fresh processes. Printed: the time with
the probe divided by that without, its geometric mean with a 95 % interval over rounds and their
pairs. What agents and the master do with it is not in it: they read it twice a second. Goal: at
most 1.004.
"""

import json
import sys
from pathlib import Path

from paceline_experiments import harness

SCRIPT = Path(__file__).with_name("jobs") / "watched.py"
CASES = {"resnet": (8, 4), "transformer": (16, 6)}
"""Batch of a rank, steps of a run."""


def measured(model: str, pairs: int, workers: int, *, quick: bool) -> list[tuple[float, float]]:
    """Seconds (with, without) of each pair, in processes of their own."""
    batch_size, steps = CASES[model]
    with harness.scratch() as out:
        result = out / "pairs.json"
        flags = ["--out", str(result), "--model", model, "--batch-size", str(batch_size)]
        flags += ["--pairs", str(pairs), "--steps", str(1 if quick else steps)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(workers), str(SCRIPT), *flags]
        harness.output_of(model, command, {"OMP_NUM_THREADS": "1"})
        return [(watched, plain) for watched, plain in json.loads(result.read_text())]


def main() -> None:
    parser = harness.parser(__doc__, "a few short runs, no figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rounds, pairs = (1, 2) if options.quick else (options.rounds, options.pairs)
    found = {}
    for model in options.models:
        took = [measured(model, pairs, options.workers, quick=options.quick) for _ in range(rounds)]
        found[model] = {
            "watched_s": harness.summary([watched for one in took for watched, _ in one]),
            "plain_s": harness.summary([plain for one in took for _, plain in one]),
            "ratio": harness.ratio_of_rounds(took),
        }
    harness.report("failslow_overhead", found, file=options.json)


if __name__ == "__main__":
    harness.run(main)
