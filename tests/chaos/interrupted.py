"""Cuts interrupted at any byte: ``python -m tests.chaos.interrupted --kills 100``.

One job makes cuts without a pause while its processes are killed, as often as asked for: half of the
kills fall at a random moment, half when the file of a cut on disk has grown to a random part of its
size. Whoever was writing dies, or its agent, or who keeps the second copy, or all who hold the model,
or all of them with their agents. After each kill the job must go on, and whatever calls itself a cut must hold what it says: each
sample's count, and an array that is large enough to be torn, all of whose numbers are equal in a whole
state. The script itself looks at that array in every batch. With strategy fsdp each member has a
file of each cut, and the array goes through all of them; there the script looks at nothing.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from paceline.base.errors import PacelineError, PermanentError
from paceline.jobs.history import read_events
from paceline.jobs.launch import ask, launch
from paceline.runtime.checkpoint.assembly import model_of
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.wire.client import GetStatus, JobStatus, NodeStatus, StopJob
from paceline.wire.events.state import EpochEvent
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec, TimeoutSpec
from tests.chaos.faults import LOST_AFTER_S
from tests.chaos.grouped import SCRIPT as GROUPED
from tests.chaos.oracle import TOLERANCE, check_cut, committed_counts, feed_of_job, leftovers
from tests.chaos.run import LINGER_S, check_logs, end, kill_quietly
from tests.chaos.run import SCRIPT as PLANTED

SCRIPTS = {"allreduce": GROUPED, "fsdp": GROUPED.with_name("sharded.py")}
"""Where workers hold the model."""
NUM_SAMPLES, BATCH_SIZE, FOR_EVER = 4096, 64, 100_000
GO_ON_S = 30.0
"""In which a job must be at work again."""
WATCH_S = 3.0
"""A cut is made in less."""
VICTIMS = (
    *("writer", "writer's agent", "writer and agent", "replica and agent"),
    *("holders", "holders and agents"),
)
"""Of nodes; the replica's is the one in whose memory the second copy is."""


def spec_of(strategy: str, out: Path, ballast: int) -> JobSpec:
    """A job that never ends by itself and makes cuts as fast as it can."""
    common = (
        *("--num-samples", str(NUM_SAMPLES), "--batch-size", str(BATCH_SIZE)),
        *("--epochs", str(FOR_EVER), "--step-s", "0.01"),
    )
    grouped = strategy in SCRIPTS
    return JobSpec(
        script=str(SCRIPTS.get(strategy, PLANTED)),
        args=(
            *common,
            *(["--out", str(out), "--ballast", str(ballast)] if grouped else []),
            *([] if grouped else ["--synchronous", "--counters", str(ballast)]),
        ),
        name=f"interrupted-{strategy}",
        strategy=strategy,  # type: ignore[arg-type]
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=1 if grouped else 2),
        solution="none",
        preflight=False,
        checkpoint=CheckpointSpec(every_s=0.05, share=1.0, keep=2),
        restart=RestartSpec(budget=100_000, backoff_s=0.1, backoff_max_s=0.1),
        timeouts=TimeoutSpec(lost_after_s=LOST_AFTER_S),
    )


class Interrupted:
    """The job, and what was done to it."""

    def __init__(self, strategy: str, seed: int, ballast: int) -> None:
        self.out = Path(tempfile.mkdtemp(prefix="paceline-interrupted-"))
        self.rng = random.Random(f"interrupted {seed}")
        self.grouped, self.sharded = strategy in SCRIPTS, strategy == "fsdp"
        self.role = "worker" if self.grouped else "server"
        self.job = launch(spec_of(strategy, self.out, ballast))
        self.num_checked = 0
        self.epoch_no = 0
        self._feed: Feed | None = None

    def status(self) -> JobStatus | None:
        """The master's; None: it does not answer now."""
        try:
            reply = ask(self.job, GetStatus(), timeout_s=1.0)
        except (PacelineError, OSError):
            return None
        return reply if isinstance(reply, JobStatus) else None

    def wait(self, done: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """Poll until then; what else becomes of the job is a failure."""
        deadline_s = time.monotonic() + GO_ON_S
        while time.monotonic() < deadline_s:
            status = self.status()
            assert not self.job.outcome.exists(), f"it ended: {self.job.outcome.read_text()}"
            if status is not None and done(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"{self.job.path}: no {what} in {GO_ON_S:.0f} s: {self.status()}")

    def holders(self, status: JobStatus) -> list[NodeStatus]:
        """Who holds the model."""
        return [node for node in status.nodes if node.role == self.role and node.pid]

    def works(self, status: JobStatus) -> bool:
        """Whether all are there, and cuts are made of what they do."""
        running = [node for node in status.nodes if node.state == "running" and node.pid]
        return len(running) == len(status.nodes) and bool(self.sealed())

    def sealed(self) -> list[Path]:
        """Folders on disk that say they hold a cut of trained samples, oldest first."""
        found = sorted(path.parent for path in self._glob("*/manifest.json"))
        return [path for path in found if int(path.name)]

    def _glob(self, pattern: str) -> list[Path]:
        """Of the cuts' folders; one may be removed meanwhile."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return list(self.job.cuts.glob(pattern))

    # ------------------------------------------------------------------ one kill

    def strike(self) -> str:
        """Kill somebody while a cut is made; what was done."""
        status = self.wait(self.works, "work of all")
        before, seen = status.committed, self.sealed()[-1].name
        self.wait(lambda now: any(cut.name > seen for cut in self.sealed()), "new cut")
        self.epoch_no = status.epoch_no
        on_disk = self.rng.random() < 0.5
        writer = self._await_bytes(self.rng.random()) if on_disk else ""
        if not on_disk:
            time.sleep(self.rng.uniform(0.0, 0.4))
        victims = self.rng.choice(VICTIMS)
        for pid in self._pids(status, victims, writer):
            kill_quietly(pid)
        when = f"while {writer} wrote" if writer else "at any time"
        self.wait(lambda now: self.works(now) and self._has_moved(now, before), "progress")
        self.check()
        return f"{victims} {when}"

    def _has_moved(self, status: JobStatus, before: int) -> bool:
        return status.epoch_no > self.epoch_no or status.committed > before

    def _await_bytes(self, part: float) -> str:
        """Return when a file of a cut has grown to this part of its size; whose it is."""
        deadline_s = time.monotonic() + WATCH_S
        size = 0
        while not size:
            with contextlib.suppress(FileNotFoundError, IndexError):  # removed, as older ones are
                found = self.sealed()[-1].glob("*.safetensors")
                size = max((path.stat().st_size for path in found), default=0)
        while time.monotonic() < deadline_s:
            with contextlib.suppress(FileNotFoundError):  # complete by now
                for path in self._glob("*/.*.safetensors.partial"):
                    if path.stat().st_size >= part * size:
                        return path.name[1:].rpartition("-")[0]
        return ""

    def _pids(self, status: JobStatus, victims: str, writer: str) -> list[int]:
        chosen = holders = self.holders(status)
        if not victims.startswith("holders"):
            names = {writer} if victims.startswith("writer") else self._keepers()
            chosen = [node for node in holders if node.node in names] or [self.rng.choice(holders)]
        pids = [] if victims == "writer's agent" else [node.pid for node in chosen]
        return pids + [node.agent_pid for node in chosen if "agent" in victims]

    def _keepers(self) -> set[str]:
        """Nodes in whose memory the copies of others are."""
        copies = list(self.job.memory.glob("*/*/*.safetensors"))
        return {one.parent.name for one in copies if not one.name.startswith(one.parent.name)}

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """Assert that every cut on disk holds what it says."""
        self._feed = self._feed or feed_of_job(self.job)
        for directory in self.sealed():
            try:
                check_group(directory, self._feed) if self.grouped else check_cut(
                    directory, self._feed, "exactly-once", FOR_EVER, final=False
                )
            except (PermanentError, FileNotFoundError):
                # The oldest is removed at any moment, its manifest with the rest.
                assert not (directory / "manifest.json").exists(), f"{directory} is no cut"
            else:
                self.num_checked += 1

    def finish(self) -> None:
        """End it in order; it must leave nothing behind but whole cuts."""
        ask(self.job, StopJob(), timeout_s=5.0)
        deadline_s = time.monotonic() + GO_ON_S
        while not self.job.outcome.exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert self.job.outcome.exists(), f"{self.job.path}: it does not stop"
        deadline_s = time.monotonic() + LINGER_S
        while (left := leftovers(self.job)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not left, f"left behind {left}"
        self.check()
        # Shards cannot do without a lost peer: the others end by gloo's error, and all begin again.
        check_logs(self.job, str(self.job.path), *["gloo"] * self.sharded)

    def close(self) -> None:
        """Leave the machine as it was."""
        if leftovers(self.job):
            end(self.job)
        shutil.rmtree(self.out)

    def restored(self) -> int:
        """How often the job went back to a cut."""
        return sum(isinstance(event, EpochEvent) for event in read_events(self.job.events))


def check_group(directory: Path, feed: Feed) -> None:
    """Assert that the cut of a group holds the samples that it says, in one piece."""
    manifest, files = read_cut(directory)
    held = model_of(manifest.schema, files)
    said = committed_counts(feed, manifest.committed, NUM_SAMPLES)
    wrong = np.flatnonzero(np.abs(held["seen"].array - said) > TOLERANCE)
    assert not wrong.size, f"{directory}: samples {wrong[:5]} count otherwise than it says"
    ballast = held["ballast"].array
    assert np.all(ballast == manifest.step), (
        f"{directory}: torn: {np.unique(ballast)[:5]} at step {manifest.step}"
    )


def run(strategy: str, kills: int, seed: int, ballast: int) -> dict[str, object]:
    """Strike so often; the facts of it."""
    start_s = time.monotonic()
    hunted = Interrupted(strategy, seed, ballast)
    done: Counter[str] = Counter()
    try:
        for number in range(1, kills + 1):
            done[hunted.strike().replace("-0", "").replace("-1", "")] += 1
            if number % 25 == 0:
                print(f"{strategy}: {number} kills, {hunted.num_checked} cuts checked", flush=True)
        restored = hunted.restored()
        hunted.finish()
    finally:
        hunted.close()
    if not os.environ.get("CHAOS_KEEP"):
        shutil.rmtree(hunted.job.path)
    return {
        "strategy": strategy,
        "kills": dict(sorted(done.items())),
        "restored": restored,
        "cuts_checked": hunted.num_checked,
        "seconds": round(time.monotonic() - start_s, 1),
    }


def main() -> None:
    """All strategies, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100, help="of each strategy")
    parser.add_argument("--strategies", nargs="+", default=["allreduce", "ps", "fsdp"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ballast", type=int, default=4 << 20, help="numbers of 8 bytes")
    options = parser.parse_args()
    os.environ.setdefault("PACELINE_HOME", "/tmp/paceline-chaos")
    for strategy in options.strategies:
        try:
            print(run(strategy, options.kills, options.seed, options.ballast), flush=True)
        except AssertionError as error:
            sys.exit(f"FAILED {strategy}: {error}")


if __name__ == "__main__":
    main()
