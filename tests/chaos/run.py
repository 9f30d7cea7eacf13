"""Seeded chaos runs: ``python -m tests.chaos.run --seeds 0:200``.

Each seed names a mode, a fault plan and a job of planted counts; the run asserts that every planned
fault fired, that the counts hold in the final cut and in every cut still there, and that nothing is
left on the machine. A failed seed keeps its job directory.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import msgspec

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.cli.launch import ask, launch
from paceline.master.journal import Journal
from paceline.master.state import FeedAdded
from paceline.wire.client import GetStatus, JobStatus
from paceline.wire.messages import Feed
from paceline.wire.spec import CheckpointSpec, DataSpec, JobSpec, NodeSpec, RestartSpec, TimeoutSpec
from tests.chaos.faults import LOST_AFTER_S, Fault, Injector, plan
from tests.chaos.oracle import check_cut, leftovers

SCRIPT = Path(__file__).with_name("planted.py")
TIMEOUT_S = 60.0
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
    num_samples: int
    epochs: int
    faults: list[Fault]


def case_of(seed: int) -> Case:
    """A pure function of the seed."""
    rng = random.Random(seed)
    mode, samples = rng.choice(
        [
            ("asp", "exactly-once"),
            ("bsp", "exactly-once"),
            ("ssp", "exactly-once"),
            ("asp", "at-least-once"),
            ("asp", "at-most-once"),
        ]
    )
    num_samples, epochs = 4096, rng.choice([1, 2])
    num_faults = rng.choice([1, 1, 2, 3])
    return Case(
        seed=seed,
        mode=mode,
        samples=samples,
        num_workers=rng.choice([1, 2, 3]),
        num_servers=rng.choice([1, 2]),
        num_samples=num_samples,
        epochs=epochs,
        faults=plan(seed, num_samples=num_samples * epochs, num_faults=num_faults),
    )


def run(case: Case) -> dict[str, object]:
    """Run one case to its end and assert what must hold; the facts of the run."""
    spec = JobSpec(
        script=str(SCRIPT),
        args=(
            *("--num-samples", str(case.num_samples), "--epochs", str(case.epochs)),
            *(["--synchronous"] if case.mode == "bsp" else []),
        ),
        name=f"chaos-{case.seed}",
        seed=case.seed,
        mode=case.mode,  # type: ignore[arg-type]
        samples=case.samples,  # type: ignore[arg-type]
        workers=NodeSpec(count=case.num_workers),
        servers=NodeSpec(count=case.num_servers),
        data=DataSpec(shard_size=256),
        checkpoint=CheckpointSpec(every_s=0.5, share=0.5, keep=1000),
        restart=RestartSpec(budget=100, backoff_s=0.1),
        timeouts=TimeoutSpec(lost_after_s=LOST_AFTER_S),
    )
    start_s = time.monotonic()
    job = launch(spec)
    injector = Injector(job, case.faults)
    try:
        status = follow(job, injector, start_s + TIMEOUT_S)
    finally:
        injector.finish()
    outcome = json.loads(job.outcome.read_text()) if job.outcome.exists() else {"state": "none"}
    where = f"seed {case.seed} ({job.path}; {[str(f) for f in case.faults]})"
    assert outcome["state"] == "finished", f"{where}: ended as {outcome}"
    assert not injector.waiting, f"{where}: never fired: {[str(f) for f in injector.waiting]}"
    deadline_s = time.monotonic() + LINGER_S
    while (left := leftovers(job)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not left, f"{where}: left behind {left}"
    check_counts(job, case, where)
    check_logs(job, where)
    seconds = time.monotonic() - start_s
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(job.path)
    return {
        "seed": case.seed,
        "mode": case.mode,
        "samples": case.samples,
        "workers": case.num_workers,
        "servers": case.num_servers,
        "faults": [str(fault) for fault, _ in injector.fired],
        "epoch_no": status.epoch_no if status else None,
        "seconds": round(seconds, 2),
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


def feed_of_job(job: JobDir) -> Feed:
    """The training feed, from the job's journal."""
    for record in Journal(job.journal).replay():
        if isinstance(record, FeedAdded):
            return record.feed
    raise AssertionError(f"{job.path}: no feed in the journal")


def check_counts(job: JobDir, case: Case, where: str) -> None:
    """Assert the planted counts in every cut that is there."""
    feed = feed_of_job(job)
    cuts = sorted(path.parent for path in job.cuts.glob("*/manifest.json"))
    assert cuts, f"{where}: no cut"
    for directory in cuts:
        try:
            check_cut(directory, feed, case.samples, case.epochs, final=directory == cuts[-1])
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error


def check_logs(job: JobDir, where: str) -> None:
    """Assert that nothing died of an error of its own: recovery would hide it."""
    for path in sorted(job.logs.iterdir()):
        _, found, trace = path.read_text(errors="replace").partition("Traceback (most recent")
        assert not found, f"{where}: an error in {path.name}: {trace[-600:]}"


def main() -> None:
    """Run a range of seeds; resumable, since each seed stands alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:10", help="a:b, b excluded")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    first, last = (int(part) for part in options.seeds.split(":"))
    os.environ.setdefault("PACELINE_HOME", "/tmp/paceline-chaos")
    failed = []
    for seed in range(first, last):
        try:
            print(msgspec.json.encode(run(case_of(seed))).decode(), flush=True)
        except AssertionError as error:
            failed.append(seed)
            print(f"FAILED {error}", flush=True)
            if not options.keep_going:
                sys.exit(1)
    print(f"{last - first - len(failed)} passed, {len(failed)} failed {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
