"""A job that finds its own size, beside sizes set by hand under the same quota.

    python benchmarks/auto_size.py [--quick] [--model wide_deep] [--cores 1.5] [--policies rm ...]
                                   [--from-large rm sample_optimise_adjust]
                                   [--seeds 3] [--rival-seeds 3]
                                   [--changes 10] [--seconds 15] [--at-once 1]
                                   [--healthy MINUTES] [--good WORKERS SERVERS SHARE]

Real jobs on this machine, mode asp; each node's cores are a quota of its control group, so one core
of the paper is a part of one here. First one job goes through the sizes of a fixed table, live
(`paceline scale`), and its samples/s are measured at each. Then a job begins far too small (one
worker and one server, which have 0.3 of the quota together) or far too large (as many nodes as
there may be), and a policy finds its size; `optimus` and `es` only add. Then, since a machine is
not the same for an hour, another job runs at the best size of the table. Printed for each: the
samples/s that the policy has at the end, as a part of those of this second job; how many changes it
made; after how many seconds it was first within 0.9 of the best of the table (-1: never).
Floor: 0.9 of the best in at most 10 changes.

With ``--healthy`` no job begins at a bad size. Instead one begins at the best of the table, or at
the size that ``--good`` names (numbers of nodes, and the servers' share of the quota), and trains
for so many minutes with policy `rm` and its default windows. Other processes compute meanwhile,
which come and go every few seconds. Floor: no change.

A machine with more processors can run several jobs ``--at-once``: the quota of each is the same.
"""

import itertools
import random
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from healthy import busy
from paceline_experiments import harness

from paceline.base.jobdir import JobDir
from paceline.features.data.ctr import CtrSettings
from paceline.features.data.make_ctr import make_ctr
from paceline.features.sizes.events import SizeChangedEvent, read
from paceline.jobs.history import read_events
from paceline.jobs.launch import ask
from paceline.wire.client import ResizeNodes, Scale
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {"wide_deep": "02_wide_deep.py", "xdeepfm": "03_xdeepfm.py"}
ROWS = 200_000
SETTLE_S = 4.0
"""Seconds after a change by hand before samples are counted."""
START_S, CHANGE_S = 90.0, 120.0
MOST_WORKERS, MOST_SERVERS = 4, 2
SMALL = 0.3
"""Part of the quota for the first two nodes."""


class Setting(NamedTuple):
    """A size, all of whose cores are the quota."""

    workers: int
    servers: int
    server_share: float
    """Part of the quota for all servers."""

    def cores(self, quota: float) -> tuple[float, float]:
        """Return the cores of a worker, and of a server."""
        of_servers = quota * self.server_share
        return (quota - of_servers) / self.workers, of_servers / self.servers


TABLE = [
    Setting(workers, servers, share)
    for servers, workers, share in itertools.product((1, 2), (1, 2, 4), (0.15, 0.3, 0.5))
]


def spec_of(
    options: Any, data: Path, setting: Setting, quota: float, resources: ResourcesSpec, seed: int
) -> JobSpec:
    worker_cpu, server_cpu = setting.cores(quota)
    return JobSpec(
        script=str(EXAMPLES / SCRIPTS[options.model]),
        args=("--data", str(data), "--epochs", "10000"),
        name="auto",
        mode="asp",
        solution="none",
        seed=seed,
        history="off",
        workers=NodeSpec(count=setting.workers, cpu=(worker_cpu,)),
        servers=NodeSpec(count=setting.servers, cpu=(server_cpu,)),
        resources=resources,
    )


def rate(job: JobDir, seconds: float) -> float:
    """Samples that come into the model per second."""
    start_s, before = time.monotonic(), harness.status(job).committed
    time.sleep(seconds)
    return (harness.status(job).committed - before) / (time.monotonic() - start_s)


def until_training(job: JobDir, workers: int, servers: int) -> None:
    def is_there() -> bool:
        nodes = [node for node in harness.status(job).nodes if node.state == "running"]
        found = [sum(node.role == role for node in nodes) for role in ("worker", "server")]
        return found == [workers, servers]

    harness.require(job, is_there, CHANGE_S, f"not {workers} workers and {servers} servers")


def by_hand(options: Any, data: Path) -> list[tuple[Setting, float]]:
    """The rate at each size of the table."""
    table = TABLE[:2] if options.quick else TABLE
    parts = [table[first :: options.at_once] for first in range(options.at_once)]
    calls = [partial(_through, options, data, part) for part in parts if part]
    return [one for part in harness.side_by_side(calls, options.at_once) for one in part]


def _through(options: Any, data: Path, table: list[Setting]) -> list[tuple[Setting, float]]:
    """The rates of one job at some sizes."""
    found = []
    spec = spec_of(options, data, table[0], options.cores, ResourcesSpec(), 1)
    with harness.running(spec) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        for setting in table:
            worker_cpu, server_cpu = setting.cores(options.cores)
            ask(job, ResizeNodes(role="worker", cpu=(worker_cpu,)))
            ask(job, ResizeNodes(role="server", cpu=(server_cpu,)))
            ask(job, Scale(workers=setting.workers, servers=setting.servers))
            until_training(job, setting.workers, setting.servers)
            time.sleep(SETTLE_S)
            found.append((setting, rate(job, options.seconds)))
            print(f"  by hand {setting}: {found[-1][1]:,.0f} samples/s", flush=True)
    return found


def at(options: Any, data: Path, setting: Setting) -> float:
    """The rate of a job that begins at a size, and keeps it."""
    with harness.running(spec_of(options, data, setting, options.cores, ResourcesSpec(), 1)) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        time.sleep(SETTLE_S)
        return rate(job, options.seconds)


def by_itself(
    options: Any,
    data: Path,
    policy: str,
    start: str,
    seed: int,
    best: Setting,
    table_rate: float,
) -> dict[str, float]:
    """Measure what a policy makes of a bad size, and then what the best of the table does."""
    resources = ResourcesSpec(
        policy=policy,
        cores=options.cores,
        workers=MOST_WORKERS,
        servers=MOST_SERVERS,
        window_s=1.5,
        settle_s=2.0,
        between_s=4.0,
        patience_s=60.0,
    )
    setting = Setting(1, 1, 0.5) if start == "small" else Setting(MOST_WORKERS, MOST_SERVERS, 0.7)
    quota = options.cores * SMALL if start == "small" else options.cores
    found: dict[str, float] = {}
    spec = spec_of(options, data, setting, quota, resources, seed)
    with harness.running(spec) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        start_s, quiet_s = time.monotonic(), time.monotonic()
        changes, within_s = 0, -1.0
        last_s, last = start_s, harness.status(job).committed
        while time.monotonic() - start_s < options.limit:
            time.sleep(3.0)
            now_s, committed = time.monotonic(), harness.status(job).committed
            speed, last_s, last = (committed - last) / (now_s - last_s), now_s, committed
            if within_s < 0 and speed >= 0.9 * table_rate:
                within_s = now_s - start_s
            made = sum(isinstance(one, SizeChangedEvent) for one in read(read_events(job.events)))
            if made > changes:
                changes, quiet_s = made, now_s
            if changes >= options.changes or now_s - quiet_s > options.calm:
                break
        end = rate(job, options.seconds)
        nodes = [node for node in harness.status(job).nodes if node.state == "running"]
        sizes = {
            role: (sum(node.role == role for node in nodes), _cores(nodes, role))
            for role in ("worker", "server")
        }
    by_hand_rate = at(options, data, best)
    found = {
        "first_size": setting.workers,
        "samples_per_s": end,
        "by_hand_samples_per_s": by_hand_rate,
        "of_best": end / by_hand_rate,
        "of_table": end / table_rate,
        "changes": float(changes),
        "within_s": within_s,
    }
    print(f"  {policy} from {start}, seed {seed}: {found} {sizes}", flush=True)
    return found


def healthy(options: Any, data: Path, best: Setting) -> dict[str, float]:
    """Measure what `rm` does to a job that has the best size already, on a busy machine."""
    resources = ResourcesSpec(
        policy="rm", cores=options.cores, workers=MOST_WORKERS, servers=MOST_SERVERS
    )
    spec, rng = spec_of(options, data, best, options.cores, resources, 1), random.Random(1)
    with harness.running(spec) as job:
        harness.require(job, lambda: harness.status(job).committed > 0, START_S, "no step")
        end_s, loaded_s = time.monotonic() + 60.0 * options.healthy, 0.0
        while time.monotonic() < end_s:
            load, for_s = rng.randrange(4), rng.uniform(2.0, 20.0)
            loaded_s += for_s if load else 0.0
            with busy(load):
                time.sleep(for_s)
        events = read(read_events(job.events))
    return {
        "minutes": options.healthy,
        "minutes_beside_load": loaded_s / 60.0,
        "changes": float(sum(isinstance(one, SizeChangedEvent) for one in events)),
    }


def _cores(nodes: list[Any], role: str) -> float:
    granted = [node.cores or 0.0 for node in nodes if node.role == role]
    return sum(granted) / len(granted) if granted else 0.0


def main() -> int:
    parser = harness.parser(__doc__, "two sizes by hand, one policy for some seconds, no figures")
    parser.add_argument("--model", choices=sorted(SCRIPTS), default="wide_deep")
    parser.add_argument("--cores", type=float, default=1.5)
    policies = ["rm", "es", "optimus", "sample_optimise_adjust"]
    parser.add_argument("--policies", nargs="*", default=policies, help="from a small size")
    shrinking = ["rm", "sample_optimise_adjust"]
    parser.add_argument("--from-large", nargs="*", metavar="POLICY", default=shrinking)
    parser.add_argument("--seeds", type=int, default=3, help="of rm")
    parser.add_argument("--rival-seeds", type=int, default=3, help="of the others")
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--calm", type=float, default=70.0, help="without a change: it has ended")
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--at-once", type=int, default=1, help="jobs")
    parser.add_argument("--healthy", type=float, metavar="MINUTES", help="only a job of good size")
    parser.add_argument("--good", type=float, nargs=3, help="with --healthy: its size")
    options = parser.parse_args()
    if options.good and not options.healthy:
        parser.error("--good is for --healthy")
    if options.quick:
        options.policies, options.from_large = options.policies[:1], []
        options.seconds, options.calm, options.limit, options.seeds = 2.0, 8.0, 15.0, 1
        options.rival_seeds = 1
    found: dict[str, Any] = {}
    with harness.scratch() as out:
        data = out / "data"
        make_ctr(data, ROWS, CtrSettings())
        if options.good:
            workers, servers, share = options.good
            best, most = Setting(int(workers), int(servers), share), 0.0
        else:
            table = by_hand(options, data)
            best, most = max(table, key=lambda one: one[1])
            found["by_hand"] = {"best_samples_per_s": most, "worst": min(one[1] for one in table)}
        print(f"best by hand: {best}", flush=True)
        if options.healthy:
            found["healthy"] = healthy(options, data, best)
            harness.report("auto_size", found, file=options.json)
            return int(found["healthy"]["changes"] > 0)
        arms = [(policy, "small") for policy in options.policies]
        arms += [(policy, "large") for policy in options.from_large]
        # Each seed of all arms before the next.
        seeds = range(max(options.seeds, options.rival_seeds))
        runs = [
            (seed, policy, start)
            for seed in seeds
            for policy, start in arms
            if seed < (options.seeds if policy == "rm" else options.rival_seeds)
        ]
        calls = [
            partial(by_itself, options, data, policy, start, seed, best, most)
            for seed, policy, start in runs
        ]
        came = harness.side_by_side(calls, options.at_once)
        for policy, start in arms:
            mine = [one for one, run in zip(came, runs, strict=True) if run[1:] == (policy, start)]
            found[f"{policy}_{start}"] = {
                key: median(run[key] for run in mine)
                for key in ("of_best", "of_table", "changes", "within_s")
            }
    harness.report("auto_size", found, file=options.json)
    return 0


if __name__ == "__main__":
    harness.run(main)
