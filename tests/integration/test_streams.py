"""Sources of unknown length, end to end: whatever dies, each record is trained on exactly once."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.chaos.oracle import Counts, leftovers
from tests.integration.running import RunningJob, running, until

pytestmark = pytest.mark.soak

SCRIPT = Path(__file__).with_name("jobs") / "streamed.py"
N = 3000
NUM_FILES = 5
REST_AFTER = 55
WRITTEN_BEFORE_REST = (REST_AFTER + 1) * 40


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextmanager
def growing(directory: Path) -> Iterator[threading.Event]:
    """Write N records into files that come and grow one after the other; set: write the rest."""
    directory.mkdir()
    rest, leave = threading.Event(), threading.Event()

    def write() -> None:
        for turn, part in enumerate(np.arange(N).reshape(-1, 40)):
            name = f"part-{turn % NUM_FILES if turn > 40 else turn % 2}.jsonl"
            with (directory / name).open("a") as file:
                file.writelines(json.dumps({"id": one}) + "\n" for one in part.tolist())
            if leave.wait(0.03):
                return
            if turn == REST_AFTER:
                rest.wait()
        (directory / "_END").touch()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield rest
    finally:
        leave.set()
        rest.set()
        writer.join()


def check_finished(job: RunningJob, epochs: int = 1) -> None:
    """Every record is in the final model once an epoch; each cut holds what it says."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert outcome.committed == outcome.total == N * epochs
    until(lambda: not leftovers(job.job), "a clean machine")
    assert job.cuts()
    for cut in job.cuts():
        counts = Counts(cut)
        committed = sum(span.stop - span.start for span in counts.manifest.committed)
        assert np.all(np.abs(counts.counters - committed) < 1e-6)
        assert abs(counts.seen.sum() - committed) < 1e-6
        assert counts.seen.max() < epochs + 1e-6
    assert np.all(np.abs(counts.seen - epochs) < 1e-6)


@pytest.mark.proves(form="batches", strategy="ps asp", death=("worker", "master"), ends="counted")
def test_records_of_tar_files_are_each_trained_on_once_whatever_dies(tmp_path: Path) -> None:
    """Shards as webdataset has them, of different lengths."""
    source = tmp_path / "shards"
    source.mkdir()
    edges = [0, 700, 701, 2000, N]
    for start, stop in itertools.pairwise(edges):
        with tarfile.open(source / f"{start:04}.tar", "w") as file:
            for one in range(start, stop):
                info = tarfile.TarInfo(f"{one}.id")
                info.size = len(str(one))
                file.addfile(info, io.BytesIO(str(one).encode()))
    args = (str(source), "--num-samples", str(N), "--num-loaders", "1")
    with running(tmp_path, script=str(SCRIPT), args=args, mode="asp") as job:
        job.until_committed(N // 4, cuts=1)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        job.kill_master()
        job.until_committed(N // 2, cuts=2)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        check_finished(job)


@pytest.mark.parametrize("victim", ["worker", "server", "master"])
@pytest.mark.proves(form="stream", strategy="ps asp", death="{victim}", ends="counted")
def test_a_stream_written_while_it_is_read_survives_the_death_of(
    tmp_path: Path, victim: str
) -> None:
    source = tmp_path / "stream"
    with (
        growing(source) as rest,
        running(
            tmp_path, script=str(SCRIPT), args=(str(source), "--num-samples", str(N)), mode="asp"
        ) as job,
    ):
        status = job.until_committed(N // 4, cuts=1)
        assert status.total is None
        pid = status.master_pid if victim == "master" else job.pid_of(f"{victim}-1")
        os.kill(pid, signal.SIGKILL)
        rest.set()
        check_finished(job)
        name, least = {
            "worker": ("relaunch", 1),
            "server": ("epoch", 2),
            "master": ("master_started", 2),
        }[victim]
        assert len(job.events(name)) >= least


def test_workers_rest_while_a_stream_has_nothing_and_read_on(tmp_path: Path) -> None:
    source = tmp_path / "stream"
    args = (str(source), "--num-samples", str(N), "--step-s", "0.001", "--num-loaders", "1")
    with (
        growing(source) as rest,
        running(tmp_path, script=str(SCRIPT), args=args, mode="ssp", staleness=2) as job,
    ):
        # What makes no whole batch of 16 is held back until more comes.
        job.until_committed(WRITTEN_BEFORE_REST // 16 * 16)
        workers = [psutil.Process(job.pid_of(f"worker-{rank}")) for rank in (0, 1)]
        before = [worker.cpu_times() for worker in workers]
        start_s = time.monotonic()
        until(lambda: time.monotonic() > start_s + 2.0, "two seconds")
        assert job.status().committed == WRITTEN_BEFORE_REST // 16 * 16
        for worker, (user_s, system_s, *_) in zip(workers, before, strict=True):
            now = worker.cpu_times()
            assert now.user + now.system - user_s - system_s < 0.5, "busy with waiting"
        rest.set()
        check_finished(job)


def test_lines_that_are_still_being_counted_are_read_for_two_epochs(tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"{i}\n" for i in range(N)))
    args = (str(source), "--num-samples", str(N), "--epochs", "2", "--step-s", "0.005")
    with running(tmp_path, script=str(SCRIPT), args=args, mode="asp") as job:
        job.until_committed(N)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        check_finished(job, epochs=2)


@pytest.mark.parametrize("mode", ["asp", "ssp"])
@pytest.mark.proves(
    form=("batches", "iterable"), strategy="ps {mode}", death=("worker", "master"), ends="counted"
)
def test_what_is_only_iterated_is_read_for_two_epochs(mode: str, tmp_path: Path) -> None:
    args = (str(tmp_path / "no"), "--num-samples", str(N), "--epochs", "2", "--step-s", "0.01")
    with running(tmp_path, script=str(SCRIPT), args=args, mode=mode) as job:
        for name, at in (("worker-0", 600), ("worker-1", N - 100), ("worker-0", N + 900)):
            job.until_committed(at)
            os.kill(job.pid_of(name), signal.SIGKILL)
        os.kill(job.status().master_pid, signal.SIGKILL)
        check_finished(job, epochs=2)
        assert len(job.events("relaunch")) >= 3


@pytest.mark.proves(form="iterable", strategy="ps asp", death="all", ends="counted")
def test_what_is_only_iterated_goes_on_after_all_have_died(tmp_path: Path) -> None:
    args = (str(tmp_path / "no"), "--num-samples", str(N), "--step-s", "0.02")
    with running(tmp_path, script=str(SCRIPT), args=args, mode="asp") as job:
        job.until_committed(N // 2, cuts=1)
        job.kill_everything()
        job.resume()
        check_finished(job)


@pytest.mark.parametrize("num_loaders", [0, 2])
@pytest.mark.proves(form="stream", strategy="alone", ends="counted")
def test_the_same_script_alone_reads_the_same_stream(tmp_path: Path, num_loaders: int) -> None:
    source = tmp_path / "stream"
    with growing(source) as rest:
        rest.set()
        subprocess.run(
            [
                *(sys.executable, str(SCRIPT), str(source)),
                *("--num-samples", str(N), "--epochs", "2", "--step-s", "0"),
                *("--num-loaders", str(num_loaders)),
            ],
            check=True,
            timeout=60,
        )
    state = torch.load(source.with_suffix(".pt"))
    assert torch.all(state["seen.weight"] == 2)
    assert torch.all(state["counters"] == 2 * N)
