"""The folder that was sent with a job: the job goes on from its own copy."""

import shutil
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.sent import FOLDER_WAS_SENT, from_kept, keep_sent
from paceline.wire.spec import JobSpec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that was sent, and is this command's."""
    folder = tmp_path / "package"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "inner" / "train.py").write_text("import lib")
    monkeypatch.setenv(FOLDER_WAS_SENT, "1")
    monkeypatch.chdir(folder)
    return folder


def test_a_job_goes_on_from_its_copy_of_what_was_sent(tmp_path: Path, folder: Path) -> None:
    job = JobDir(tmp_path / "train-1")
    keep_sent(job)
    spec = JobSpec(script=str(folder / "inner" / "train.py"), cwd=str(folder))
    shutil.rmtree(folder)
    found = from_kept(job, spec)
    assert Path(found.script).read_text() == "import lib"
    assert found.cwd is not None and Path(found.cwd).is_dir()
    assert all(path.startswith(str(job.path)) for path in (found.script, found.cwd))
    assert not list(job.sent.rglob("__pycache__"))
    assert from_kept(job, found) == found, "also the next time"


def test_what_was_not_sent_stays_where_it_is(tmp_path: Path, folder: Path) -> None:
    job = JobDir(tmp_path / "train-1")
    keep_sent(job)
    spec = JobSpec(script="/opt/train.py", cwd=str(folder.parent))
    assert from_kept(job, spec) == spec


def test_without_a_folder_nothing_is_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_WAS_SENT)
    job = JobDir(tmp_path / "train-1")
    keep_sent(job)
    assert not job.sent.exists()
    spec = JobSpec(script=str(folder / "inner" / "train.py"))
    assert from_kept(job, spec) == spec
