"""What ``deterministic: true`` costs all-reduce, by the number of blocks.

    python benchmarks/deterministic_cost.py [--quick] [--pairs 15] [--workers 2] [--blocks 4 16]

Two jobs of the same model, one deterministic and one not, side by side; they run so many steps in
turn, never both. One thread of torch in each worker of both. A worker computes blocks / workers
batches a step instead of one, each of so many times fewer samples. Printed: seconds of a run, and
their ratio (above 1: deterministic is slower) with a 95 % interval over pairs.
"""

import functools
from pathlib import Path

from paceline_experiments import harness

from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec

SCRIPT = Path(__file__).with_name("jobs") / "gated_dense.py"
ARMS = ("deterministic", "default")
CASES = {"resnet": (32, 2), "transformer": (64, 2)}
"""Global batch, steps of a run."""


def spec_of(arm: str, flags: list[str], model: str, workers: int, blocks: int) -> JobSpec:
    batch_size, steps = CASES[model]
    flags += ["--model", model, "--batch-size", str(batch_size), "--run-steps", str(steps)]
    return JobSpec(
        script=str(SCRIPT),
        args=tuple(flags),
        name=f"deterministic-cost-{arm}",
        strategy="allreduce",
        deterministic=arm == "deterministic",
        blocks=blocks,
        torch_threads=1,
        workers=NodeSpec(count=workers),
        solution="none",
        checkpoint=CheckpointSpec(every_s=harness.NEVER_S),
    )


def main() -> None:
    parser = harness.parser(__doc__, "one model, a few runs, no figures")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 16])
    options = parser.parse_args()
    models = list(CASES)
    if options.quick:
        options.pairs, options.blocks, models = 1, [4], models[1:]
    figures: dict[str, object] = {"workers": options.workers}
    for model in models:
        for blocks in options.blocks:
            spec = functools.partial(spec_of, model=model, workers=options.workers, blocks=blocks)
            runs = harness.interleaved(spec, ARMS, options.pairs, options.workers)
            took = [(first.seconds, second.seconds) for first, second in runs]
            figures[f"{model}, {blocks} blocks"] = harness.ratio(took) | {
                arm: harness.summary([pair[number] for pair in took])
                for number, arm in enumerate(ARMS)
            }
    harness.report("deterministic_cost", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
