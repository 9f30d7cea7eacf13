"""A power cut takes the newest records of the journal, and no cut: the newest whole one counts."""

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.base.numbering import NO_CUT
from paceline.cuts.manifest import MANIFEST
from paceline.wire.events.job import JournalShortEvent
from paceline.wire.events.state import CutValidEvent, EpochEvent
from paceline.wire.spec import CheckpointSpec
from tests.integration import test_allreduce, test_fsdp
from tests.integration.running import RunningJob, running, until

CUTS = CheckpointSpec(every_s=0.3, share=1.0, keep=3)
STEP = ("--step-s", "0.05", "--num-samples", "3072")


def on_servers(mode: str, out: Path) -> contextlib.AbstractContextManager[RunningJob]:
    return running(out, *STEP, mode=mode, checkpoint=CUTS)


def with_allreduce(out: Path) -> contextlib.AbstractContextManager[RunningJob]:
    flags = (*STEP, "--epochs", "3")
    return test_allreduce.group(out / "out", *flags, checkpoint=CUTS)


def with_shards(out: Path) -> contextlib.AbstractContextManager[RunningJob]:
    return test_fsdp.sharded(out / "out", "--step-s", "0.1", checkpoint=CUTS)


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[RunningJob], object]]] = {
    "bsp": (lambda out: on_servers("bsp", out), RunningJob.check_finished),
    "asp": (lambda out: on_servers("asp", out), RunningJob.check_finished),
    "allreduce": (with_allreduce, partial(test_allreduce.check_finished, epochs=3)),
    "fsdp": (with_shards, test_fsdp.check_finished),
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def stored(job: RunningJob) -> int:
    """The number of the newest cut on disk."""
    return max((int(cut.name) for cut in job.cuts()), default=NO_CUT)


def journal_files(job: RunningJob) -> list[Path]:
    return sorted(job.job.path.glob("journal.sqlite*"))


class Disk:
    """What a disk has of the journal when power fails."""

    def __init__(self, job: RunningJob, folder: Path) -> None:
        self._job, self._folder = job, folder

    def sync(self) -> None:
        """All that is written up to now will be there."""
        self._folder.mkdir()
        for path in journal_files(self._job):
            shutil.copy(path, self._folder)

    def fail(self) -> None:
        """Power fails: all die, memory is gone, and the journal is as it was when it was synced."""
        self._job.kill_everything()
        shutil.rmtree(self._job.job.run_dir)
        for path in journal_files(self._job):
            path.unlink()
        if self._folder.exists():
            for path in self._folder.iterdir():
                shutil.copy(path, self._job.job.path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "is_synced"),
    [
        ("bsp", True),
        ("allreduce", True),
        ("allreduce", False),
        ("fsdp", True),
        ("asp", True),
        ("asp", False),
        ("bsp", False),
        ("fsdp", False),
    ],
)
def test_a_job_goes_on_from_the_newest_cut_whatever_its_journal_knows(
    tmp_path: Path, kind: str, is_synced: bool
) -> None:
    start, check = KINDS[kind]
    with start(tmp_path) as job:
        disk = Disk(job, tmp_path / "synced")
        knew = -1
        if is_synced:
            until(lambda: stored(job) >= 1, "a first cut")
            knew = max(job.status().valid_cuts)
            disk.sync()
        until(lambda: stored(job) > knew + 3, "cuts of which the journal does not know")
        disk.fail()
        assert not job.job.outcome.exists(), "the job was over before"
        newest, before = stored(job), len(job.told(EpochEvent))
        made = (job.job.cuts / f"{newest:06d}" / MANIFEST).read_bytes()
        num_valid = len(job.told(CutValidEvent))
        job.resume()
        until(lambda: len(job.told(EpochEvent)) > before, "the cut that is loaded")
        check(job)
        assert job.told(EpochEvent)[before].cut_no == newest
        (said,) = job.told(JournalShortEvent)
        assert said.cut_no == newest
        assert said.knew in range(knew, newest) if is_synced else said.knew == -1
        assert said.path == str(job.job.journal)
        assert all(one.cut_no > newest for one in job.told(CutValidEvent)[num_valid:])
        kept = job.job.cuts / f"{newest:06d}" / MANIFEST
        assert not kept.exists() or kept.read_bytes() == made, "a whole cut was overwritten"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["bsp", "allreduce", "fsdp"])
def test_a_second_power_cut_at_once_costs_nothing_more(tmp_path: Path, kind: str) -> None:
    start, check = KINDS[kind]
    with start(tmp_path) as job:
        until(lambda: stored(job) >= 2, "cuts")
        for name in ("first", "second"):
            before = len(job.told(EpochEvent))
            disk = Disk(job, tmp_path / name)
            disk.fail()
            newest = stored(job)
            job.resume()
            until(lambda n=before: len(job.told(EpochEvent)) > n, "the cut that is loaded")
            assert job.told(EpochEvent)[before].cut_no == newest
        check(job)


@pytest.mark.soak
def test_half_a_cut_that_is_newer_is_none(tmp_path: Path) -> None:
    with on_servers("bsp", tmp_path) as job:
        until(lambda: stored(job) >= 2, "cuts")
        Disk(job, tmp_path / "none").fail()
        newest, before = stored(job), len(job.told(EpochEvent))
        whole = job.job.cuts / f"{newest:06d}"
        half, torn = (job.job.cuts / f"{newest + n:06d}" for n in (1, 2))
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(whole, half, ignore=shutil.ignore_patterns(MANIFEST))
        shutil.copytree(whole, torn)
        (torn / MANIFEST).write_bytes((whole / MANIFEST).read_bytes()[:-40])
        job.resume()
        until(lambda: len(job.told(EpochEvent)) > before, "the cut that is loaded")
        job.check_finished()
        assert job.told(EpochEvent)[before].cut_no == newest


@pytest.mark.soak
def test_a_journal_that_is_gone_in_mid_job_ends_the_job_with_the_remedy(tmp_path: Path) -> None:
    with on_servers("bsp", tmp_path) as job:
        until(lambda: stored(job) >= 2, "cuts")
        for path in journal_files(job):
            path.unlink()
        job.kill_master()
        outcome = job.end()
        assert outcome.state == "failed"
        assert f"{job.job.journal}: got no record" in outcome.error
        assert "go on exactly from the newest cut" in outcome.error
        newest = stored(job)
        job.resume()
        job.check_finished()
        assert job.told(JournalShortEvent)[0].cut_no == newest
