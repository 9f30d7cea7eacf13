"""``falcon``: what it answers to single observations, and in closed loops."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline.features.stragglers.policy.decision_log import Begun, Decided, asked
from paceline.features.stragglers.policy.solutions.falcon import Falcon
from paceline.features.stragglers.policy.solutions.static import Nothing
from paceline.policy.actions import AdjustBatch, AnyAction, KillRestart
from paceline.policy.decisions.past import replay
from paceline.policy.observation import Observation, RestartCost, WorkerSeen
from paceline.policy.stats.regimes import Point, Regime, Stretch
from paceline.policy.stats.windows import Pace
from tests.unit.stragglers import straggler_world
from tests.unit.stragglers.straggler_world import World, clairvoyant_s

EVEN = 100
NOW_S = 1000.0
HEALTHY = Path(__file__).parent / "recorded" / "healthy_under_load.jsonl"
CHEAP = RestartCost(start_s=4.0, restore_s=1.0)
NO_CHANGES: tuple[float, ...] = ()


def worker(
    index: int, slowness: float, share: int, *, lasts_s: float, sizes: Sequence[int] = ()
) -> WorkerSeen:
    """A worker that takes 10 ms a sample, times its slowness, for so long."""
    points = tuple(
        Point(size, 50, 0.01 * slowness * size, 20.0) for size in sorted({share, *sizes})
    )
    return WorkerSeen(
        node=f"w{index}",
        batch_size=share,
        short=Pace(
            iterations=100,
            seconds=100.0,
            samples=share,
            compute_s=0.01 * slowness * share,
            bpt_s=0.01 * slowness * share,
        ),
        regime=Regime(
            since_s=NOW_S - lasts_s,
            iterations=max(int(lasts_s), 1),
            points=points,
            slope_s=0.01,
            scatter=0.01,
            # What it took before; so it is known that times do not drift.
            trail=tuple(
                Stretch(NOW_S - age_s, 20.0, 20, EVEN, 0.01 * EVEN, 0.01 * EVEN)
                for age_s in (940.0, 920.0, 900.0)
            ),
        ),
    )


def job(
    slowness: Sequence[float],
    *,
    shares: Sequence[int] = (),
    lasts_s: Sequence[float] = (),
    changes_s: tuple[float, ...] = NO_CHANGES,
    **changes: object,
) -> Observation:
    """Workers with these shares (else even ones), as slow as this for so long (else 50 s)."""
    given = shares or [EVEN] * len(slowness)
    # A worker with another share was seen with an even one, too.
    sizes = (EVEN,) if shares else ()
    seen = Observation(
        now_s=NOW_S,
        step=1000,
        mode="allreduce",
        global_batch=sum(given),
        steps_left=None,
        workers=tuple(
            worker(index, one, share, lasts_s=age_s, sizes=sizes)
            for index, (one, share, age_s) in enumerate(
                zip(slowness, given, lasts_s or [50.0] * len(slowness), strict=True)
            )
        ),
        worker_restart=RestartCost(start_s=300.0),
        since_action_s=changes_s[0] if changes_s else None,
        changes_s=changes_s,
    )
    return msgspec.structs.replace(seen, **changes)


def sizes(actions: Sequence[AnyAction]) -> list[int]:
    (action,) = actions
    assert isinstance(action, AdjustBatch)
    return [share.num_samples for share in action.shares.values()]


SLOW = (1.0, 1.9, 1.0, 1.0)
LEVELLED = (114, 60, 113, 113)
"""The shares for it."""


# ------------------------------------------------------------------------- single observations


def test_a_job_in_which_nobody_is_slow_is_let_be() -> None:
    assert Falcon().decide(job([1.0, 1.02, 0.99, 1.0])) == []


def test_nothing_is_decided_before_anything_was_measured() -> None:
    workers = tuple(WorkerSeen(node=f"w{index}", batch_size=EVEN) for index in range(3))
    assert Falcon().decide(job([1.0] * 3, workers=workers)) == []


def test_work_is_divided_once_as_much_was_lost_as_a_division_costs() -> None:
    """A step takes 1.9 s instead of 1 s: two of them lose more than one healthy step."""
    assert Falcon().decide(job(SLOW, lasts_s=[500.0, 3.7, 500.0, 500.0])) == []
    actions = Falcon().decide(job(SLOW, lasts_s=[500.0, 3.9, 500.0, 500.0]))
    assert sizes(actions) == [114, 60, 113, 113]
    assert actions[0].reason == (
        "computation: 1.8 s were lost, at 1.9 s a step instead of 1 s; S2 costs 1 s; "
        "a step of 1.14 s is expected"
    )


@pytest.mark.parametrize(
    ("slow", "best"),
    [(1, [114, 60, 113, 113]), (2, [131, 69, 69, 131]), (3, [155, 82, 82, 81])],
)
def test_the_fastest_worker_is_what_the_others_are_held_against(slow: int, best: list[int]) -> None:
    slowness = [1.9 if 1 <= index <= slow else 1.0 for index in range(4)]
    found = sizes(Falcon().decide(job(slowness)))
    times = [share * one for share, one in zip(found, slowness, strict=True)]
    wanted = [share * one for share, one in zip(best, slowness, strict=True)]
    assert sum(found) == sum(best)
    assert max(times) <= max(wanted) + 1e-9


def test_where_all_are_slow_nothing_can_be_divided() -> None:
    assert Falcon().decide(job([1.9] * 4)) == []


def test_a_change_settles_before_the_next_one() -> None:
    worse = (1.0, 3.0, 1.0, 1.0)
    assert Falcon().decide(job(worse, shares=LEVELLED, changes_s=(8.0,))) == []
    assert Falcon().decide(job(worse, shares=LEVELLED, changes_s=(30.0,))) != []


def test_a_division_that_is_as_good_as_can_be_stays() -> None:
    assert Falcon().decide(job(SLOW, shares=LEVELLED, changes_s=(300.0,))) == []


def test_a_second_slow_worker_is_a_reason_to_divide_again() -> None:
    seen = job((1.0, 1.9, 1.9, 1.0), shares=LEVELLED, changes_s=(300.0,))
    found = sizes(Falcon().decide(seen))
    assert found[2] < 75 < found[0]


def test_shares_are_even_again_when_nobody_has_been_slow_for_a_while() -> None:
    def relieved(lasts_s: float, *changes_s: float) -> list[AnyAction]:
        ages_s = [500.0, lasts_s, 500.0, 500.0]
        return Falcon().decide(job([1.0] * 4, shares=LEVELLED, lasts_s=ages_s, changes_s=changes_s))

    assert relieved(4.0, 300.0) == []
    assert relieved(50.0, 4.0) == []
    actions = relieved(6.0, 300.0)
    assert sizes(actions) == [EVEN] * 4
    assert actions[0].reason == "no fault for 6 steps"


def test_a_worker_that_was_found_slow_stays_so_until_it_is_as_fast_as_the_others() -> None:
    """Times that drift explain why one worker takes longer; but not that it has recovered."""
    seen = job((1.3, 1.0), shares=(87, 113), changes_s=(300.0,))
    slow, other = seen.workers
    assert slow.regime is not None
    stretches = [
        msgspec.structs.replace(each, compute_s=each.compute_s * factor)
        for each, factor in zip(slow.regime.trail, (0.6, 1.6, 0.8), strict=True)
    ]
    regime = msgspec.structs.replace(slow.regime, trail=tuple(stretches), since_s=0.0)
    drifting = (msgspec.structs.replace(slow, regime=regime), other)
    assert Falcon().decide(msgspec.structs.replace(seen, workers=drifting)) == []
    even = msgspec.structs.replace(slow, regime=regime, batch_size=113)
    alike = msgspec.structs.replace(seen, workers=(even, other))
    assert Falcon().decide(alike) == [], "with an even share it may be chance"


def test_whole_batches_of_the_accumulation_stay_whole() -> None:
    seen = job([1.0] * 4, shares=(112, 64, 112, 112), changes_s=(300.0,))
    workers = tuple(
        msgspec.structs.replace(each, batch_size=each.batch_size // 4, accumulation=4)
        for each in seen.workers
    )
    (action,) = Falcon().decide(msgspec.structs.replace(seen, workers=workers))
    assert isinstance(action, AdjustBatch)
    assert {each.accumulation for each in action.shares.values()} == {4}
    assert {each.batch_size for each in action.shares.values()} == {25}


def test_nobody_gets_a_batch_above_its_limit() -> None:
    seen = job(SLOW)
    workers = (msgspec.structs.replace(seen.workers[0], batch_limit=105), *seen.workers[1:])
    found = sizes(Falcon().decide(msgspec.structs.replace(seen, workers=workers)))
    assert found[0] <= 105 < found[2]


def test_a_plan_that_went_back_and_forth_makes_a_division_dearer() -> None:
    def lost_s(*changes_s: float) -> float:
        for age_s in range(1, 200):
            ages_s = [900.0, float(age_s), 900.0, 900.0]
            actions = Falcon().decide(job(SLOW, lasts_s=ages_s, changes_s=changes_s))
            if actions:
                match = re.search(r"([\d.]+) s were lost", actions[0].reason)
                assert match is not None
                return float(match[1])
        raise AssertionError("never")

    never, once, thrice = lost_s(), lost_s(250.0, 350.0), lost_s(*np.linspace(250.0, 550.0, 6))
    assert never < 2.0 <= once < 3.0
    assert 8.0 <= thrice < 10.0
    assert lost_s(*np.linspace(250.0, 700.0, 20)) == thrice, "a division stays cheap"
    assert lost_s(960.0, 980.0) == never, "that is forgotten"


# --------------------------------------------------------------------------------- restarts


HOPELESS = (4, 132, 132, 132)
"""A share that is as small as it can be."""


def beyond_help(lasts_s: float, **changes: object) -> Observation:
    """A worker for which a step takes 3 s whatever its share is, and the plan as good as can be."""
    seen = job([1.0] * 4, shares=HOPELESS, changes_s=(lasts_s,), worker_restart=CHEAP)
    points = (Point(4, 50, 3.0, 20.0), Point(EVEN, 50, 3.02, 1.0))
    first = seen.workers[0]
    assert first.regime is not None
    assert first.short is not None
    regime = msgspec.structs.replace(first.regime, points=points, slope_s=0.0, trail=())
    short = msgspec.structs.replace(first.short, compute_s=3.0, bpt_s=3.0)
    first = msgspec.structs.replace(first, regime=regime, short=short)
    return msgspec.structs.replace(seen, workers=(first, *seen.workers[1:]), **changes)


def test_a_restart_comes_when_another_division_is_no_help_and_as_much_is_lost_as_it_costs() -> None:
    assert Falcon().decide(beyond_help(18.0)) == []
    (action,) = Falcon().decide(beyond_help(60.0))
    assert isinstance(action, KillRestart)
    assert action.node == "w0"
    assert "S4 costs" in action.reason
    assert action.gain_s >= action.cost_s > CHEAP.latency_s


def test_while_a_division_helps_nobody_is_restarted() -> None:
    seen = job(SLOW, lasts_s=[900.0] * 4, worker_restart=CHEAP)
    assert [type(each) for each in Falcon().decide(seen)] == [AdjustBatch]


@pytest.mark.parametrize("change", [{"absent": 1}, {"steps_left": 3}, {"pending_s": 3000.0}])
def test_nobody_is_restarted_where_that_does_not_pay(change: dict[str, object]) -> None:
    assert Falcon().decide(beyond_help(60.0, **change)) == []


def test_restarts_of_a_worker_are_limited() -> None:
    assert Falcon(max_restarts=0).decide(beyond_help(60.0)) == []


def test_an_action_is_told_by_what_workers_take_for_even_shares() -> None:
    seen = job(SLOW)
    (action,) = Falcon().decide(seen)
    compared = Falcon().compared(seen, action)
    assert compared.times_s == pytest.approx({"w0": 1.0, "w1": 1.9, "w2": 1.0, "w3": 1.0})
    seen = beyond_help(60.0)
    (action,) = Falcon().decide(seen)
    assert Falcon().compared(seen, action).usual_s == pytest.approx(1.0)
    gone = KillRestart(node="w9")
    assert Falcon().compared(seen, gone).usual_s is None


# -------------------------------------------------------------------------------- no harm


def test_a_busy_machine_makes_nobody_slow() -> None:
    lines = HEALTHY.read_bytes().splitlines()
    seen = [msgspec.json.decode(line, type=Observation) for line in lines]
    assert len(seen) >= 10
    for one in seen:  # under ``auto``; the shares of some were uneven
        for action in Falcon().decide(one):
            assert sizes([action]) == [one.global_batch // 3] * 3


# ----------------------------------------------------------------------------- closed loops


class Followed(World):
    """A world that says when its plan was changed, as a controller does."""

    changed_s: tuple[float, ...] = ()

    def _observe(self, steps: int) -> Observation:
        ago_s = tuple(self.t_s - each for each in reversed(self.changed_s))
        return msgspec.structs.replace(
            super()._observe(steps),
            mode="allreduce",
            changes_s=ago_s[:20],
            since_action_s=ago_s[0] if ago_s else None,
        )

    def _decide(self, steps: int) -> None:
        before = len(self.log)
        super()._decide(steps)
        if any(isinstance(each, AdjustBatch) for _, acts in self.log[before:] for each in acts):
            self.changed_s += (self.t_s,)

    def replayed(self) -> bool:
        """Whether a log of its decisions says the same when it is read and asked again."""
        lines = [
            Begun(solution="falcon"),
            *(
                Decided(no=number, observation=seen, actions=tuple(actions))
                for number, (seen, actions) in enumerate(self.log)
            ),
        ]
        read = msgspec.json.decode(msgspec.json.encode(lines), type=list[Begun | Decided])
        again = replay(asked(read), lambda _: self.solution)
        return len(again) == len(self.log) and all(each.same for each in again)


def slow_from(begin_s: float, end_s: float, *slowness: float):  # type: ignore[no-untyped-def]
    return lambda t_s: np.where(begin_s <= t_s < end_s, np.array(slowness), 1.0)


@pytest.mark.parametrize(
    "slowness", [(1.3, 1), (1.7, 1), (1, 1.9, 1, 1), (1, 1.9, 1.9, 1), (1, 1, 1, 1.4, 1, 1, 1, 1)]
)
def test_a_slow_spell_costs_little_more_than_to_one_who_knows_it(
    slowness: tuple[float, ...],
) -> None:
    pace = slow_from(100.0, 600.0, *slowness)
    world = Followed(Falcon(max_restarts=0), workers=len(slowness), slowness=pace)
    took_s, best_s = world.run(400), clairvoyant_s(world, 400)
    lost_s = Followed(Nothing(), workers=len(slowness), slowness=pace).run(400) - best_s
    assert took_s - best_s < 0.35 * lost_s
    assert np.ptp(world.shares) <= 1, "even again"
    assert len(world.actions(AdjustBatch)) <= 3
    assert world.replayed()


@pytest.mark.parametrize("slowness", [(1.7, 1), (1, 1.9, 1.9, 1), (1, 1.9, 1.9, 1.9)])
def test_a_change_of_many_of_the_workers_is_no_drift_of_their_times(
    slowness: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a short job; by what is known after 60 s, 1.9 times as long might be chance."""
    monkeypatch.setattr(straggler_world, "REPORT_EVERY", 1)
    pace = slow_from(60.0, 1e9, *slowness)
    world = Followed(Falcon(max_restarts=0), workers=len(slowness), slowness=pace)
    while world.t_s < 60.0:
        world.run(world.step + 1)
    world.run(world.step + 12)
    assert world.actions(AdjustBatch)


def test_a_healthy_job_is_not_touched() -> None:
    world = Followed(Falcon(), noise=0.03)
    world.run(400)
    assert [actions for _, actions in world.log if actions] == []


def test_a_worker_that_no_division_helps_is_restarted_once() -> None:
    delays_s = 3.0 * np.eye(4)[2]
    world = Followed(Falcon(), workers=4, delays_s=lambda _: delays_s)
    world.run(400)
    assert world.restarts.tolist() == [0, 0, 1, 0]
    assert np.ptp(world.shares) <= 1


def test_spells_that_come_and_go_do_not_make_the_plan_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spells of ten steps."""
    monkeypatch.setattr(straggler_world, "REPORT_EVERY", 1)

    def pace(t_s: float) -> np.ndarray:  # type: ignore[type-arg]
        return np.where(t_s % 40.0 < 20.0, np.array([1, 1.9, 1, 1]), 1.0)

    world = Followed(Falcon(max_restarts=0), workers=4, slowness=pace)
    took_s = world.run(200)
    spells = int(world.t_s / 40.0)
    assert spells > 10
    assert 1 <= len(world.actions(AdjustBatch)) <= spells // 2
    assert took_s < Followed(Nothing(), workers=4, slowness=pace).run(200)
