"""A killed worker's next life trains with what the script has set of its model between loops."""

from pathlib import Path

import pytest

from tests.integration.pair import alone, check_ends, pair_of

SCRIPT = Path(__file__).with_name("jobs") / "set_between.py"


@pytest.mark.parametrize(
    ("at", "flags"),
    [
        pytest.param(20, ("--ranges",), id="mid-epoch"),
        pytest.param(15, (), id="the end of an epoch", marks=pytest.mark.soak),
        pytest.param(7, ("--ranges",), id="the end of the first", marks=pytest.mark.soak),
        pytest.param(26, (), id="the last epoch", marks=pytest.mark.soak),
    ],
)
@pytest.mark.proves(form="thawed", strategy="allreduce", death="worker")
def test_a_late_life_has_what_was_set_between_loops(
    at: int, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(SCRIPT, tmp_path / "alone")
    with pair_of(SCRIPT, tmp_path / "job", "--die", f"1:{at}", "--step-s", "0.1", *flags) as job:
        check_ends(job, expected)
        assert job.events("relaunch")
