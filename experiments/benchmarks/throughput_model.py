"""The model of a job's speed at sizes that it has not seen, on real jobs.

    python benchmarks/throughput_model.py [--quick] [--models wide_deep xdeepfm] [--cores 1.5]
                                          [--settings 24] [--visits 2] [--folds 6]
                                          [--seconds 10] [--least 0.075] [--at-once 1]

A real job (mode asp, this machine, quotas of control groups) goes through sizes that are drawn: one
to four workers, one or two servers, and cores of each, within the quota. The master measures what a
resource policy sees at each. It comes to each size several times, on the way there and back, so
that it shows how far the machine itself repeats a figure. The sizes are divided into folds, and the
model is fitted to all but one fold, and foretells the samples per second of that one. Printed is
the root of the mean squared log error (RMSLE) over all sizes. Also printed: the error of a model of
two constants (so many samples for each core of a worker, whatever else), fitted to the same sizes;
and the noise, the same error if each visit of a size is foretold by the mean of all its visits.
A machine of many cores can run several jobs of a model at once, each with its part of the sizes.
Floor: 0.1 on at least 20 sizes.

Reference: DLRover-RM section 4.3, which gives no figure of the kind for its own model.
"""

import math
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from auto_size import ROWS, SCRIPTS, START_S, until_training
from msgspec.structs import replace
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.features.sizes.log import log_of
from paceline.features.sizes.policy.fitting import fit, rmsle
from paceline.features.sizes.policy.history import MeasuredSize, SizingHistory
from paceline.features.sizes.policy.steering import SteeringLine
from paceline.jobs.history import Tail
from paceline.jobs.launch import ask
from paceline.policy.job_size import JobSize
from paceline.wire.client import ResizeNodes, Scale
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
FLOOR = 0.1
MOST_WORKERS, MOST_SERVERS = 4, 2
WINDOW_S, SETTLE_S, BETWEEN_S = 1.0, 2.0, 2.0
MEASURE_S = 120.0
PLUGIN = "keeps"
"""A resource policy that only has the job measured, installed for these jobs alone."""


def install(folder: Path) -> None:
    """Put a package with the policy where the processes of a job find packages."""
    about = folder / f"{PLUGIN}-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[paceline.resources]\n{PLUGIN} = {PLUGIN}:Keeps\n")
    (folder / f"{PLUGIN}.py").write_text(
        "from paceline.features.sizes.policy.policies.none import KeepSize\n"
        "class Keeps(KeepSize, frozen=True): pass\n"
    )
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


def drawn(count: int, cores: float, least: float, seed: int) -> list[JobSize]:
    """Sizes within the quota, all with other cores, of nodes with at least so many."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        workers, servers = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 1, 2])
        total = cores * rng.uniform(0.4, 1.0)
        of_servers = total * rng.uniform(0.1, 0.6)
        size = JobSize(
            workers=workers,
            servers=servers,
            worker_cpu=round((total - of_servers) / workers, 3),
            server_cpu=round(of_servers / servers, 3),
        )
        if min(size.worker_cpu, size.server_cpu) >= least:
            found.append(size)
    # A node's start takes long with few cores: as few starts as can be.
    return sorted(found, key=lambda size: (size.servers, size.workers))


def measured(
    options: Any, model: str, data: Path, sizes: list[JobSize]
) -> list[list[MeasuredSize]]:
    """Return what the master of a real job measures at each size, at each visit."""
    first = sizes[0]
    spec = JobSpec(
        script=str(EXAMPLES / SCRIPTS[model]),
        args=("--data", str(data), "--epochs", "10000"),
        name="sizes",
        mode="asp",
        solution="none",
        history="off",
        workers=NodeSpec(count=first.workers, cpu=(first.worker_cpu,)),
        servers=NodeSpec(count=first.servers, cpu=(first.server_cpu,)),
        resources=ResourcesSpec(
            policy=PLUGIN,
            cores=options.cores,
            workers=MOST_WORKERS,
            servers=MOST_SERVERS,
            window_s=WINDOW_S,
            settle_s=SETTLE_S,
            between_s=BETWEEN_S,
        ),
    )
    with harness.running(spec) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        found: list[list[MeasuredSize]] = [[] for _ in sizes]
        places = [*range(len(sizes))]
        for visit in range(options.visits):
            for place in reversed(places) if visit % 2 else places:
                seen = _visited(job, sizes[place], options.seconds)
                found[place].append(seen)
                if options.keep:
                    with (options.keep / f"{model}.jsonl").open("ab") as file:
                        file.write(msgspec.json.encode(seen) + b"\n")
    return found


def measured_at_once(
    options: Any, model: str, data: Path, sizes: list[JobSize]
) -> list[list[MeasuredSize]]:
    """Measure the same by several jobs, each with its part of the sizes."""
    jobs = options.at_once
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(
            lambda part: measured(options, model, data, part),
            [sizes[place::jobs] for place in range(jobs)],
        )
        return [each for part in parts for each in part]


def _visited(job: JobDir, size: JobSize, seconds: float) -> MeasuredSize:
    """Have the job come to a size, and wait until that was measured for so long."""
    begun_s = time.monotonic()
    ask(job, ResizeNodes(role="worker", cpu=(size.worker_cpu,)))
    ask(job, ResizeNodes(role="server", cpu=(size.server_cpu,)))
    ask(job, Scale(workers=size.workers, servers=size.servers))
    until_training(job, size.workers, size.servers)
    tail, found = Tail(log_of(job)), []

    def is_known() -> bool:
        time.sleep(1.0)
        for line in tail.lines():
            for each in msgspec.json.decode(line, type=SteeringLine).before.history.measured:
                is_long = each.rate.windows * WINDOW_S >= seconds
                if not each.size.differing(size) and is_long and each.at_s > begun_s:
                    found[:] = [each]
        return bool(found)

    harness.require(job, is_known, MEASURE_S, f"not measured at {size}")
    print(f"  {size}: {found[0].rate.per_s:,.0f} samples/s", flush=True)
    return found[0]


def mean_of(visits: list[MeasuredSize]) -> MeasuredSize:
    """The size at the mean rate of its visits."""
    last = visits[-1]
    per_s = math.exp(np.mean(np.log([each.rate.per_s for each in visits])))
    return replace(last, rate=replace(last.rate, per_s=per_s))


def noise(seen: list[list[MeasuredSize]]) -> float:
    """Log error of a visit, from the visits of the same size."""
    logs = np.log([[each.rate.per_s for each in visits] for visits in seen])
    return float(np.sqrt(np.mean(logs.var(axis=1, ddof=1))))


def held_out(seen: list[MeasuredSize], folds: int) -> float:
    """RMSLE of the model, over all sizes, each by the fit to the other folds."""
    squares = 0.0
    for fold in range(folds):
        mine = seen[fold::folds]
        others = [each for place, each in enumerate(seen) if place % folds != fold]
        model = fit(SizingHistory(measured=tuple(others)), others[-1], "asp")
        squares += rmsle(model, mine) ** 2 * len(mine)
    return math.sqrt(squares / len(seen))


def by_cores(seen: list[MeasuredSize], folds: int) -> float:
    """The same of a rate that is a constant times a power of the workers' cores."""
    rates = np.log([each.rate.per_s for each in seen])
    cores = np.log([each.size.workers * each.size.worker_cpu for each in seen])
    places, off = np.arange(len(seen)), []
    for fold in range(folds):
        others = places % folds != fold
        power, level = np.polyfit(cores[others], rates[others], 1)
        off += list(rates[~others] - level - power * cores[~others])
    return float(np.sqrt(np.mean(np.square(off))))


def main() -> int:
    parser = harness.parser(__doc__, "four sizes of one model for a moment, no floor")
    parser.add_argument("--models", nargs="+", choices=sorted(SCRIPTS), default=sorted(SCRIPTS))
    parser.add_argument("--cores", type=float, default=1.5)
    parser.add_argument("--settings", type=int, default=24)
    parser.add_argument("--visits", type=int, default=2, help="of each size")
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="at each size")
    parser.add_argument("--least", type=float, default=0.075, help="cores of a node")
    parser.add_argument("--at-once", type=int, default=1, help="jobs of a model")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--keep", type=Path, help="also add what was measured to files here")
    options = parser.parse_args()
    if options.quick:
        options.models, options.settings, options.folds = options.models[:1], 4, 2
        options.visits = 1
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with harness.scratch() as out:
        install(out / "plugin")
        data = out / "data"
        make_ctr(data, ROWS, CtrSettings())
        for model in options.models:
            sizes = drawn(options.settings, options.cores, options.least, options.seed)
            visits = measured_at_once(options, model, data, sizes)
            seen = [mean_of(each) for each in visits]
            found[model] = {
                "sizes": float(len(seen)),
                "rmsle": held_out(seen, options.folds),
                "rmsle_by_cores": by_cores(seen, options.folds),
                "least_per_s": min(each.rate.per_s for each in seen),
                "most_per_s": max(each.rate.per_s for each in seen),
            }
            if options.visits > 1:
                found[model]["noise"] = noise(visits)
    harness.report("throughput_model", found, file=options.json)
    if options.quick:
        return 0
    return int(any(each["rmsle"] > FLOOR for each in found.values()))


if __name__ == "__main__":
    harness.run(main)
