"""Cuts at a URL: a job whose machine is lost goes on from there on another one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.cuts.lease import LEASE
from paceline.wire.spec import CheckpointSpec, load
from tests.integration.running import RunningJob, running, until
from tests.integration.test_allreduce import N, check_finished, group, trains
from tests.integration.test_cli import PACELINE

FEW = ("--num-samples", "1024")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def often(url: str) -> CheckpointSpec:
    return CheckpointSpec(every_s=0.3, share=1.0, dir=url)


def until_copied(job: RunningJob, num_cuts: int) -> None:
    """Wait for cuts beside the first to be at the URL."""
    until(lambda: len(job.events("cut_uploaded")) > num_cuts, "cuts at the URL")


def lose_machine(job: RunningJob, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Everything of it, and be on another one."""
    job.kill_everything()
    shutil.rmtree(job.job.path)
    shutil.rmtree(job.job.run_dir)
    monkeypatch.setenv("PACELINE_HOME", str(home))


def resumed(url: str, out: Path, *flags: str, told: str = "fetched cut") -> RunningJob:
    """By the command line, which says this."""
    done = CliRunner().invoke(app, ["run", url, "--resume", "--detach", *flags])
    assert done.exit_code == 0, done.output
    assert told in done.output
    return RunningJob(JobDir.find(None), out)


@pytest.mark.soak
def test_a_job_whose_machine_is_lost_goes_on_from_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    flags = ("--epochs", "2", "--slow-until-told")
    with group(tmp_path / "out", *flags, checkpoint=often(url)) as job:
        until_copied(job, 2)
        launched_s = job.job.launched_s()
        lose_machine(job, monkeypatch, tmp_path / "other")
        again = resumed(url, job.out, "--workers", "3")
        try:
            assert again.job.job_id == job.job.job_id
            assert again.job.launched_s() == launched_s, "its time counts on"
            assert load(again.job.spec).cwd == os.getcwd()
            all_three = "worker-0, worker-1, worker-2 train"
            until(lambda: any(all_three in told for told in trains(again)), all_three)
            (job.out / "hurry").touch()
            check_finished(again, epochs=2, lives=3)
            done = sum(len(ids) for ids in again.samples().values())
            assert done < 4 * N, "it began where the cut was"
            newest = max(event["cut_no"] for event in again.events("cut_stored"))
            listed = CliRunner().invoke(app, ["checkpoint", "ls", url])
            assert listed.stdout.splitlines()[1].split()[0] == str(newest), listed.output
            for command in (["show", url], ["verify", url, "--all"]):
                shown = CliRunner().invoke(app, ["checkpoint", *command])
                assert shown.exit_code == 0, shown.output
            exported = CliRunner().invoke(app, ["checkpoint", "export", url, f"{tmp_path}/m.pt"])
            assert exported.exit_code == 0, exported.output
        finally:
            again.close()


@pytest.mark.soak
@pytest.mark.parametrize("homes", [("one", "one"), ("one", "two")], ids=["one home", "two"])
def test_of_two_commands_that_resume_a_job_from_its_url_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, homes: tuple[str, str]
) -> None:
    flags = ("--epochs", "2", "--slow-until-told")
    with group(tmp_path / "out", *flags, checkpoint=often(url)) as job:
        until_copied(job, 1)
        lose_machine(job, monkeypatch, tmp_path / "one")
        both = [
            subprocess.Popen(
                [*PACELINE, "run", url, "--resume", "--detach"],
                env={**os.environ, "PACELINE_HOME": str(tmp_path / home)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for home in homes
        ]
        said = [command.communicate(timeout=100.0) for command in both]
        codes = [command.returncode for command in both]
        assert sorted(codes) == [0, 2], said
        refused = said[codes.index(2)][1]
        assert refused.count("\n") == 1
        assert "another command resumes this job now" in refused or "runs on" in refused
        monkeypatch.setenv("PACELINE_HOME", str(tmp_path / homes[codes.index(0)]))
        again = RunningJob(JobDir.find(None), job.out)
        try:
            (job.out / "hurry").touch()
            check_finished(again, epochs=2)
            assert not (tmp_path / "store" / LEASE).exists(), "the next run would have to wait"
            assert not list((tmp_path / homes[0] / "fetched").glob("*/*"))
        finally:
            again.close()


@pytest.mark.soak
def test_servers_go_on_from_the_url_and_from_the_cut_before_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    (tmp_path / "out").mkdir()
    with running(tmp_path / "out", checkpoint=often(url), env={"A_SECRET": "x7"}) as job:
        until_copied(job, 1)
        lose_machine(job, monkeypatch, tmp_path / "other")
        newest, *_ = sorted((tmp_path / "store").glob("0*"), reverse=True)
        for file in newest.glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
        assert any((tmp_path / "store").rglob("handover.json"))
        assert not any(b"x7" in p.read_bytes() for p in (tmp_path / "store").rglob("handover.json"))
        refused = CliRunner().invoke(app, ["run", url, "--resume"])
        assert refused.exit_code == 2
        monkeypatch.setenv("A_SECRET", "x7")
        again = resumed(url, job.out, told=f"cut {int(newest.name)} cannot be used")
        try:
            again.check_finished()
        finally:
            again.close()


def test_a_url_with_cuts_of_another_job_is_refused(tmp_path: Path, url: str) -> None:
    with group(tmp_path / "out", *FEW, checkpoint=often(url)) as job:
        check_finished(job)
        # The last one is there before the job's end is told.
        assert int(job.cuts()[-1].name) == max(
            int(path.parent.name) for path in (tmp_path / "store").glob("*/manifest.json")
        )
        again = ["run", str(Path(__file__).with_name("jobs") / "grouped.py")]
        refused = CliRunner().invoke(app, [*again, "--set", f"checkpoint.dir={url}"])
        assert refused.exit_code == 2
        here = CliRunner().invoke(app, ["run", url, "--resume"])
        assert here.exit_code == 2


@pytest.mark.soak
def test_a_job_ends_though_its_storage_is_away(tmp_path: Path, url: str) -> None:
    store = tmp_path / "store"
    with group(tmp_path / "out", checkpoint=often(url)) as job:
        until_copied(job, 0)
        shutil.rmtree(store)
        store.touch()  # a file, in which there can be no folders
        until(lambda: job.events("upload_failed"), "a cut that is not copied")
        (told,) = job.events("upload_failed")
        assert url in told["reason"]
        store.unlink()
        check_finished(job)
        assert int(job.cuts()[-1].name) == max(int(p.name) for p in store.glob("0*"))
