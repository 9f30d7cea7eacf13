"""Layers that begin to train in later epochs end as in one process when workers die.

And the master.
"""

from pathlib import Path

import pytest

from tests.integration.pair import alone, check_ends, pair_of

SCRIPT = Path(__file__).with_name("jobs") / "regrouped.py"


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of one process."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    values = alone(SCRIPT, tmp_path / "alone")
    assert len(values) == 6 + 6
    return values


@pytest.mark.soak
@pytest.mark.parametrize("at", [28, 12])
@pytest.mark.parametrize("flags", [(), ("--ranges",)])
@pytest.mark.proves(form="thawed", strategy="allreduce", death=("worker", "master"))
def test_a_worker_and_the_master_die_and_the_next_life_has_all_groups(
    flags: tuple[str, ...], at: int, tmp_path: Path, expected: list[float]
) -> None:
    with pair_of(SCRIPT, tmp_path / "job", "--die", f"1:{at}", *flags) as job:
        job.until_committed(32 * (at // 2))  # the next master may come after the worker's death
        job.kill_master()
        check_ends(job, expected)
        assert len(job.events("relaunch")) == 1
        assert len(job.events("master_started")) == 2


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--ranges",)])
@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.proves(form="thawed", strategy="allreduce", death="all")
def test_all_die_and_the_cut_has_all_groups(
    flags: tuple[str, ...], epoch: int, tmp_path: Path, expected: list[float]
) -> None:
    with pair_of(SCRIPT, tmp_path / "job", "--step-s", "0.3", *flags) as job:
        job.until_committed(256 * epoch + 100)
        job.kill_nodes()
        check_ends(job, expected)
        assert len(job.events("relaunch")) == 2


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--ranges",)])
@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.proves(form="thawed", strategy="allreduce", death="all")
def test_all_die_where_a_loop_begins(
    flags: tuple[str, ...], epoch: int, tmp_path: Path, expected: list[float]
) -> None:
    """The newest cut is of the end of the loop before."""
    die = f"0:{8 * epoch},1:{8 * epoch}"
    with pair_of(SCRIPT, tmp_path / "job", "--die", die, *flags) as job:
        check_ends(job, expected)
        assert len(job.events("relaunch")) == 2


@pytest.mark.soak
def test_a_worker_that_trains_something_else_is_named(
    tmp_path: Path, expected: list[float]
) -> None:
    with pair_of(SCRIPT, tmp_path / "job", "--differ") as job:
        outcome = job.end()
    assert outcome.state == "failed"
    assert "the workers train different parameters" in outcome.error
    assert "4 tensors" in outcome.error
    assert "2 tensors" in outcome.error
    assert "in worker-1" in outcome.error
