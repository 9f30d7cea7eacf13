"""What a script does not hand over to the job follows all the same, also where a step breaks."""

from pathlib import Path

import pytest

from tests.integration.pair import alone, check_ends, pair_of

SCRIPT = Path(__file__).with_name("jobs") / "unprepared.py"


@pytest.mark.proves(form=("variables", "loader"), strategy="allreduce", death="worker")
def test_a_schedule_an_early_average_and_a_zip_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(SCRIPT, tmp_path / "alone")
    with pair_of(SCRIPT, tmp_path / "job", "--die", "1:6,0:17", "--step-s", "0.05") as job:
        check_ends(job, expected)
        assert len(job.events("relaunch")) == 2
