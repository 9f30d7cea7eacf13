"""Seeded chaos runs: ``python -m tests.chaos.run --seeds 0:200``.

Each seed names a mode, a fault plan and a job of planted counts; the run asserts that every planned
fault fired, that the counts hold in the final cut and in every cut still there, and that nothing is
left on the machine. A failed seed keeps its job directory; with CHAOS_KEEP=1 every seed does, and a
job that hangs is left alive to be looked at.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import msgspec

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, kill_quietly
from paceline.features.stragglers.policy.decision_log import Decided, TookEffect, log_of
from paceline.features.stragglers.stories import read_log
from paceline.jobs.launch import ask, launch
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import (
    CheckpointSpec,
    DataPlaneSpec,
    DataSpec,
    JobSpec,
    NodeSpec,
    RestartSpec,
    TimeoutSpec,
    WindowSpec,
)
from tests.chaos.faults import LOST_AFTER_S, Fault, Injector, moves, plan, supervisor_pid
from tests.chaos.oracle import check_cut, check_updates, feed_of_job, leftovers

SCRIPT = Path(__file__).with_name("planted.py")
TIMEOUT_S = 60.0
SLOW_S = 15.0
"""What a run may take; more is no failure, but said."""
NUM_SAMPLES = 4096
BATCH_SIZE = 64
STEP_S = 0.02
SETUP_S = 0.7
"""Of a script with a slow set-up."""
SYNC_S = 0.5
"""More for each sync of a cut's file, on a slow disk: meanwhile the cut is in memory only."""
RECORD_S = 0.001
"""To read one record, where a loop waits for its input."""
MORE_EPOCHS = 2
"""Where servers are replaced: it takes a second, and should happen while the job trains."""
SOLUTIONS = ("even", "nd", "none", "lb_bsp", "backup_workers", "partial", "adjust_lr", "auto")
SHORTENING = ("backup_workers", "partial", "auto")
WEIGHING = "adjust_lr"
PERIOD = {"every_s": "0.4", "every_steps": "6"}
WINDOWS = WindowSpec(short_steps=8, short_s=5.0, long_steps=16, long_s=10.0)
LINGER_S = 5.0
"""After the outcome is written the supervisor takes this long at most to clear the machine."""


@dataclasses.dataclass
class Case:
    """One seeded run."""

    seed: int
    mode: str
    samples: str
    num_workers: int
    num_servers: int
    epochs: int
    staleness: int
    data_plane: DataPlaneSpec
    setup_s: float
    record_s: float
    sync_s: float
    faults: list[Fault]
    solution: str = "none"
    slow: str = ""
    """A node that takes three times as long for a batch."""

    @property
    def by_updates(self) -> bool:
        """Whether updates may differ in weight: steps lack samples, or learning rates are adjusted."""
        return self.solution in SHORTENING if self.mode == "bsp" else self.solution == WEIGHING

    @property
    def data(self) -> tuple[int, int]:
        """Samples of an epoch, and epochs.

        An asynchronous batch may end one lease and begin the next, in another epoch, with the same
        sample, whose row is updated once then: where updates are counted there is one long epoch.
        """
        if self.by_updates and self.mode != "bsp":
            return NUM_SAMPLES * self.epochs, 1
        return NUM_SAMPLES, self.epochs


def with_solution(case: Case) -> Case:
    """The same under a solution, which has something to do in two of three runs."""
    rng = random.Random(f"solution {case.seed}")
    # Without an order each server knows a staleness of its own.
    known = [s for s in SOLUTIONS if case.samples == "exactly-once" or s != WEIGHING]
    solution = rng.choice(known)
    return dataclasses.replace(
        case, solution=solution, slow=rng.choice(["", "worker-0", "worker-1"])
    )


def with_moves(case: Case) -> Case:
    """The same where servers are replaced besides; without an order they cannot be."""
    if case.samples != "exactly-once":
        return case
    epochs = case.epochs + MORE_EPOCHS
    num_samples = NUM_SAMPLES * epochs
    added = moves(case.seed, num_samples=num_samples, count=1 + case.seed % 2)
    return dataclasses.replace(case, epochs=epochs, faults=[*case.faults, *added])


def case_of(seed: int) -> Case:
    """A pure function of the seed."""
    rng = random.Random(f"case {seed}")
    mode, samples = rng.choice(
        [
            ("asp", "exactly-once"),
            ("bsp", "exactly-once"),
            ("ssp", "exactly-once"),
            ("asp", "at-least-once"),
            ("asp", "at-most-once"),
            ("ssp", "at-least-once"),
            ("ssp", "at-most-once"),
        ]
    )
    record_s = rng.choice([0.0, 0.0, 0.0, RECORD_S])
    epochs = 1 if record_s else rng.choice([1, 2])
    num_workers = rng.choice([1, 2, 3])
    data_plane = rng.choice(
        [
            *([DataPlaneSpec()] * 4),
            DataPlaneSpec(transport="tcp", encryption="off"),
            DataPlaneSpec(transport="tcp", encryption="curve"),
        ]
    )
    num_samples = NUM_SAMPLES * epochs
    return Case(
        seed=seed,
        mode=mode,
        samples=samples,
        num_workers=num_workers,
        num_servers=rng.choice([1, 2]),
        epochs=epochs,
        staleness=rng.choice([1, 3]),
        data_plane=data_plane,
        setup_s=rng.choice([0.0, 0.0, 0.0, SETUP_S]),
        record_s=record_s,
        sync_s=random.Random(f"disk {seed}").choice([0.0, 0.0, SYNC_S]),
        faults=plan(
            seed,
            num_samples=num_samples,
            num_faults=rng.choice([1, 1, 2, 3]),
            training_s=num_samples / num_workers * (STEP_S / BATCH_SIZE + record_s),
            tcp=data_plane.transport == "tcp",
        ),
    )


def full_case_of(seed: int) -> Case:
    """A pure function of the seed: with replaced servers and a solution."""
    return with_solution(with_moves(case_of(seed)))


@contextlib.contextmanager
def slow_disk(sync_s: float, copy_s: float = 0.0) -> Iterator[None]:
    """Jobs launched meanwhile take so much longer to sync a server's file of a cut.

    ``copy_s``: and stand still for so long in the middle of copying an array of it.
    """
    planted = {}
    if sync_s or copy_s:  # Python imports one sitecustomize only: others may be on the path
        path = [str(Path(__file__).with_name("slow_disk")), os.environ.get("PYTHONPATH")]
        planted["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        slow = {"PACELINE_TEST_SYNC_S": sync_s, "PACELINE_TEST_COPY_S": copy_s}
        planted |= {name: str(seconds) for name, seconds in slow.items() if seconds}
    with patch.dict(os.environ, planted):
        yield


def run(case: Case) -> dict[str, object]:
    """Run one case to its end and assert what must hold; the facts of the run."""
    num_samples, epochs = case.data
    spec = JobSpec(
        script=str(SCRIPT),
        args=(
            *("--num-samples", str(num_samples), "--epochs", str(epochs)),
            *("--batch-size", str(BATCH_SIZE), "--step-s", str(STEP_S)),
            *("--share", str(BATCH_SIZE // case.num_workers)),
            *("--setup-s", str(case.setup_s), "--record-s", str(case.record_s)),
            *(["--synchronous"] if case.mode == "bsp" else []),
            *(["--by-updates"] if case.by_updates else []),
            *(["--slow", case.slow] if case.slow else []),
        ),
        name=f"chaos-{case.seed}",
        seed=case.seed,
        preflight=False,
        mode=case.mode,  # type: ignore[arg-type]
        samples=case.samples,  # type: ignore[arg-type]
        staleness=case.staleness,  # counts in ssp only
        data_plane=case.data_plane,
        workers=NodeSpec(count=case.num_workers),
        servers=NodeSpec(count=case.num_servers),
        data=DataSpec(shard_size=256),
        solution=case.solution,
        solution_args=PERIOD if case.solution != "none" else {},
        windows=WINDOWS,
        checkpoint=CheckpointSpec(every_s=0.5, share=0.5, keep=1000),
        restart=RestartSpec(budget=100, backoff_s=0.1),
        timeouts=TimeoutSpec(lost_after_s=LOST_AFTER_S),
    )
    start_s = time.monotonic()
    with slow_disk(case.sync_s):
        job = launch(spec)
    injector = Injector(job, case.faults)
    where = f"seed {case.seed} ({job.path}; {[str(f) for f in case.faults]})"
    status = survive(job, injector, start_s + TIMEOUT_S, where)
    check_fired(injector.waiting, where)
    check_clean(job, where)
    check_counts(job, case, where)
    check_logs(job, where)
    acted, seconds = actions(job), time.monotonic() - start_s
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(job.path)
    return {
        "seed": case.seed,
        "mode": case.mode,
        "samples": case.samples,
        "workers": case.num_workers,
        "servers": case.num_servers,
        "data_plane": case.data_plane.transport,
        "setup_s": case.setup_s,
        "record_s": case.record_s,
        "sync_s": case.sync_s,
        "solution": case.solution,
        "slow": case.slow,
        "actions": acted,
        "faults": [str(fault) for fault, _ in injector.fired],
        "epoch_no": status.epoch_no if status else None,
        "seconds": round(seconds, 2),
        "took_long": seconds > SLOW_S,
    }


def follow(job: JobDir, injector: Injector, deadline_s: float) -> JobStatus | None:
    """Inject faults until the job has an outcome; the last status seen."""
    status = None
    while not job.outcome.exists() and time.monotonic() < deadline_s:
        injector.take_back()
        try:
            reply = ask(job, GetStatus(), timeout_s=1.0)
        except (PacelineError, OSError):
            time.sleep(0.05)  # the master is being restarted, or the job has just ended
            continue
        if isinstance(reply, JobStatus):
            status = reply
            injector.look(status)
        time.sleep(0.03)
    return status


def survive(job: JobDir, injector: Injector, deadline_s: float, where: str) -> JobStatus | None:
    """Follow a job, and assert that it finishes in time whatever is done to it; its last status."""
    try:
        status = follow(job, injector, deadline_s)
    finally:
        injector.finish()
    outcome = {"state": "none: it hangs"}
    if job.outcome.exists():
        outcome = json.loads(job.outcome.read_text())
    elif not os.environ.get("CHAOS_KEEP"):
        end(job)
    assert outcome["state"] == "finished", f"{where}: ended as {outcome}"
    return status


def check_fired(waiting: Iterable[object], where: str) -> None:
    """Assert that no planned fault is left."""
    left = [str(fault) for fault in waiting]
    assert not left, f"{where}: never fired: {left}"


def check_clean(job: JobDir, where: str) -> None:
    """Assert that nothing is left of a job that has ended."""
    deadline_s = time.monotonic() + LINGER_S
    while (left := leftovers(job)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not left, f"{where}: left behind {left}"


def end(job: JobDir) -> None:
    """End a job that hangs: the seeds after it need the machine."""
    with contextlib.suppress(PacelineError, OSError):
        ask(job, StopJob(now=True), timeout_s=2.0)
    deadline_s = time.monotonic() + LINGER_S
    while leftovers(job) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    supervisor = supervisor_pid(job)
    for pid in [
        *([supervisor] if supervisor else []),
        *(p.pid for p in find_job_processes(job.path)),
    ]:
        kill_quietly(pid)


def check_counts(job: JobDir, case: Case, where: str) -> None:
    """Assert the planted counts in every cut that is there."""
    feed, (_, epochs) = feed_of_job(job), case.data
    cuts = sorted(path.parent for path in job.cuts.glob("*/manifest.json"))
    assert cuts, f"{where}: no cut"
    for directory in cuts:
        try:
            if case.by_updates:
                check_updates(directory, feed, epochs, final=directory == cuts[-1])
            else:
                check_cut(directory, feed, case.samples, epochs, final=directory == cuts[-1])
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error


def actions(job: JobDir) -> dict[str, int]:
    """How often each action took effect."""
    lines = read_log(log_of(job)) if log_of(job).exists() else []
    decided = {line.no: line.actions for line in lines if isinstance(line, Decided)}
    done = (decided[line.no][line.index] for line in lines if isinstance(line, TookEffect))
    return dict(Counter(type(action).__name__ for action in done))


def check_logs(job: JobDir, where: str, *but: str) -> None:
    """Assert that nothing died of an error of its own, ``but`` of some: recovery would hide it."""
    for path in sorted(job.logs.iterdir()):
        _, found, trace = path.read_text(errors="replace").partition("Traceback (most recent")
        found = found and not any(one in trace for one in but)
        assert not found, f"{where}: an error in {path.name}: {trace[-600:]}"


def main() -> None:
    """Run a range of seeds; resumable, since each seed stands alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:10", help="a:b, b excluded")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--no-moves", action="store_true", help="replace no servers")
    parser.add_argument("--no-solutions", action="store_true", help="nobody acts on stragglers")
    options = parser.parse_args()

    def run_seed(seed: int) -> dict[str, object]:
        case = case_of(seed)
        case = case if options.no_moves else with_moves(case)
        return run(case if options.no_solutions else with_solution(case))

    run_seeds(options.seeds, run_seed, keep_going=options.keep_going)


def run_seeds(
    seeds: str, run_seed: Callable[[int], dict[str, object]], *, keep_going: bool
) -> NoReturn:
    """Run seeds ``a:b``, b excluded, say what became of each, and exit: 1 if one failed."""
    first, last = (int(part) for part in seeds.split(":"))
    os.environ.setdefault("PACELINE_HOME", "/tmp/paceline-chaos")
    failed: list[int] = []
    seconds: dict[int, float] = {}
    for seed in range(first, last):
        start_s = time.monotonic()
        try:
            print(msgspec.json.encode(run_seed(seed)).decode(), flush=True)
        except AssertionError as error:
            failed.append(seed)
            print(f"FAILED {error}", flush=True)
        seconds[seed] = time.monotonic() - start_s
        if failed and not keep_going:
            break
    print(summary(seconds, failed))
    sys.exit(bool(failed))


def summary(seconds: dict[int, float], failed: list[int]) -> str:
    """The last line of a range: ``seconds`` is how long each seed took, failed ones included."""
    if not seconds:
        return "0 seeds"
    slow = [seed for seed, took_s in seconds.items() if took_s > SLOW_S]
    return (
        f"{len(seconds)} seeds, {len(failed)} failed {failed}, "
        f"{len(slow)} took longer than {SLOW_S:.0f} s {slow}, "
        f"median {statistics.median(seconds.values()):.1f} s, max {max(seconds.values()):.1f} s"
    )


if __name__ == "__main__":
    main()
