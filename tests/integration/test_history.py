"""Real jobs that end: the history has them, and one that cannot be used holds nobody up."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.features.history.book import PastJobs
from paceline.features.history.job import PastJob
from paceline.features.history.master import HistoryUnusableEvent
from paceline.features.history.place import history_place
from paceline.jobs.launch import launch
from paceline.jobs.outcome import End
from paceline.policy.job_size import JobSize
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, NodeSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, until

SCRIPT = """
import time, torch, paceline as pl
from torch import nn
from torch.utils.data import TensorDataset
job = pl.init()
model = nn.Sequential(nn.Embedding(100, 2, sparse=True), nn.Flatten(), nn.Linear(2, 1))
optimizers = [
    torch.optim.SparseAdam(model[0].parameters(), lr=0.01),
    torch.optim.SGD(model[2].parameters(), lr=0.01),
]
model, *optimizers = job.prepare(model, *optimizers)
for (ids,) in job.batches(TensorDataset(torch.arange(64)[:, None] % 100), batch_size=8):
    model(ids).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(SLEEP_S)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_HISTORY", raising=False)
    return tmp_path


@contextlib.contextmanager
def job_of(folder: Path, sleep_s: float, **spec: str) -> Iterator[RunningJob]:
    """A job of one worker and one server, eight steps long."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("SLEEP_S", str(sleep_s)))
    started = launch(
        JobSpec(
            script=str(script),
            args=("--data", "x"),
            servers=NodeSpec(count=1, memory_bytes=1 << 33),
            mode="asp",
            preflight=False,
            **spec,
        )
    )
    with contextlib.closing(RunningJob(started, folder)) as job:
        yield job


def kept(job: RunningJob, **spec: str) -> PastJob:
    """The job in its history, once nothing of it is left."""
    until(lambda: not leftovers(job.job), "a clean machine")
    place = history_place(JobSpec(script="t.py", **spec))
    assert place is not None
    return PastJobs(place).find(job.job.job_id)


def test_a_job_that_ends_is_in_the_history(tmp_path: Path) -> None:
    with job_of(tmp_path, 0.0) as job:
        outcome = job.end()
        past = kept(job)
        assert (past.end, past.samples, past.exit_code) == (End.FINISHED, 64, 0)
        assert past.jct_s == outcome.jct_s
        assert past.first == past.final == JobSize(workers=1, servers=1, server_memory=1 << 33)
        features = past.features
        assert features.script == str(tmp_path / "train.py")
        assert (features.strategy, features.mode, features.batch_size) == ("ps", "asp", 8)
        assert (features.arguments, features.num_samples) == ("--data x", 64)
        assert features.dense_bytes == 3 * 4
        assert list((features.table_rows or {}).values()) == [100]
        assert features.table_bytes == 100 * 2 * 4
        assert job.told(HistoryUnusableEvent) == []
        # It stays when the job is removed.
        code = "from paceline.cli.main import app; app()"
        command = [sys.executable, "-c", code]
        subprocess.run([*command, "rm", job.job.job_id], check=True, env=os.environ)
        listed = subprocess.run([*command, "history"], check=True, capture_output=True, text=True)
        assert job.job.job_id in listed.stdout


@pytest.mark.soak
def test_a_job_trains_without_its_history_and_says_so_once(home: Path) -> None:
    (home / "history.sqlite").write_text("this is no database" * 100)
    with job_of(home, 0.5) as job:  # so that the history is read as well
        outcome = job.end()
        assert (outcome.state, outcome.committed) == ("finished", 64)
        until(lambda: not leftovers(job.job), "a clean machine")
        (told,) = job.told(HistoryUnusableEvent)
        assert "history.sqlite cannot be used (file is not a database)" in told.error
        assert told.t < outcome.jct_s + job.job.launched_s()


POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1:]


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A PostgreSQL server of its own, and the URL of an empty database."""
    if not POSTGRES:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    bin_, data = POSTGRES[0], folder / "pg"
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data.mkdir()
    if as_user:
        for path in (data, *folder.parents, folder):
            if path.stat().st_uid == 0 and "pytest-of" in str(path):
                path.chmod(path.stat().st_mode | 0o055)
        subprocess.run(["chown", "postgres", str(data)], check=True)
    options = ["-D", str(data / "db"), "-U", "ada", "--auth=trust", "--no-sync"]
    made = [*as_user, str(bin_ / "initdb"), *options]
    subprocess.run(made, check=True, capture_output=True, cwd="/")
    served = [*as_user, str(bin_ / "pg_ctl"), "-D", str(data / "db"), "-w"]
    started = ["-l", str(data / "log"), "-o", f"-k {data} -c listen_addresses=''", "start"]
    subprocess.run([*served, *started], check=True, capture_output=True, cwd="/")
    try:
        yield f"postgresql+psycopg://ada@/postgres?host={data}"
    finally:
        stop = [*served, "-m", "fast", "stop"]
        subprocess.run(stop, check=True, capture_output=True, cwd="/")


@pytest.mark.soak
def test_a_history_in_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgresql(tmp_path) as url:
        with job_of(tmp_path, 0.0, history=url) as job:
            job.end()
            past = kept(job, history=url)
            assert (past.end, past.samples) == (End.FINISHED, 64)
        # Named by the environment, and stopped by a person.
        monkeypatch.setenv("PACELINE_HISTORY", url)
        with job_of(tmp_path, 1.0) as job:
            job.until_committed(8)
            job.tell(StopJob())
            assert kept(job).end is End.STOPPED
        place = history_place()
        assert place is not None
        assert [one.end for one in PastJobs(place).newest(5)] == [End.STOPPED, End.FINISHED]


@pytest.mark.soak
def test_a_database_that_goes_away_costs_a_job_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with postgresql(tmp_path) as url:
            job = stack.enter_context(job_of(tmp_path, 1.0, history=url))
            job.until_committed(8)
        outcome = job.end()  # the server has left meanwhile
        assert (outcome.state, outcome.committed) == ("finished", 64)
        until(lambda: not leftovers(job.job), "a clean machine")
        (told,) = job.told(HistoryUnusableEvent)
        assert "accepting connections on that socket?)" in told.error
