"""What only the first worker does behind a loop is done, also if it dies shortly before."""

from pathlib import Path

import pytest

from tests.integration.pair import pair_of, run_alone

SCRIPT = Path(__file__).with_name("jobs") / "chiefs_log.py"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def lines(out: Path) -> list[str]:
    return (out / "log").read_text().splitlines()


def in_job(out: Path, *flags: str) -> list[str]:
    """The lines that a job writes whose worker dies once."""
    with pair_of(SCRIPT, out, *flags) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert len(job.deaths()) == 1
    return lines(out)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("place", "flags"),
    [
        ("behind1", ("--evaluates",)),
        ("loop1", ()),
        ("loop1", ("--breaks",)),
        ("loop1", ("--numbered", "--evaluates")),
        ("behind1", ("--breaks",)),
        ("loop3", ()),
        ("behind3", ("--numbered",)),
    ],
)
@pytest.mark.proves(form="chief", strategy="allreduce", death="worker")
def test_each_line_is_written_once(place: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    run_alone(SCRIPT, tmp_path / "alone", *flags)
    expected = lines(tmp_path / "alone")
    assert in_job(tmp_path / "job", "--die", f"0:{place}", *flags) == expected


@pytest.mark.soak
def test_what_was_in_hand_at_its_death_is_done_again(tmp_path: Path) -> None:
    run_alone(SCRIPT, tmp_path / "alone")
    expected = lines(tmp_path / "alone")
    assert in_job(tmp_path / "job", "--die", "0:written1") == sorted([*expected, expected[1]])
