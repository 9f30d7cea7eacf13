"""What exactly-once costs beyond at-least-once: messages, bytes, throughput.

    python benchmarks/exactly_once_cost.py [--quick] [--pairs 40] [--model click|tiny]

(i) For each mode a job of one worker and m servers that runs to its end, everything sent on the
data plane counted in every process: messages and bytes (headers and frames) per contribution by
kind, beside the protocol's formula: m parts, and beyond at-least-once m held, 1 ready and (m - 1)
order with as many acknowledgements (the leader needs neither for itself; orders travel batched).
(ii) Two jobs of one worker and one server, one in each mode, side by side; their workers run so
many steps in turn, never both. The ratio of times with its 95 % interval over pairs; goal: 1.01.
Prints tables and JSON.
"""

import json
from pathlib import Path

from paceline_experiments import harness

from paceline.wire.spec import JobSpec, NodeSpec

JOBS = Path(__file__).with_name("jobs")
MODES = (
    ("asp", "exactly-once"),
    ("ssp", "exactly-once"),
    ("bsp", "exactly-once"),
    ("asp", "at-least-once"),
    ("asp", "at-most-once"),
)
KINDS = ("Pull", "Pulled", "Part", "Held", "Ready", "Ordered", "Order", "At")
BATCH_SIZE = 256


def spec_of(
    mode: str, samples: str, args: list[str], servers: int = 1, env: dict[str, str] | None = None
) -> JobSpec:
    return JobSpec(
        script=str(JOBS / "gated.py"),
        args=tuple(args),
        name=f"cost-{mode}-{samples}",
        solution="none",
        mode=mode,  # type: ignore[arg-type]
        samples=samples,  # type: ignore[arg-type]
        workers=NodeSpec(count=1),
        servers=NodeSpec(count=servers),
        env=env or {},
    )


def count(mode: str, samples: str, servers: int, steps: int) -> dict[str, tuple[float, float]]:
    """Kind of message -> messages and bytes per contribution, of all processes together."""
    with harness.scratch() as out:
        args = ["--out", str(out / "unused"), "--model", "click", "--rows-per-field", "1000"]
        args += ["--num-samples", str(steps * BATCH_SIZE), "--batch-size", str(BATCH_SIZE)]
        env = {"PYTHONPATH": str(JOBS / "counting"), "PACELINE_BENCH_COUNTS": str(out)}
        with harness.running(spec_of(mode, samples, args, servers, env)) as job:
            harness.finish(job, harness.RUN_S)
        total: dict[str, tuple[float, float]] = {}
        for path in out.glob("*.json"):
            for kind, (messages, num_bytes) in json.loads(path.read_text()).items():
                before = total.get(kind, (0.0, 0.0))
                total[kind] = (before[0] + messages / steps, before[1] + num_bytes / steps)
        return total


def formula(samples: str, servers: int) -> dict[str, float]:
    """Messages per contribution by the protocol; order and its acknowledgement at most so many."""
    if samples != "exactly-once":
        return {"Part": servers}
    others = servers - 1
    return {"Part": servers, "Held": servers, "Ready": 1, "Order": others, "At": others}


def compare(model: str, pairs: int, run_steps: int) -> list[tuple[float, float]]:
    """Seconds of interleaved runs: (exactly-once, at-least-once)."""

    def spec(samples: str, flags: list[str]) -> JobSpec:
        args = [*flags, "--model", model, "--run-steps", str(run_steps)]
        return spec_of("asp", samples, [*args, *(["--batch-size", "64"] * (model == "tiny"))])

    runs = harness.interleaved(spec, ("exactly-once", "at-least-once"), pairs)
    return [(exactly.seconds, at_least.seconds) for exactly, at_least in runs]


def main() -> None:
    parser = harness.parser(__doc__, "60 steps, two modes, 3 pairs")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=500, help="of each counted job")
    parser.add_argument("--run-steps", type=int, default=10, help="of each timed run")
    parser.add_argument("--model", choices=("click", "tiny"), default="click")
    parser.add_argument("--servers", type=int, default=2, help="of the counted jobs")
    options = parser.parse_args()
    steps, pairs = (60, 3) if options.quick else (options.steps, options.pairs)
    modes = (MODES[0], MODES[3]) if options.quick else MODES
    counted = {}
    for mode, samples in modes:
        found = count(mode, samples, options.servers, steps)
        counted[f"{mode} {samples}"] = {
            "messages": {kind: round(one[0], 3) for kind, one in found.items()},
            "bytes": {kind: round(one[1]) for kind, one in found.items()},
            "formula": formula(samples, options.servers),
        }
    rows = []
    for name, one in counted.items():
        for what in ("messages", "formula", "bytes"):
            values = one[what]
            shown = [values.get(kind, 0 if what != "formula" else "") for kind in KINDS]
            rows.append((name, what, *shown, round(sum(values.values()), 2)))
    harness.table(("mode", "per contribution", *KINDS, "all"), rows)
    ratio = harness.ratio(compare(options.model, pairs, options.run_steps))
    print(
        f"time, exactly-once / at-least-once: {ratio['ratio']:.4f} "
        f"[{ratio['low95']:.4f}, {ratio['high95']:.4f}] over {ratio['n']} pairs"
    )
    figures = {"servers": options.servers, "counted": counted, "model": options.model}
    figures |= {"time_ratio": ratio, "goal_ratio": 1.01}
    harness.report("exactly_once_cost", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)
