"""The account of a storm: what counts as present, and what a fault costs."""

from pathlib import Path

import numpy as np
import pytest
from paceline_experiments.storm.account import (
    Done,
    Life,
    Stamp,
    Work,
    account,
    capacity,
    end_of,
    read_lives,
    steps_of,
)
from paceline_experiments.storm.faults import KINDS, plan

STEP_S, BATCH = 1.0, 100


def life(node: str, pid: int, ready_s: float, steps: range, first_s: float | None = None) -> Life:
    """One whose steps take a second."""
    batches = stamps(ready_s if first_s is None else first_s, steps)
    return Life(node, f"host of {node}", pid, ready_s, batches, np.inf)


def stamps(begin_s: float, steps: range, step_s: float = STEP_S) -> tuple[Stamp, ...]:
    """Of steps that take so long."""
    return tuple(
        Stamp(begin_s + step_s * place, step, step * BATCH) for place, step in enumerate(steps)
    )


def test_a_plan_has_each_kind_once_before_any_comes_again() -> None:
    faults = plan(seed=3, minutes=30, every_s=29)
    assert len(faults) == 62
    for start in range(0, 60, len(KINDS)):
        assert {one.kind for one in faults[start : start + len(KINDS)]} == {*KINDS}
    assert plan(3, 30, 29) == faults != plan(4, 30, 29)
    assert [one.at_s for one in faults[:3]] == [0, 29, 58]


def test_stamps_are_lives(tmp_path: Path) -> None:
    text = "ready 5.5 host-a 17\nbatch 6 0 0\nbatch 7.5 1 40\nend 9 2 80\n"
    (tmp_path / "worker-3.8.stamps").write_text(text)
    (tmp_path / "worker-4.9.stamps").write_text("")
    (found,) = read_lives(tmp_path)
    assert found == Life(
        "worker-3", "host-a", 17, 5.5, (Stamp(6.0, 0, 0), Stamp(7.5, 1, 40), Stamp(9.0, 2, 80)), 9.0
    )


def test_the_model_of_a_worker_that_has_just_joined_tells_nothing() -> None:
    whole = life("a", 1, 0, range(4))
    joins = whole._replace(node="b", batches=(Stamp(2.5, 3, 0),))
    assert steps_of([joins, whole]) == [*whole.batches[:3], Stamp(2.5, 3, 300)]


def test_a_life_ends_by_a_fault_or_as_the_next_one_is_ready() -> None:
    first, second = life("a", 1, 0, range(5)), life("a", 2, 20, range(20, 25))
    killed = Done("worker", "a", 8.0, 8.0, pids=(1,))
    assert end_of(first, [first, second], []) == 20
    assert end_of(first, [first, second], [killed]) == 8
    assert end_of(second, [first, second], [killed]) == np.inf


def test_who_is_asked_to_leave_is_there_for_the_steps_that_it_begins() -> None:
    leaves = life("a", 1, 0, range(12))
    drained = Done("drain", "a", 8.5, 15.0, pids=(1,))
    assert end_of(leaves, [leaves], [drained]) == 11


def test_the_calm_is_of_whole_steps() -> None:
    """In the first of them workers have joined: it took eight times as long."""
    first = stamps(0.0, range(1), 8 * STEP_S)
    lives = [Life("a", "host", 1, 0.0, first + stamps(8.0, range(1, 30)), np.inf)]
    fault = Done("disk", "host", 20.5, 21.0)
    found = account(lives, [fault], calm_s=3.0, end_s=30.0, work=Work(BATCH, STEP_S))
    assert found.rate == pytest.approx(BATCH / STEP_S, rel=0.01)
    assert found.share == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("left", "meanwhile"), [(0.0, 1.0), (0.5, 1.5)])
def test_who_is_away_counts_as_much_less(left: float, meanwhile: float) -> None:
    lives = [life("a", 1, 0, range(20)), life("b", 2, 0, range(20))]
    away = Done("slow", "a", 5.0, 8.0, away=(1,), left=left)
    found = capacity(np.array([4.0, 6.0, 9.0]), lives, [away])
    assert found.tolist() == [2, meanwhile, 2]


def test_who_was_given_up_meanwhile_is_there_when_its_next_life_is_ready() -> None:
    lives = [life("a", 1, 0, range(5)), life("a", 3, 15, range(15, 20)), life("b", 2, 0, range(20))]
    cut = Done("cable", "a", 5.0, 8.0, away=(1,))
    found = capacity(np.array([4.0, 6.0, 10.0, 16.0]), lives, [cut])
    assert found.tolist() == [2, 1, 1, 2]


def test_a_storm_that_costs_nothing_has_its_whole_share() -> None:
    """Of two workers one dies: from then on steps take twice as long."""
    quick = [life(name, pid, 0, range(20)) for name, pid in (("a", 1), ("b", 2))]
    slow = stamps(20, range(20, 31), 2 * STEP_S)
    lives = [quick[0]._replace(batches=quick[0].batches + slow), quick[1]]
    killed = Done("worker", "b", 20.0, 20.0, pids=(2,))
    found = account(lives, [killed], calm_s=5.0, end_s=40.0, work=Work(BATCH, 2 * STEP_S))
    assert found.rate == pytest.approx(BATCH / 2, rel=0.01)
    assert found.share == pytest.approx(1, abs=0.02)
    assert found.present == pytest.approx(1)
    assert found.costs == pytest.approx([0], abs=0.5)


def test_a_pause_is_lost_and_booked_to_its_fault() -> None:
    lives = [life("a", 1, 0, range(10))]
    later = stamps(14.0, range(10, 40))
    lives = [lives[0]._replace(batches=lives[0].batches + later)]
    faults = [Done("master", "m", 9.0, 9.0), Done("disk", "m", 20.0, 22.0)]
    found = account(lives, faults, calm_s=2.0, end_s=40.0, work=Work(BATCH, STEP_S))
    assert found.costs == pytest.approx([4, 0], abs=0.3)
    assert found.pauses == pytest.approx([5, 1])
    assert found.share == pytest.approx(27 / 31, abs=0.02)
    assert found.steps == 27


def test_fewer_members_have_longer_waits_and_cheaper_sums() -> None:
    """Of four that wait 1 s two die; each takes the processors for 0.1 s of a step."""
    work = Work(BATCH, alone_s=4.0)
    assert work.calmed(4, 1.4).step_s(np.array([4.0, 2.0])).tolist() == pytest.approx([1.4, 2.2])
    before, after = stamps(0, range(20), 1.4), stamps(28.0, range(20, 31), 2.2)
    lives = [
        Life(str(pid), "host", pid, 0.0, before + (after if pid < 2 else ()), np.inf)
        for pid in range(4)
    ]
    killed = Done("drain", "host", 28.0, 28.0, pids=(2, 3))
    found = account(lives, [killed], calm_s=5.0, end_s=50.0, work=work)
    assert found.share == pytest.approx(1, abs=0.02)
    assert found.rate == pytest.approx(BATCH / 1.4 / 4, rel=0.01)
    assert found.trained[found.times > 5][:200] == pytest.approx(2, rel=0.02)
