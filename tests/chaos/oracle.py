"""What must hold of a planted-count job, read from its cuts and from the machine it ran on."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil

from paceline.base.jobdir import JobDir
from paceline.master.journal import Journal
from paceline.protocol.records import FeedAdded
from paceline.protocol.snapshot import Snapshot
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.server.store import Store
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import NUM_BUCKETS

TOLERANCE = 1e-6
"""Counts are float64 sums of a few thousand terms of either sign of rounding."""


class Counts:
    """The planted counts of one cut; ``by_updates``: how often each row was updated."""

    def __init__(self, directory: Path, *, by_updates: bool = False) -> None:
        self.manifest, files = cutfile.read_cut(directory)
        whole = Store(self.manifest.schema, [0] * NUM_BUCKETS, 0)
        whole.load(files.values())
        ids, rows = whole.export(0)
        self.seen = np.zeros(ids.size)
        if by_updates:
            (rows,) = (a for name, a in whole.save().items() if name.endswith(".row_step"))
        self.seen[ids] = rows.reshape(-1)
        self.counters = whole.dense()["float64"]


def feed_of_job(job: JobDir) -> Feed:
    """The training feed, from the job's journal."""
    for record in Journal(job.journal).replay():
        if isinstance(record, FeedAdded):
            return record.feed
        if isinstance(record, Snapshot) and record.feeds:
            return record.feeds[0]
    raise AssertionError(f"{job.path}: no feed in the journal")


def committed_counts(feed: Feed, spans: Iterable, num_samples: int) -> np.ndarray:  # type: ignore[type-arg]
    """How often each sample is in a committed set, by sample."""
    order = EpochOrder(num_samples, feed.shard_size, feed.seed, feed.shuffle)
    counts = np.zeros(num_samples)
    for span in spans:
        for epoch in range(span.start // num_samples, -(-span.stop // num_samples)):
            start = max(span.start, epoch * num_samples) - epoch * num_samples
            stop = min(span.stop, (epoch + 1) * num_samples) - epoch * num_samples
            np.add.at(counts, order.indices(epoch, start, stop), 1)
    return counts


def check_updates(directory: Path, feed: Feed, epochs: int, *, final: bool) -> None:
    """Assert of a job whose updates differ in weight that each row was updated with its sample.

    The dense counters count steps in bsp; in the other modes they are scaled, equally on all servers.
    """
    counts = Counts(directory, by_updates=True)
    num_samples, steps = counts.seen.size, counts.manifest.step
    said = committed_counts(feed, counts.manifest.committed, num_samples)
    wrong = np.flatnonzero(counts.seen != said)
    assert wrong.size == 0, (
        f"{directory.name}: rows {wrong[:5]} were updated {counts.seen[wrong[:5]]} times, "
        f"ledger says {said[wrong[:5]]}"
    )
    assert not final or np.all(said == epochs), f"{directory.name}: the ledger lacks samples"
    wanted = steps * feed.batch_size or counts.counters[0]
    assert np.all(np.abs(counts.counters - wanted) < TOLERANCE), (
        f"{directory.name}: dense counters {np.unique(counts.counters)} after {steps} steps"
    )


def check_cut(directory: Path, feed: Feed, samples: str, epochs: int, *, final: bool) -> None:
    """Assert that the model of a cut holds what its committed set says and ``samples`` allows."""
    counts = Counts(directory)
    num_samples = counts.seen.size
    whole = num_samples * epochs
    where = f"{directory.name}"
    if samples != "at-most-once":
        said = committed_counts(feed, counts.manifest.committed, num_samples)
        # At least once: only what lacks is wrong.
        fault = np.negative if samples == "at-least-once" else np.abs
        wrong = np.flatnonzero(fault(counts.seen - said) > TOLERANCE)
        assert wrong.size == 0, (
            f"{where}: rows {wrong[:5]} hold {counts.seen[wrong[:5]]}, ledger says {said[wrong[:5]]}"
        )
        assert np.all(fault(counts.counters - said.sum()) < TOLERANCE), (
            f"{where}: dense counters {np.unique(counts.counters)}, ledger says {said.sum()}"
        )
    if final and samples != "at-most-once":
        low, least = counts.seen.min(), counts.counters.min()
        assert low > epochs - TOLERANCE, f"{where}: a sample was applied {low} times"
        assert least > whole - TOLERANCE, f"{where}: a dense counter is {least}, not {whole}"
    if samples != "at-least-once":
        high, most = counts.seen.max(), counts.counters.max()
        assert high < epochs + TOLERANCE, f"{where}: a sample was applied {high} times"
        assert most < whole + TOLERANCE, f"{where}: a dense counter is {most}, not {whole}"


def leftovers(job: JobDir) -> list[str]:
    """What a job must not leave behind: processes, run directory, cgroups."""
    found = []
    marker = str(job.path)
    for process in psutil.process_iter(["pid", "cmdline"]):
        try:
            words = " ".join(process.info["cmdline"] or [])
            in_job = marker in words or process.environ().get("PACELINE_JOB_DIR") == marker
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if in_job:
            found.append(f"process {process.info['pid']}: {words}")
    if job.run_dir.exists():
        found.append(f"run directory {job.run_dir}")
    for root in Path("/sys/fs/cgroup").glob("*/paceline/*"):
        if root.name == job.job_id:
            found.append(f"cgroup {root}")
    return found
