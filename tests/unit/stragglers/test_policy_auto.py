"""``auto`` in closed loops, and what it answers to single observations."""

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from paceline_experiments.baselines.lb_bsp import LbBsp

from paceline.features.stragglers.policy.division import StepModel
from paceline.features.stragglers.policy.fleet import Fleet
from paceline.features.stragglers.policy.restarts import slowness
from paceline.features.stragglers.policy.solution import Solution
from paceline.features.stragglers.policy.solutions.auto import Auto, _patience
from paceline.features.stragglers.policy.solutions.non_dedicated import NonDedicated
from paceline.features.stragglers.policy.solutions.static import Backup, LeaveOut, Nothing
from paceline.features.stragglers.policy.trials import Patience
from paceline.policy.actions import (
    AdjustBatch,
    KillRestart,
    Partial,
)
from paceline.policy.observation import (
    Observation,
    RestartCost,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.regimes import Point, Regime, Stretch
from paceline.policy.stats.spells import LifeTable
from paceline.policy.stats.windows import Pace
from tests.unit.stragglers.straggler_world import EVEN, SLOPE_S, World, clairvoyant_s

STEPS = 400


def one(index: int, delay_s: float, count: int = 8) -> np.ndarray:
    delays_s = np.zeros(count)
    delays_s[index] = delay_s
    return delays_s


def transient(t_s: float) -> np.ndarray:
    """Two workers, in the first half of every 400 s."""
    return (t_s % 400.0 < 200.0) * (one(1, 1.0) + one(5, 1.5))


# ---------------------------------------------------------------------- closed loops, bsp


def test_nothing_is_done_where_nobody_is_slow() -> None:
    world = World(Auto(), noise=0.03)
    world.run(STEPS)
    assert [actions for _, actions in world.log if actions] == []


def test_transient_stragglers_cost_little_more_than_to_one_who_knows_them() -> None:
    world = World(Auto(max_restarts=0), delays_s=transient)
    assert world.run(STEPS) <= 1.10 * clairvoyant_s(world, STEPS)


def test_shares_are_given_back_on_relief() -> None:
    world = World(Auto(max_restarts=0), delays_s=lambda t_s: (t_s < 300.0) * one(1, 1.0))
    world.run(STEPS)
    first = world.actions(AdjustBatch)[0]
    assert isinstance(first, AdjustBatch)
    assert first.shares["w001"].batch_size < 0.7 * EVEN
    assert np.abs(world.shares - EVEN).max() < 0.1 * EVEN


def test_a_worker_beyond_help_is_left_with_one_sample_and_not_waited_for() -> None:
    world = World(Auto(max_restarts=0), delays_s=lambda _: one(1, 5.0))
    jct_s = world.run(STEPS)
    assert world.shares[1] == 1
    assert world.partial.left_out == 1
    assert jct_s <= 1.10 * clairvoyant_s(world, STEPS)


def test_waiting_for_everybody_is_taken_up_again_on_relief() -> None:
    world = World(Auto(max_restarts=0), delays_s=lambda t_s: (t_s < 300.0) * one(1, 5.0))
    world.run(STEPS)
    assert (world.partial.left_out, world.partial.late) == (0, 0)
    assert np.abs(world.shares - EVEN).max() < 0.05 * EVEN


def test_a_slowness_in_proportion_to_the_batch_is_levelled_as_well() -> None:
    world = World(
        Auto(max_restarts=0), slowness=lambda t_s: np.where(t_s > 100.0, 1.0 + one(3, 1.5), 1.0)
    )
    assert world.run(STEPS) <= 1.05 * clairvoyant_s(world, STEPS)


def test_a_persistent_straggler_is_restarted_once() -> None:
    world = World(Auto(), delays_s=lambda _: one(6, 2.0))
    world.run(STEPS)
    assert world.restarts.tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert np.abs(world.shares - EVEN).max() < 0.05 * EVEN


def test_restarts_that_do_not_help_are_given_up() -> None:
    world = World(Auto(), delays_s=lambda _: one(6, 2.0), cures=False)
    jct_s = world.run(STEPS)
    assert 1 <= world.restarts[6] <= 3
    assert jct_s <= 1.25 * clairvoyant_s(world, STEPS)


def test_nobody_is_restarted_shortly_before_the_end() -> None:
    world = World(Auto(), delays_s=lambda _: one(6, 0.6))
    world.run(40)
    assert world.actions(KillRestart) == []


def test_a_long_pending_time_postpones_the_restart() -> None:
    steps_of_kill = []
    for pending_s in (0.0, 600.0):
        world = World(Auto(), delays_s=lambda _: one(6, 1.0), pending_s=pending_s)
        world.run(STEPS)
        steps = [
            seen.step
            for seen, actions in world.log
            if any(isinstance(action, KillRestart) for action in actions)
        ]
        steps_of_kill.append(steps[0] if steps else STEPS)
    assert steps_of_kill[0] < steps_of_kill[1]


def test_a_slow_server_is_replaced() -> None:
    world = World(Auto(), server_delays_s=[0.0, 0.0, 1.5, 0.0])
    jct_s = world.run(STEPS)
    assert world.server_restarts.tolist() == [0, 0, 1, 0]
    assert jct_s <= 1.10 * clairvoyant_s(world, STEPS)


def test_delays_that_hit_another_worker_every_step_are_answered_by_not_waiting() -> None:
    rng = np.random.default_rng(3)
    world = World(Auto(), delays_s=lambda _: 3.0 * (rng.random(8) < 0.05), cures=False)
    jct_s = world.run(STEPS)
    assert any(action.late and action.grace_s for action in world.actions(Partial))
    rng = np.random.default_rng(3)
    waiting = World(Nothing(), delays_s=lambda _: 3.0 * (rng.random(8) < 0.05), cures=False)
    assert jct_s < 0.95 * waiting.run(STEPS)


@pytest.mark.parametrize("other", [Nothing(), NonDedicated(), LbBsp(), Backup(), LeaveOut()])
@pytest.mark.parametrize(
    "delay_s", [1.0, *(pytest.param(one, marks=pytest.mark.soak) for one in (0.5, 2.5))]
)
def test_no_other_solution_is_faster_under_stragglers(other, delay_s: float) -> None:  # type: ignore[no-untyped-def]
    def delays_s(t_s: float) -> np.ndarray:
        return np.maximum(0.5 * delay_s * transient(t_s), one(6, delay_s))

    assert World(Auto(), delays_s=delays_s).run(STEPS) < World(other, delays_s=delays_s).run(STEPS)


# ------------------------------------------------------------------- single observations


def seen_worker(
    index: int, compute_s: float, *, size: int = EVEN, restarts: int = 0, iterations: int = 100
) -> WorkerSeen:
    return WorkerSeen(
        node=f"w{index}",
        batch_size=size,
        short=Pace(
            iterations=100, seconds=200.0, samples=size, compute_s=compute_s, bpt_s=compute_s + 0.1
        ),
        regime=Regime(
            since_s=0.0,
            iterations=iterations,
            points=(Point(size, iterations, compute_s, 40.0),),
        ),
        restarts=restarts,
    )


def seen_job(times_s: list[float], **changes: object) -> Observation:
    seen = Observation(
        now_s=300.0,
        step=100,
        mode="bsp",
        global_batch=EVEN * len(times_s),
        steps_left=1000,
        workers=tuple(seen_worker(index, time_s) for index, time_s in enumerate(times_s)),
        worker_restart=RestartCost(start_s=30.0, restore_s=10.0, redo_s=2.0),
        server_restart=RestartCost(start_s=30.0, stall_s=1.0),
    )
    return msgspec.structs.replace(seen, **changes)


def test_a_decision_is_a_function_of_the_observation() -> None:
    seen = seen_job([2.0, 2.0, 3.5, 2.0])
    assert Auto().decide(seen) == Auto().decide(seen)


def test_nothing_is_decided_before_anything_was_measured() -> None:
    workers = tuple(WorkerSeen(node=f"w{index}", batch_size=EVEN) for index in range(3))
    assert Auto().decide(seen_job([2.0], workers=workers, global_batch=3 * EVEN)) == []


@pytest.mark.parametrize("mode", ["bsp", "allreduce"])
def test_a_single_iteration_tells_of_nobody_that_it_is_slow(mode: str) -> None:
    def decided(iterations: int) -> bool:
        workers = tuple(
            seen_worker(index, time_s, iterations=iterations)
            for index, time_s in enumerate([2.0, 3.0, 9.0])
        )
        seen = msgspec.structs.replace(seen_job([2.0, 3.0, 9.0], mode=mode), workers=workers)
        return Auto().decide(seen) != []

    assert not decided(1)
    assert decided(2)


def test_nothing_is_decided_while_somebody_may_be_slow_in_the_first_iteration() -> None:
    first = tuple(seen_worker(index, time_s, iterations=1) for index, time_s in enumerate([2, 3]))
    silent = WorkerSeen(node="w2", batch_size=EVEN)
    seen = seen_job([2.0, 3.0, 2.0])
    assert Auto().decide(msgspec.structs.replace(seen, workers=(*first, silent))) == []


def test_the_whole_step_is_divided() -> None:
    actions = Auto(max_restarts=0).decide(seen_job([2.0, 2.0, 3.0, 2.0]))
    (action,) = [action for action in actions if isinstance(action, AdjustBatch)]
    assert sum(share.batch_size for share in action.shares.values()) == 4 * EVEN
    # Delay 1.0 s and slope 2 ms: level at (4 * 2 + 1) / 4 = 2.25 s.
    assert action.shares["w2"].batch_size == pytest.approx(625, abs=2)
    assert "a step should take 2.25 s instead of 3 s" in action.reason
    assert action.gain_s > 0.0


def test_short_steps_of_one_kind_take_the_place_of_the_other() -> None:
    """One action changes what is in force to anything else."""
    for new, present in itertools.permutations(
        (
            Patience(),
            Patience(left_out=1),
            Patience(left_out=1, late=9, grace_s=0.5),
            Patience(left_out=3, chunks=4),
        ),
        2,
    ):
        (action,) = _patience(new, present, "")
        assert isinstance(action, Partial)
        assert Patience(action.left_out, action.late, action.grace_s, action.chunks) == new


def with_trail(seen: Observation, ratios: np.ndarray) -> Observation:
    """Each worker's steps took so many times what is usual for it, by step and worker."""
    workers = []
    for index, each in enumerate(seen.workers):
        assert each.regime is not None
        (point,) = each.regime.points
        trail = tuple(
            Stretch(2.0 * (step + 1), 2.0, 1, point.batch_size, taken_s, taken_s)
            for step, taken_s in enumerate((point.compute_s * ratios[:, index]).tolist())
        )
        regime = msgspec.structs.replace(each.regime, trail=trail, scatter=0.02)
        workers.append(msgspec.structs.replace(each, regime=regime))
    return msgspec.structs.replace(seen, workers=tuple(workers))


def test_steps_that_a_worker_had_no_samples_of_say_nothing_of_it() -> None:
    ratios = np.random.default_rng(1).lognormal(0.0, 0.3, (40, 4))
    seen = with_trail(seen_job([2.0, 2.0, 2.0, 6.0]), ratios)
    some = seen.workers[0]
    assert some.regime is not None
    trail = tuple(msgspec.structs.replace(each, samples=0.0) for each in some.regime.trail[:20])
    for of_none in (trail, (*trail, *some.regime.trail[20:])):
        regime = msgspec.structs.replace(some.regime, trail=of_none)
        changed = msgspec.structs.replace(some, regime=regime)
        actions = Auto().decide(msgspec.structs.replace(seen, workers=(changed, *seen.workers[1:])))
        assert actions, "the last one is three times as slow"


def late_now_and_then(seen: Observation) -> Observation:
    """One iteration in 40 of every worker takes six times as long."""
    count = len(seen.workers)
    steps = np.arange(60)[:, np.newaxis] + 8 * np.arange(count)
    scatter = np.random.default_rng(0).normal(1.0, 0.01, steps.shape)
    return with_trail(seen, scatter * np.where(steps % 40 == 0, 6.0, 1.0))


UNEVEN = (700, 620, 500, 380, 300)


def uneven_job(**changes: object) -> Observation:
    """Levelled already: whoever has more is faster."""
    workers = tuple(seen_worker(i, 2.0, size=size) for i, size in enumerate(UNEVEN))
    return late_now_and_then(seen_job([2.0], workers=workers, global_batch=sum(UNEVEN), **changes))


def test_whoever_is_late_may_be_left_out_however_large_its_share() -> None:
    (action,) = Auto(max_restarts=0).decide(uneven_job())
    assert isinstance(action, Partial)
    assert action.chunks == 1, "who is late is so by a delay, which chunks would multiply"
    assert max(UNEVEN) <= action.late < max(UNEVEN) + min(UNEVEN), "one of five"
    assert 0.0 < action.grace_s < 1.0
    assert action.left_out == 0


def test_a_grace_in_force_is_what_it_was_taken_for() -> None:
    seen = uneven_job()
    (action,) = Auto(max_restarts=0).decide(seen)
    assert isinstance(action, Partial)
    assert Auto(max_restarts=0).decide(uneven_job(late=action.late, grace_s=action.grace_s)) == []


def test_a_grace_stays_until_it_is_known_who_is_late() -> None:
    seen = seen_job([2.0] * 5, late=EVEN, grace_s=0.5)
    assert Auto(max_restarts=0).decide(seen) == [], "as after a restart of the master"


def test_where_limits_leave_no_division_a_straggler_is_restarted_all_the_same() -> None:
    seen = seen_job([2.0] * 7 + [8.0], steps_left=8000)
    limited = tuple(msgspec.structs.replace(each, batch_limit=EVEN // 2) for each in seen.workers)
    actions = Auto().decide(msgspec.structs.replace(seen, workers=limited))
    assert [each.node for each in actions if isinstance(each, KillRestart)] == ["w7"]
    assert not [each for each in actions if isinstance(each, AdjustBatch)]


def test_accumulation_stays_as_it_is() -> None:
    workers = tuple(
        msgspec.structs.replace(worker, accumulation=2)
        for worker in seen_job([2.0, 2.0, 3.0, 2.0]).workers
    )
    seen = seen_job([2.0] * 4, workers=workers, global_batch=8 * EVEN)
    (action,) = Auto(max_restarts=0).decide(seen)
    assert isinstance(action, AdjustBatch)
    assert {share.accumulation for share in action.shares.values()} == {2}
    assert sum(2 * share.batch_size for share in action.shares.values()) == 8 * EVEN


def test_nobody_gets_a_batch_above_its_limit() -> None:
    workers = tuple(
        msgspec.structs.replace(worker, batch_limit=1100)
        for worker in seen_job([2.0, 2.0, 3.0, 2.0]).workers
    )
    (action,) = Auto(max_restarts=0).decide(seen_job([2.0] * 4, workers=workers))
    assert isinstance(action, AdjustBatch)
    assert max(share.batch_size for share in action.shares.values()) == 1100


def test_classes_of_hardware_are_each_their_own_measure() -> None:
    workers = tuple(
        msgspec.structs.replace(worker, kind="old" if index < 2 else "new", batch_size=size)
        for index, (worker, size) in enumerate(
            zip(seen_job([2.0] * 4).workers, (500, 500, 1500, 1500), strict=True)
        )
    )
    workers = tuple(
        msgspec.structs.replace(
            worker,
            regime=Regime(
                since_s=0.0, iterations=100, points=(Point(worker.batch_size, 100, 2.0, 40.0),)
            ),
        )
        for worker in workers
    )
    # The old ones are three times as slow per sample; they are level, and healthy for what they are.
    assert Auto().decide(seen_job([2.0] * 4, workers=workers)) == []


def test_all_reduce_has_no_partial_steps() -> None:
    actions = Auto(max_restarts=0).decide(seen_job([2.0, 2.0, 9.0, 2.0], mode="allreduce"))
    assert [type(action) for action in actions] == [AdjustBatch]


def test_restarts_are_limited_at_once() -> None:
    times_s = [2.0] * 5 + [6.0] * 2
    auto = Auto(restarts_at_once=0.1)
    actions = auto.decide(seen_job(times_s))
    assert len([action for action in actions if isinstance(action, KillRestart)]) == 1
    actions = auto.decide(seen_job(times_s, absent=1))
    assert [action for action in actions if isinstance(action, KillRestart)] == []


def test_a_restart_says_what_it_gains_and_costs() -> None:
    actions = Auto().decide(seen_job([2.0, 2.0, 6.0, 2.0]))
    (restart,) = [action for action in actions if isinstance(action, KillRestart)]
    assert restart.node == "w2"
    assert 0.0 < restart.cost_s < restart.gain_s
    assert "times the usual" in restart.reason


def with_short(seen: Observation, place: int, compute_s: float) -> Observation:
    """Over the short window a worker took that; its regime is as it was."""
    workers = list(seen.workers)
    short = msgspec.structs.replace(workers[place].short, compute_s=compute_s)
    workers[place] = msgspec.structs.replace(workers[place], short=short)
    return msgspec.structs.replace(seen, workers=tuple(workers))


def test_nobody_is_called_slow_to_whom_the_same_decision_gives_more() -> None:
    seen = with_short(seen_job([2.0, 2.0, 3.5, 2.0]), 0, 9.0)
    auto = Auto(max_restarts=0)
    (action,) = [action for action in auto.decide(seen) if isinstance(action, AdjustBatch)]
    assert action.shares["w0"].batch_size > EVEN > action.shares["w2"].batch_size
    compared = auto.compared(seen, action)
    assert max(compared.times_s, key=lambda node: compared.times_s[node]) == "w2"
    assert compared.times_s["w0"] == pytest.approx(2.0)


def test_a_restart_is_told_by_the_times_that_its_reason_has() -> None:
    seen = with_short(seen_job([2.0, 2.0, 6.0, 2.0]), 2, 2.5)
    (restart,) = [one for one in Auto().decide(seen) if isinstance(one, KillRestart)]
    compared = Auto().compared(seen, restart)
    assert compared.usual_s is not None
    slowness = compared.times_s["w2"] / compared.usual_s
    assert restart.reason.startswith(f"{slowness:.2f} times the usual")


def test_a_restart_of_a_node_that_is_not_seen_is_told_by_the_windows() -> None:
    seen = with_short(seen_job([2.0, 2.0, 6.0, 2.0]), 2, 2.5)
    restart = KillRestart(node="w9")
    assert Auto().compared(seen, restart) == Solution().compared(seen, restart)


@pytest.mark.parametrize(
    "change",
    [
        {"pending_s": 3000.0},
        {"steps_left": 5},
        {"worker_restart": RestartCost(start_s=3000.0)},
    ],
)
def test_a_restart_that_costs_more_than_the_straggler_is_not_made(
    change: dict[str, object],
) -> None:
    actions = Auto().decide(seen_job([2.0, 2.0, 6.0, 2.0], **change))
    assert [action for action in actions if isinstance(action, KillRestart)] == []


def test_a_suspected_change_is_answered_by_shares_and_not_by_a_restart() -> None:
    seen = seen_job([2.0, 2.0, 6.0, 2.0])
    worker = seen.workers[2]
    assert worker.regime is not None
    doubtful = msgspec.structs.replace(
        worker, regime=msgspec.structs.replace(worker.regime, verified=False)
    )
    workers = (*seen.workers[:2], doubtful, seen.workers[3])
    kinds = {type(each) for each in Auto().decide(seen_job([2.0] * 4, workers=workers))}
    assert kinds == {AdjustBatch, Partial}


# --------------------------------------------------------------------------- asp and ssp


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_leases_are_left_to_the_master_that_sizes_them_by_speed(mode: str) -> None:
    assert Auto(max_restarts=0).decide(seen_job([2.0, 2.0, 4.0], mode=mode)) == []


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_a_straggler_is_restarted_in_asynchronous_modes(mode: str) -> None:
    seen = seen_job([2.0] * 7 + [8.0], mode=mode, steps_left=8000)
    actions = Auto().decide(seen)
    assert [each.node for each in actions if isinstance(each, KillRestart)] == ["w7"]


def test_a_straggler_costs_less_in_asp_than_in_bsp_and_is_borne_for_longer() -> None:
    def restarts(mode: str) -> list[str]:
        seen = seen_job([2.0] * 7 + [2.3], mode=mode, steps_left=8000, now_s=100.0)
        return [each.node for each in Auto().decide(seen) if isinstance(each, KillRestart)]

    assert restarts("ssp") == ["w7"]
    assert restarts("asp") == []


@pytest.mark.parametrize(
    ("mode", "workers", "iterations", "replaced"),
    [
        ("asp", 4, 100, True),
        ("asp", 4, 3, True),
        ("asp", 4, 2, False),
        ("asp", 20, 2, True),
        ("asp", 20, 1, False),
        ("bsp", 4, 9, False),
        ("bsp", 4, 10, True),
    ],
)
def test_a_server_is_replaced_once_ten_updates_were_slow(
    mode: str, workers: int, iterations: int, replaced: bool
) -> None:
    regime = Regime(since_s=0.0, iterations=iterations, points=(Point(0, iterations, 0.1),))
    slow = Regime(since_s=0.0, iterations=iterations, points=(Point(0, iterations, 1.1),))
    servers = tuple(
        ServerSeen(node=f"s{index}", regime=each)
        for index, each in enumerate([regime, slow, regime])
    )
    actions = Auto().decide(seen_job([2.0] * workers, mode=mode, servers=servers))
    restarted = [action.node for action in actions if isinstance(action, KillRestart)]
    assert restarted == ["s1"] * replaced


def test_the_shares_of_a_plan_are_whole_and_at_least_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        times_s = (SLOPE_S * EVEN * rng.uniform(0.5, 4.0, 12)).tolist()
        actions = Auto().decide(seen_job(times_s))
        (division,) = [action for action in actions if isinstance(action, AdjustBatch)]
        sizes = [share.batch_size for share in division.shares.values()]
        assert len(sizes) == 12
        assert min(sizes) >= 1
        assert sum(sizes) == 12 * EVEN


# ---------------------------------------------------------------------- no harm


HEALTHY = Path(__file__).parent / "recorded" / "healthy_under_load.jsonl"
"""Observations of a job of three equal workers on two cores that did other work, too."""


def healthy() -> list[Observation]:
    seen = [
        msgspec.json.decode(line, type=Observation) for line in HEALTHY.read_bytes().splitlines()
    ]
    assert len(seen) >= 10
    return seen


def test_nobody_is_restarted_on_a_machine_that_does_other_work() -> None:
    slowest = [max(slowness(seen, each.node) or 1.0 for each in seen.workers) for seen in healthy()]
    assert max(slowest) > 2.0, "some looked slow"
    for seen in healthy():
        kills = [each for each in Auto().decide(seen) if isinstance(each, KillRestart)]
        assert kills == []


def test_what_has_been_changed_lately_is_not_changed_once_more() -> None:
    """Two changes in any minute."""
    slow = seen_job([2.0, 2.0, 6.0, 2.0])

    def decided(*changes_s: float) -> bool:
        seen = msgspec.structs.replace(slow, changes_s=changes_s)
        return any(isinstance(each, AdjustBatch) for each in Auto(max_restarts=0).decide(seen))

    assert decided()
    assert decided(1.0)
    assert not decided(1.0, 2.0)
    assert not decided(58.0, 59.0)
    assert decided(2.0, 61.0)
    assert decided(61.0, 62.0)


def test_a_plan_is_made_for_how_long_slow_spells_last_in_this_job() -> None:
    """Where they are over within seconds, a worker that is slow now keeps most of its share."""
    slow = seen_job([2.0, 2.0, 6.0, 2.0])
    worker = slow.workers[2]
    assert worker.regime is not None
    young = msgspec.structs.replace(worker.regime, since_s=slow.now_s - 3.0)
    workers = (*slow.workers[:2], msgspec.structs.replace(worker, regime=young), slow.workers[3])
    spells = LifeTable()
    for _ in range(100):
        spells = spells.with_spell(3.5)
    shares = []
    for table in (LifeTable(), spells):
        seen = msgspec.structs.replace(slow, workers=workers, worker_spells=table)
        adjusted = [each for each in Auto().decide(seen) if isinstance(each, AdjustBatch)]
        shares.append(adjusted[0].shares[worker.node].num_samples if adjusted else 1000)
    assert shares[0] < 0.6 * shares[1]


def gains(times_s: list[float], *workers: int, **in_force: object) -> list[float]:
    """What restarts of these would save of a step with all-reduce."""
    seen = seen_job(times_s, mode="allreduce", **in_force)
    step = StepModel(seen, Fleet.of(seen.workers, 0.01), 2.0, np.ones(len(times_s)))
    return [each.gain for each in step.restarts(workers)]


def test_a_worker_that_nobody_waits_for_saves_nothing_by_its_restart() -> None:
    """With all-reduce the slowest holds all up even with one sample; the other one does not."""
    slowest, other = gains([2.0, 2.0, 2.0, 2.0, 3.0, 30.0], 5, 4)
    assert slowest > 0.9
    assert 0.0 < other < 0.02, "once the slowest is healed"
    assert gains([2.0, 2.0, 2.0, 2.0, 3.0, 30.0], 4) == [0.0]


def test_a_worker_that_steps_do_without_saves_only_its_own_work() -> None:
    (gain,) = gains([2.0] * 9 + [20.0], 9, left_out=EVEN)
    assert gain == pytest.approx(0.01, abs=0.005), "a tenth of a step of 2 s, of one of 20 s"


def test_a_worker_that_has_one_sample_would_do_its_part_again() -> None:
    seen = seen_job([2.0] * 9 + [20.0], left_out=1)
    beyond = msgspec.structs.replace(seen.workers[9], batch_size=1)
    seen = msgspec.structs.replace(seen, workers=(*seen.workers[:9], beyond))
    step = StepModel(seen, Fleet.of(seen.workers, 0.01), 2.0, np.ones(10))
    (restart,) = step.restarts([9])
    assert restart.gain == pytest.approx(0.1, abs=0.02)


def test_several_that_hold_all_up_are_worth_restarts_together() -> None:
    assert gains([2.0, 2.0, 2.0, 2.0, 30.0, 30.0], 4) == [0.0]
    assert min(gains([2.0, 2.0, 2.0, 2.0, 30.0, 30.0], 4, 5)) > 0.4


@pytest.mark.parametrize("mode", ["bsp", "allreduce"])
def test_where_all_wait_for_processors_the_slowest_of_them_is_so_by_chance(mode: str) -> None:
    def decided(slowest_s: float, *stolen: float) -> bool:
        seen = seen_job([2.0, 2.0, slowest_s], mode=mode)
        workers = tuple(
            msgspec.structs.replace(
                each,
                short=Pace(
                    iterations=50, seconds=100.0, samples=1000.0, compute_s=2.0, stolen_s=2.0 * part
                ),
            )
            for each, part in zip(seen.workers, stolen, strict=True)
        )
        seen = msgspec.structs.replace(seen, workers=workers)
        return Auto(max_restarts=0).decide(seen) != []

    assert not decided(3.7, 0.8, 0.9, 1.0)
    assert decided(6.0, 0.0, 0.0, 0.9), "one node's machine does other work: that is no chance"


def test_a_member_of_a_group_keeps_two_samples_so_that_its_recovery_is_seen() -> None:
    """Of a single one it would compute nothing (BatchNorm could not normalise it)."""
    actions = Auto(max_restarts=0).decide(seen_job([2.0, 2.0, 5.0, 2.0], mode="allreduce"))
    (action,) = [each for each in actions if isinstance(each, AdjustBatch)]
    assert min(share.num_samples for share in action.shares.values()) == 2


@pytest.mark.parametrize(("server_s", "replaced"), [(0.001, []), (0.1, ["s1"])])
def test_what_is_left_of_an_asynchronous_job_has_its_requests(
    server_s: float, replaced: list[str]
) -> None:
    """Of 900 batches that two workers compute in 0.01 s each, 5 s are left without them."""
    pace = Pace(iterations=50, seconds=5.0, samples=1.0, compute_s=0.01, server_s=server_s)
    points = (Point(1000, 100, 0.01),)
    regime = Regime(since_s=0.0, iterations=100, points=points)
    workers = tuple(
        WorkerSeen(node=name, batch_size=1000, short=pace, regime=regime) for name in ("w0", "w1")
    )
    servers = tuple(
        ServerSeen(
            node=name,
            regime=Regime(
                since_s=96.0, iterations=30, points=(Point(0, 30, time_s),), is_cut=time_s > 0.05
            ),
        )
        for name, time_s in (("s0", 0.005), ("s1", 0.1))
    )
    seen = Observation(
        now_s=100.0,
        step=100,
        mode="asp",
        global_batch=1000,
        steps_left=900,
        workers=workers,
        servers=servers,
        server_restart=RestartCost(start_s=8.0, stall_s=0.0),
    )
    assert [action.node for action in Auto().decide(seen) if isinstance(action, KillRestart)] == (
        replaced
    )
