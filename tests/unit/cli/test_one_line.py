"""Mistakes and silence that once ended in a traceback, or were waited for one after the other."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.cli.resume_sizes import read_sizes
from paceline.cuts.manifest import MANIFEST, CutManifest, read_manifest, write_manifest
from paceline.jobs import listing
from paceline.jobs.listing import JobSelection, listed
from paceline.jobs.resize import Resize
from paceline.master.journal import Journal
from paceline.protocol.records import FeedAdded
from paceline.wire import spec as specs
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

NUM_SILENT = 5


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def paceline(*args: str) -> Result:
    return CliRunner().invoke(app, args)


@pytest.mark.parametrize("target", [".", "/", ".."])
def test_a_folder_is_no_script(target: str, tmp_path: Path) -> None:
    said = paceline("run", target, "--workers", "2")
    assert said.exit_code == 2
    assert said.stderr.startswith(f"paceline: {target}: got a folder, expected a script")
    assert said.stderr.count("\n") == 1


def test_a_manifest_with_any_byte_damaged_is_one_line(tmp_path: Path) -> None:
    manifest = CutManifest(
        cut_no=3,
        epoch_no=1,
        position=1,
        step=1,
        committed=(),
        schema=ModelSchema(),
        files={"a": "b"},
        num_bytes=0,
    )
    folder = tmp_path / "cuts" / "000003"
    write_manifest(folder, manifest)
    image = (folder / MANIFEST).read_bytes()
    for at in range(len(image)):
        (folder / MANIFEST).write_bytes(image[:at] + b"\x97" + image[at + 1 :])
        with pytest.raises(PermanentError):
            read_manifest(folder)
    said = paceline("checkpoint", "show", str(folder))
    assert said.exit_code == 2
    assert said.stderr.startswith(f"paceline: cut 3: {folder / MANIFEST}: ")
    assert said.stderr.count("\n") == 1


@pytest.fixture
def silent() -> Iterator[list[JobDir]]:
    """Jobs at whose master's sockets somebody of this user listens, and says nothing."""
    with ExitStack() as stack:
        jobs = []
        for number in range(NUM_SILENT):
            job = JobDir.create(f"silent{number}")
            specs.save(JobSpec(script="/train.py"), job.spec)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(job.master_socket))
            job.master_socket.chmod(0o600)
            listener.listen()
            jobs.append(job)
        yield jobs
    for job in jobs:
        job.master_socket.unlink()
        job.run_dir.rmdir()


def test_masters_that_say_nothing_are_waited_for_together(
    silent: list[JobDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ASK_S", 1.0)
    began_s = time.monotonic()
    rows = listed(JobSelection())
    assert time.monotonic() - began_s < 3.0
    assert [row.job_id for row in rows] == [job.job_id for job in reversed(silent)]
    assert {row.state for row in rows} == {"interrupted"}


@pytest.mark.parametrize(("workers", "per_worker"), [(3, False), (4, False), (3, True)])
def test_workers_that_cannot_share_the_batch_are_refused_before_the_job_is_resumed(
    home: Path, workers: int, per_worker: bool
) -> None:
    job = JobDir(home / "jobs" / "job-1")
    job.path.mkdir(parents=True)
    spec = JobSpec(script="/train.py", strategy="fsdp")
    assert read_sizes(spec, {"workers": "3"}, job) == Resize(workers=3), "nothing is known"
    journal = Journal(job.journal)
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=96,
        epochs=1,
        batch_size=16,
        per_worker=per_worker,
        shard_size=16,
        shuffle=False,
        seed=0,
    )
    journal.append([FeedAdded(feed=feed)])
    journal.close()
    flags = {"workers": str(workers)}
    if workers == 3 and not per_worker:
        with pytest.raises(ConfigError, match=r"--workers: got 3, .* batch of 16 .*1, 2, 4, 8, 16"):
            read_sizes(spec, flags, job)
    else:
        assert read_sizes(spec, flags, job) == Resize(workers=workers)
    other = JobSpec(script="/train.py", strategy="allreduce")
    assert read_sizes(other, flags, job) == Resize(workers=workers)
