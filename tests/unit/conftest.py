"""How a job of one process is held; and that no unit test leaves what a job would clear up."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir, run_place


@pytest.fixture(params=["torch", "tables"])
def held_both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch, as a script without sparse tables is, and as one that has some."""
    if request.param == "tables":
        monkeypatch.setattr("paceline.runtime.script.strategy_choice.is_table", lambda _: True)


@pytest.fixture(autouse=True)
def _leaves_no_run_directory() -> Iterator[None]:
    """Fail the test that leaves a run directory, which lies in the machine's memory."""
    made: list[Path] = []
    make = JobDir.make_run_dir

    def note(job: JobDir) -> None:
        make(job)
        made.append(job.run_dir)

    with pytest.MonkeyPatch.context() as patch:  # the test may undo its own
        patch.setattr(JobDir, "make_run_dir", note)
        yield
    left = [folder for folder in made if folder.parent == run_place() and folder.exists()]
    for folder in left:
        shutil.rmtree(folder)
    if left:
        pytest.fail(f"the test has left {', '.join(map(str, left))}; remove its run directory")
