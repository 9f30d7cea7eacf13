"""Models that a script trains one after the other end as in one process, whatever dies when."""

from pathlib import Path

import pytest

from tests.integration.pair import alone, check_ends, ends, pair_of

SCRIPT = Path(__file__).with_name("jobs") / "folds.py"
SAMPLES = 2 * 171
"""Of a fold, by and large."""
SOAK = pytest.mark.soak


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def expected_of(out: Path, *flags: str) -> list[float]:
    values = alone(SCRIPT, out, *flags)
    assert len(values) == 3 * 6
    return values


@pytest.mark.soak
@pytest.mark.parametrize(
    "flags", [("--leave",), (), ("--init",), ("--init", "--leave"), ("--range",), ("--same",)]
)
@pytest.mark.proves(form="folds", strategy="allreduce", death=("worker", "master"))
def test_workers_and_the_master_die_in_later_folds(flags: tuple[str, ...], tmp_path: Path) -> None:
    expected = expected_of(tmp_path / "alone", *flags)
    with pair_of(SCRIPT, tmp_path / "job", "--die", "1:1:0,0:2:3", *flags) as job:
        job.until_committed(SAMPLES)
        job.kill_master()
        check_ends(job, expected)
        relaunches = job.events("relaunch")
        # One more for each of the dead, if the other one has left the loop that it comes into.
        assert [e["cause"] for e in relaunches].count("signal SIGKILL") == 2 >= len(relaunches) / 2
        assert len(job.events("master_started")) == 2


@pytest.mark.soak
def test_a_life_waits_while_others_stay_behind_a_loop_that_they_left(tmp_path: Path) -> None:
    expected = expected_of(tmp_path / "alone", "--leave")
    flags = ("--leave", "--stay-s", "4", "--die", "1:0:6")
    with pair_of(SCRIPT, tmp_path / "job", *flags) as job:
        check_ends(job, expected)
        # One for the death; another where the next loop is of a fold whose model the first life of
        # worker-1 that waited had not built.
        assert 1 <= len(job.events("relaunch")) <= 2


@pytest.mark.soak
@pytest.mark.parametrize("late", [(), ("--late-s", "6")], ids=["at once", "when all is done"])
def test_a_life_passes_over_folds_in_which_nobody_is(late: tuple[str, ...], tmp_path: Path) -> None:
    # The others train the next fold when it comes to the first one, or have returned.
    expected = expected_of(tmp_path / "alone", "--range")
    flags = ("--range", "--step-s", "0.08", "--die", "1:0:9" if not late else "1:1:1", *late)
    with pair_of(SCRIPT, tmp_path / "job", *flags) as job:
        check_ends(job, expected)
        assert job.events("relaunch")


@SOAK
@pytest.mark.parametrize("flags", [(), ("--init",), ("--leave",), ("--range",), ("--same",)])
@pytest.mark.parametrize("fold", [0, 1, 2])
@pytest.mark.proves(form="folds", strategy="allreduce", death="all")
def test_all_die_in_a_fold(flags: tuple[str, ...], fold: int, tmp_path: Path) -> None:
    expected = expected_of(tmp_path / "alone", *flags)
    with pair_of(SCRIPT, tmp_path / "job", "--step-s", "0.1", *flags) as job:
        size = 7 * 34 if "--leave" in flags else SAMPLES
        job.until_committed(size * fold + 100)
        job.kill_nodes()
        check_ends(job, expected)


@SOAK
def test_a_worker_that_prepares_once_more_is_named(tmp_path: Path) -> None:
    with pair_of(SCRIPT, tmp_path / "job", "--more") as job:
        outcome = job.end()
    assert outcome.state == "failed"
    assert "different trainings of the script" in outcome.error
    assert "training 2 in worker-0" in outcome.error
    assert "training 1 in worker-1" in outcome.error


@SOAK
def test_models_that_begin_differently_become_that_of_the_first_worker(tmp_path: Path) -> None:
    expected = expected_of(tmp_path / "alone")
    with pair_of(SCRIPT, tmp_path / "job", "--differ") as job:
        assert job.end().state == "finished"
        assert len(job.events("diverged")) == 2, "in folds 1 and 2"
        for values in ends(job.out):
            assert values == pytest.approx(expected, rel=1e-9)
