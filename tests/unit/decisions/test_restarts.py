"""What starts cost: five parts, from facts and the clock."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.master.restarts import REMEMBERED, LostWork, Restarts, StartMeasured
from paceline.policy.observation import RestartCost


def measured(restarts: Restarts) -> list[StartMeasured]:
    fresh = restarts.take_fresh()
    for one in fresh:
        restarts.apply(one)
    return fresh


def start(restarts: Restarts, node: str, start_s: float, inc: int = 7) -> None:
    """From the process on: 3 s to build, 2 s to restore."""
    restarts.up(node, inc, start_s)
    restarts.built(node, start_s + 3.0)
    restarts.works(node, start_s + 5.0)


def test_the_five_parts_are_the_times_between_the_facts() -> None:
    restarts = Restarts()
    restarts.ended("worker-1", 100.0)
    restarts.launched("worker-1", 100.5, first=False)
    restarts.placed("worker-1", 120.5)
    restarts.joined("worker-1")
    restarts.redone("worker-1", 0.7)
    start(restarts, "worker-1", 124.0)
    (one,) = measured(restarts)
    assert (one.node, one.inc, one.first, one.launched) == ("worker-1", 7, False, True)
    assert one.cost == RestartCost(
        pending_s=20.0, start_s=4.0, rebuild_s=3.0, restore_s=2.0, redo_s=0.7
    )
    assert restarts.cost("worker").total_s == pytest.approx(29.7)
    assert not restarts.is_starting("worker-1")


def test_launches_of_each_quota_have_a_wait_of_their_own() -> None:
    restarts = Restarts()
    for number, (cores, waited_s) in enumerate([(0.5, 2.0), (0.5, 4.0), (4.0, 60.0), (None, 9.0)]):
        node = f"worker-{number}"
        restarts.launched(node, 0.0, first=True)
        restarts.placed(node, waited_s)
        restarts.joined(node, cores)
        start(restarts, node, 70.0)
    restarts.ended("worker-2", 80.0)  # a crash: agent and place stay
    start(restarts, "worker-2", 81.0)
    for one in measured(restarts):
        assert msgspec.json.decode(msgspec.json.encode(one), type=StartMeasured) == one
    assert restarts.waits_s() == {0.5: [2.0, 4.0], 4.0: [60.0]}


def test_a_start_is_measured_once_and_repeated_messages_change_nothing() -> None:
    restarts = Restarts()
    restarts.launched("worker-0", 0.0, first=True)
    restarts.up("worker-0", 1, 1.0)
    restarts.up("worker-0", 1, 9.0)
    restarts.built("worker-0", 2.0)
    restarts.built("worker-0", 9.0)
    restarts.works("worker-0", 4.0)
    restarts.works("worker-0", 9.0)
    (one,) = measured(restarts)
    assert (one.cost.start_s, one.cost.rebuild_s, one.cost.restore_s) == (1.0, 1.0, 2.0)


def test_nothing_is_measured_of_a_start_that_was_not_seen() -> None:
    restarts = Restarts()
    restarts.works("worker-0", 4.0)
    restarts.launched("worker-1", 0.0, first=False)  # a new agent; its process lives on
    restarts.works("worker-1", 4.0)
    assert measured(restarts) == []


def test_first_starts_stand_for_restarts_until_one_was_given_a_place() -> None:
    restarts = Restarts()
    assert restarts.cost("worker") == RestartCost()
    for node, up_s in (("worker-0", 2.0), ("worker-1", 4.0), ("server-0", 1.0)):
        restarts.launched(node, 0.0, first=True)
        start(restarts, node, up_s)
    measured(restarts)
    assert restarts.cost("worker").start_s == 3.0
    assert restarts.cost("server").start_s == 1.0
    restarts.ended("worker-0", 50.0)  # a crash: agent and place stay
    start(restarts, "worker-0", 50.1)
    measured(restarts)
    assert restarts.cost("worker").start_s == 3.0
    restarts.ended("worker-0", 60.0)
    restarts.launched("worker-0", 60.0, first=False)
    start(restarts, "worker-0", 68.0)
    measured(restarts)
    assert restarts.cost("worker").start_s == 8.0


def test_costs_are_means_over_the_newest_and_survive_the_master() -> None:
    restarts = Restarts()
    for number in range(2 * REMEMBERED):
        restarts.ended("worker-0", 0.0)
        restarts.launched("worker-0", 0.0, first=False)
        start(restarts, "worker-0", float(number))
        measured(restarts)
    newest = range(REMEMBERED, 2 * REMEMBERED)
    assert restarts.cost("worker").start_s == sum(newest) / REMEMBERED
    successor = Restarts()
    for record in restarts.measured():
        successor.apply(record)
    assert successor.cost("worker") == restarts.cost("worker")


def test_the_first_batch_may_be_reported_before_the_model_was() -> None:
    """A report's steps are dated back; no part becomes negative."""
    restarts = Restarts()
    restarts.ended("worker-0", 10.0)
    restarts.placed("worker-0", 109.0)
    restarts.joined("worker-0")
    restarts.up("worker-0", 2, 11.0)
    restarts.built("worker-0", 12.0)
    restarts.works("worker-0", 11.5)
    (one,) = measured(restarts)
    assert one.cost == RestartCost(start_s=1.0, rebuild_s=1.0)


@given(
    granted=st.lists(st.integers(0, 100), max_size=5),
    returned=st.integers(0, 500),
    finished=st.integers(0, 500),
)
def test_lost_is_what_was_finished_but_not_in_the_model(
    granted: list[int], returned: int, finished: int
) -> None:
    work = LostWork()
    for count in granted:
        work.granted(3, count)
    returned = min(returned, sum(granted))
    finished = min(finished, sum(granted))
    lost = work.lost(3, handed=finished, returned=returned)
    assert lost == max(0, finished - (sum(granted) - returned))


def test_work_before_a_restore_is_not_this_life_s_loss() -> None:
    work = LostWork()
    work.granted(3, 1000)
    work.epoch({3: 700})
    work.granted(3, 100)
    assert work.lost(3, handed=760, returned=50) == 10
