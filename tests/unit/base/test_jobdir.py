"""The run directory lies where every user may write."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.base import jobdir, private_folders
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.private_folders import make_private, usual_name

NOBODY = 65_534
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a folder to another user"
)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(jobdir, "SHARED_MEMORY", folder)
    return folder


@pytest.fixture
def job(shared: Path, tmp_path: Path) -> JobDir:
    assert shared.is_dir()
    return JobDir(tmp_path / "jobs" / "job-1")


def test_a_run_directory_is_closed_to_others_and_may_be_there_already(job: JobDir) -> None:
    before = os.umask(0)
    try:
        job.make_run_dir()
    finally:
        os.umask(before)
    assert job.run_dir.stat().st_mode & 0o777 == 0o700
    job.make_run_dir()


def _link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "not-there")


def _open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _readable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (_link, "a symbolic link"),
        (_dangling, "a symbolic link"),
        (Path.touch, "no folder"),
        (_open_to_all, "mode 0777"),
        (_readable, "mode 0750"),
    ],
)
def test_what_this_user_has_put_in_its_place_is_refused(
    job: JobDir, make: Callable[[Path], None], got: str
) -> None:
    make(job.run_dir)
    with pytest.raises(ConfigError, match=got) as refused:
        job.make_run_dir()
    assert str(job.run_dir) in str(refused.value)
    assert "remove" in str(refused.value)


def _private(path: Path) -> None:
    path.mkdir(mode=0o700)


@as_root
@pytest.mark.parametrize("make", [_link, _dangling, Path.touch, _open_to_all, _readable, _private])
def test_where_something_of_another_user_has_its_name_it_gets_another(
    job: JobDir, make: Callable[[Path], None]
) -> None:
    job.path.mkdir(parents=True)
    usual = job.run_dir
    make(usual)
    os.chown(usual, NOBODY, NOBODY, follow_symlinks=False)
    job.make_run_dir()
    assert job.run_dir.parent == usual.parent
    assert job.run_dir.name.startswith(f"{usual.name}~")
    assert job.run_dir.stat().st_mode & 0o777 == 0o700
    assert usual_name(job.run_dir) == usual.name
    assert JobDir(job.path).run_dir == job.run_dir, "others do not find it"
    before = job.run_dir
    job.make_run_dir()
    assert job.run_dir == before


@as_root
def test_it_has_its_usual_name_again_when_that_is_free(job: JobDir) -> None:
    job.path.mkdir(parents=True)
    usual = job.run_dir
    usual.touch()
    os.chown(usual, NOBODY, NOBODY)
    job.make_run_dir()
    job.run_dir.rmdir()
    job.run_dir.touch()
    os.chown(job.run_dir, NOBODY, NOBODY)
    usual.unlink()
    job.make_run_dir()
    assert job.run_dir == usual
    assert not job.run_note.exists()


@as_root
def test_a_private_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"a folder of user {NOBODY}.*remove {folder}"):
        make_private(folder)


def test_a_place_where_everybody_may_rename_everything_is_refused(
    job: JobDir, shared: Path
) -> None:
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="sticky"):
        job.make_run_dir()
    assert not job.run_dir.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
@pytest.mark.parametrize(
    ("group", "mode", "is_safe"),
    [
        ("root", 0o775, True),
        ("me", 0o775, True),
        ("shared", 0o775, False),
        ("lab", 0o775, False),
        ("lab", 0o755, True),
        ("lab", 0o1775, True),
        ("nameless", 0o775, False),
        ("mine and nameless", 0o775, True),
    ],
)
def test_a_place_where_a_group_of_several_may_rename_everything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, mode: int, is_safe: bool
) -> None:
    gids = {"root": 0, "me": 70_001, "shared": 70_002, "lab": 70_003, "nameless": 70_004}
    gid = gids.get(group, 70_005)
    groups = {70_001: ("me", ["me"]), 70_002: ("me", ["me", "you"]), 70_003: ("lab", [])}

    def find(number: int) -> SimpleNamespace:
        name, members = groups[number]
        return SimpleNamespace(gr_name=name, gr_mem=members)

    monkeypatch.setattr(private_folders.grp, "getgrgid", find)
    monkeypatch.setattr(private_folders.pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(private_folders.os, "getegid", lambda: 70_005)
    os.chown(tmp_path, -1, gid)
    tmp_path.chmod(mode)
    if is_safe:
        private_folders.check_place(tmp_path)
    else:
        with pytest.raises(ConfigError, match=f"every member of group {gid} may rename"):
            private_folders.check_place(tmp_path)


def test_a_folder_of_jobs_is_made_closed_to_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    before = os.umask(0o002)
    try:
        job = JobDir.make("job-1")
    finally:
        os.umask(before)
    assert job.path.parent.stat().st_mode & 0o777 == 0o755
    job.run_dir.rmdir()


def test_the_launch_stays_where_it_was_whatever_happens_to_the_job_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setattr(jobdir.time, "time", lambda: 1000.0)
    job = JobDir.create("job")
    job.run_dir.rmdir()
    assert job.launched_s() == 1000.0
    with job.events.open("a") as events:
        events.write('{"t":1009.5,"event":"supervisor_started","pid":7}\n')
    job.spec.touch()
    assert job.launched_s() == 1000.0
    elsewhere = JobDir.make("job-2", 500.0)
    elsewhere.run_dir.rmdir()
    assert elsewhere.launched_s() == 500.0, "a job that goes on on another machine"


def test_a_job_without_events_counts_from_its_spec(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    job.spec.touch()
    os.utime(job.spec, (1000.0, 1000.0))
    assert job.launched_s() == 1000.0
    job.events.write_text('{"t":1.0,"ev')  # of a writer that was killed
    assert job.launched_s() == 1000.0


def test_a_home_where_everybody_may_rename_everything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod"):
        JobDir.make("job-1")
    assert not list((tmp_path / "jobs").iterdir())
