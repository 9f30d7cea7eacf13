"""The paper's solutions and its baselines, rule by rule."""

import msgspec
import pytest
from paceline_experiments.baselines.lb_bsp import LbBsp

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy.solution import Solution
from paceline.features.stragglers.policy.solutions.dedicated import Dedicated
from paceline.features.stragglers.policy.solutions.non_dedicated import NonDedicated
from paceline.features.stragglers.policy.solutions.static import (
    Backup,
    Even,
    LeaveOut,
    Nothing,
    Rates,
)
from paceline.features.stragglers.policy.solvers import NoExactSum
from paceline.policy.actions import (
    AdjustBatch,
    AdjustRate,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.observation import Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.history import ProfiledTimes
from paceline.policy.stats.windows import Pace

SIZE = 100


def pace(compute_s: float = 0.0, server_s: float = 0.0, size: int = SIZE) -> Pace:
    speed = size / compute_s if compute_s else 0.0
    return Pace(
        iterations=100,
        seconds=200.0,
        samples=size,
        throughput=speed,
        smoothed=speed,
        compute_s=compute_s,
        server_s=server_s,
    )


def job(
    short_s: list[float | None],
    long_s: list[float | None] | None = None,
    servers_s: list[float] | None = None,
    **changes: object,
) -> Observation:
    """By worker: T^w over L_trans and over L_per; by server: T^s over L_per."""
    workers = tuple(
        WorkerSeen(
            node=f"w{index}",
            batch_size=SIZE,
            short=pace(short) if short else None,
            long=pace(long) if long else None,
        )
        for index, (short, long) in enumerate(
            zip(short_s, long_s or [None] * len(short_s), strict=True)
        )
    )
    servers = tuple(
        ServerSeen(node=f"s{index}", long=pace(server_s=each))
        for index, each in enumerate(servers_s or [])
    )
    seen = Observation(
        now_s=600.0,
        step=300,
        mode="bsp",
        global_batch=SIZE * len(workers),
        steps_left=None,
        workers=workers,
        servers=servers,
    )
    return msgspec.structs.replace(seen, **changes)


def sizes(action: AnyAction) -> list[int]:
    assert isinstance(action, AdjustBatch)
    return [share.batch_size for share in action.shares.values()]


# ------------------------------------------------------------------------------ AntDT-ND


def test_nd_adjusts_batches_when_one_takes_lambda_times_the_mean() -> None:
    # Mean 4/3 s; 2 s is 1.5 times that.
    (action,) = NonDedicated().decide(job([1.0, 1.0, 2.0]))
    # Speeds 100, 100, 50: equation 3 gives 120, 120, 60.
    assert sizes(action) == [120, 120, 60]
    assert "w2" in action.reason


def test_nd_does_not_see_a_straggler_below_lambda() -> None:
    assert NonDedicated().decide(job([1.0, 1.0, 1.99])) == []


def test_nd_counts_the_straggler_into_the_mean() -> None:
    # 1.9 times the others, but 1.46 times a mean that it is in.
    assert NonDedicated().decide(job([1.0, 1.0, 1.9])) == []
    assert NonDedicated(slowness=1.3).decide(job([1.0, 1.0, 1.9])) != []


def test_nd_takes_the_mean_of_speeds_and_not_the_speed_of_means() -> None:
    seen = job([1.0, 1.0, 2.0])
    short = msgspec.structs.replace(pace(2.0), throughput=60.0)
    slow = msgspec.structs.replace(seen.workers[2], short=short)
    (action,) = NonDedicated().decide(
        msgspec.structs.replace(seen, workers=(*seen.workers[:2], slow))
    )
    # Speeds 100, 100, 60: 1.16 s, where 115, 115, 70 would take 1.167 s.
    assert sizes(action) == [116, 115, 69]


def test_nd_takes_a_worker_that_was_just_started_for_one_like_the_others() -> None:
    (action,) = NonDedicated().decide(job([1.0, 1.0, 1.0, 3.0, None]))
    # Speeds 100, 100, 100, 33.3 and their mean, 83.3.
    assert sizes(action)[4] == 100
    assert sum(sizes(action)) == 500


def test_nd_restarts_who_is_slow_over_the_long_window() -> None:
    actions = NonDedicated().decide(job([1.0, 1.0, 1.0], long_s=[1.0, 1.0, 2.0]))
    assert [action.node for action in actions if isinstance(action, KillRestart)] == ["w2"]
    assert len(actions) == 1


def test_nd_waits_until_the_long_window_is_full() -> None:
    actions = NonDedicated().decide(job([1.0, 1.0, 2.0], long_s=[None, None, None]))
    assert [type(action) for action in actions] == [AdjustBatch]


def test_nd_does_both_against_one_that_is_slow_over_both_windows() -> None:
    actions = NonDedicated().decide(job([1.0, 1.0, 2.0], long_s=[1.0, 1.0, 2.0]))
    assert [type(action) for action in actions] == [AdjustBatch, KillRestart]


def test_nd_restarts_a_slow_server() -> None:
    (action,) = NonDedicated().decide(job([1.0, 1.0], servers_s=[0.1, 0.1, 0.1, 0.9]))
    assert isinstance(action, KillRestart)
    assert action.node == "s3"


@pytest.mark.parametrize(
    ("pending_s", "restarted"), [(0.0, True), (120.0, True), (120.1, False), (None, True)]
)
def test_nd_restarts_nobody_on_a_busy_cluster(pending_s: float | None, restarted: bool) -> None:
    seen = job([1.0] * 3, long_s=[1.0, 1.0, 2.0], servers_s=[0.1, 0.1, 0.9], pending_s=pending_s)
    assert bool(NonDedicated().decide(seen)) is restarted


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_nd_only_restarts_in_asynchronous_modes(mode: str) -> None:
    seen = job([1.0, 1.0, 2.0], long_s=[1.0, 1.0, 2.0], mode=mode)
    assert [type(action) for action in NonDedicated().decide(seen)] == [KillRestart]


def test_nd_orders_no_plan_that_is_in_force() -> None:
    seen = job([1.0, 1.0, 2.0])
    workers = tuple(
        msgspec.structs.replace(worker, batch_size=size)
        for worker, size in zip(seen.workers, [120, 120, 60], strict=True)
    )
    assert NonDedicated().decide(msgspec.structs.replace(seen, workers=workers)) == []


def test_nd_is_quiet_before_anything_was_measured() -> None:
    assert NonDedicated().decide(job([None, None])) == []


def test_nd_is_asked_as_often_as_the_paper_says() -> None:
    assert (NonDedicated().every_steps, NonDedicated().every_s) == (100, 30.0)


# ----------------------------------------------------------------------------- baselines


def test_lb_bsp_follows_the_smoothed_speed_without_a_threshold() -> None:
    (action,) = LbBsp().decide(job([1.0, 1.0, 1.1]))
    assert sizes(action) == [103, 103, 94]


@pytest.mark.parametrize("seen", [job([1.0, None, 2.0]), job([1.0, 2.0], mode="asp")])
def test_lb_bsp_needs_everybodys_speed_and_a_common_step(seen: Observation) -> None:
    assert LbBsp().decide(seen) == []


def test_even_takes_back_uneven_shares() -> None:
    seen = job([1.0, 1.0, 1.0], global_batch=301)
    uneven = msgspec.structs.replace(seen.workers[0], batch_size=250)
    (action,) = Even().decide(msgspec.structs.replace(seen, workers=(uneven, *seen.workers[1:])))
    assert sizes(action) == [101, 100, 100]
    assert Even().decide(job([1.0, 1.0, 1.0])) == []


def test_shares_are_whole_where_several_batches_do_not_divide_them() -> None:
    seen = job([1.0, 2.0, 4.0])
    workers = tuple(msgspec.structs.replace(each, accumulation=2) for each in seen.workers)
    for solution in (Even(), LbBsp(), NonDedicated()):
        (action,) = solution.decide(msgspec.structs.replace(seen, workers=workers))
        assert isinstance(action, AdjustBatch)
        parts = [share.batch_size * share.accumulation for share in action.shares.values()]
        assert sum(parts) == seen.global_batch


def test_even_fixes_everybodys_part_of_the_epoch_in_asp() -> None:
    (action,) = Even().decide(job([1.0, 2.0], mode="asp"))
    assert isinstance(action, AdjustBatch)
    assert action.fixed
    assert Even().decide(job([1.0, 2.0], mode="asp", fixed=True)) == []


@pytest.mark.parametrize(
    ("workers", "absent", "count"), [(20, 0, 2), (21, 0, 3), (19, 1, 2), (1, 0, 0)]
)
def test_a_tenth_of_the_workers_are_backups(workers: int, absent: int, count: int) -> None:
    actions = Backup().decide(job([1.0] * workers, absent=absent))
    assert [action.count for action in actions if isinstance(action, BackupWorkers)] == (
        [count] if count else []
    )


def test_rates_are_adjusted_once_where_parameters_get_stale() -> None:
    (action,) = Rates().decide(job([1.0, 2.0], mode="asp"))

    assert isinstance(action, AdjustRate)
    assert (action.factors, action.by_staleness) == ({}, True)
    assert Rates().decide(job([1.0, 2.0], mode="asp", by_staleness=True)) == []
    assert Rates().decide(job([1.0, 2.0])) == []


def test_backup_workers_are_ordered_once_and_in_bsp_only() -> None:
    assert Backup(count=6).decide(job([1.0] * 20, backup=6)) == []
    assert Backup(count=6).decide(job([1.0] * 20, mode="asp")) == []
    (action,) = Backup(count=6).decide(job([1.0] * 20))
    assert isinstance(action, BackupWorkers)
    assert action.count == 6


def test_partial_steps_are_ordered_once_and_in_bsp_only() -> None:
    (action,) = LeaveOut(left_out=0.2, chunks=5).decide(job([1.0] * 10))
    assert isinstance(action, Partial)
    assert (action.left_out, action.chunks) == (200, 5)
    assert LeaveOut(left_out=0.2, chunks=5).decide(job([1.0] * 10, left_out=200, chunks=5)) == []
    assert LeaveOut().decide(job([1.0] * 10, mode="ssp")) == []


def test_none_does_nothing() -> None:
    assert Nothing().decide(job([1.0, 9.0], long_s=[1.0, 9.0], servers_s=[0.1, 9.0])) == []


def test_a_solution_that_does_not_say_how_it_decides_is_named() -> None:
    class Mine(Solution, frozen=True):
        pass

    with pytest.raises(NotImplementedError, match="Mine"):
        Mine().decide(job([1.0]))


# ------------------------------------------------------------------------------ AntDT-DD

SPEEDS = {"V100": 3.0, "P100": 1.0}
LIMIT, SATURATED = 128, 32


def batch_s(kind: str, size: int) -> float:
    """max(t0, B / v): flat below 32 samples."""
    return max(size, SATURATED) / SPEEDS[kind] / 32.0


def mixed(measured: dict[str, dict[int, float]] | None = None, **changes: object) -> Observation:
    """4 V100 and 4 P100, a global batch of 768 (section VII-C)."""
    workers = []
    for index in range(8):
        kind = "V100" if index < 4 else "P100"
        profile = tuple(
            ProfiledTimes(batch_size=size, batches=5, batch_s=time_s)
            for size, time_s in sorted((measured or {}).get(kind, {}).items())
        )
        workers.append(
            WorkerSeen(
                node=f"w{index}", batch_size=96, kind=kind, batch_limit=LIMIT, profile=profile
            )
        )
    seen = job([1.0] * 8, mode="allreduce", global_batch=768)
    return msgspec.structs.replace(seen, workers=tuple(workers), **changes)


DD = Dedicated(largest=LIMIT)
MEASURED = {kind: {size: batch_s(kind, size) for size in (8, 16, 32, 64, 128)} for kind in SPEEDS}


def test_dd_measures_five_sizes_of_every_class_and_then_divides() -> None:
    measured: dict[str, dict[int, float]] = {"V100": {}, "P100": {}}
    order = []
    while True:
        (action,) = DD.decide(mixed(measured))
        if not isinstance(action, Profile):
            break
        assert action.steps == 5
        assert len(action.sizes) == 8
        (size,) = set(action.sizes.values())
        order.append(size)
        for kind, sizes_of in measured.items():
            sizes_of[size] = batch_s(kind, size)
    assert order == [8, 16, 32, 64, 128]
    assert isinstance(action, AdjustBatch)


def test_what_is_told_of_an_action_is_what_the_rule_looked_at() -> None:
    seen = mixed(MEASURED)
    (action,) = DD.decide(seen)
    compared = DD.compared(seen, action).times_s
    assert compared["w7"] > compared["w0"] == pytest.approx(batch_s("V100", 96))
    seen = job([1.0, 1.0, 1.1])
    (action,) = LbBsp().decide(seen)
    assert LbBsp().compared(seen, action).times_s == pytest.approx({"w0": 1, "w1": 1, "w2": 1.1})
    assert LbBsp().compared(job([1.0, None]), action).times_s == {"w0": 1.0}


def test_dd_does_not_measure_what_the_slowest_class_never_gets() -> None:
    sizes = (12, 24, 48, 96)
    measured = {kind: {size: batch_s(kind, size) for size in sizes} for kind in SPEEDS}
    (action,) = Dedicated().decide(limited(mixed(measured), *[None] * 8))
    assert isinstance(action, Profile)
    assert action.sizes == {f"w{index}": 192 for index in range(4)}
    measured["V100"][192] = batch_s("V100", 192)
    (action,) = Dedicated().decide(limited(mixed(measured), *[None] * 8))
    assert isinstance(action, AdjustBatch)
    assert action.shares["w0"] == Share(144)
    assert action.shares["w7"] == Share(48)


def with_sums(seen: Observation, sums_s: dict[str, float]) -> Observation:
    """The same where a step costs each class so much beside its batches."""
    paced = tuple(
        msgspec.structs.replace(
            one, short=Pace(iterations=10, seconds=10.0, samples=96.0, message_s=sums_s[one.kind])
        )
        for one in seen.workers
    )
    return msgspec.structs.replace(seen, workers=paced)


def test_dd_gives_less_to_those_for_whom_sums_and_update_take_longer() -> None:
    def shares(sums_s: dict[str, float]) -> dict[str, Share]:
        (action,) = DD.decide(with_sums(mixed(MEASURED), sums_s))
        assert isinstance(action, AdjustBatch)
        return action.shares

    alike = shares({"V100": 1.0, "P100": 1.0})
    assert alike == shares({"V100": 0.0, "P100": 0.0})
    found = shares({"V100": 0.0, "P100": 0.5})
    slow, fast = found["w7"], found["w0"]
    assert slow.batch_size * slow.accumulation < alike["w7"].batch_size * alike["w7"].accumulation
    times_s = {
        kind: one.accumulation * batch_s(kind, one.batch_size)
        for kind, one in (("V100", fast), ("P100", slow))
    }
    assert times_s["P100"] + 0.5 == pytest.approx(times_s["V100"], rel=0.1)


def test_dd_leaves_a_division_that_is_as_good_but_for_what_is_measured_anew() -> None:
    (action,) = DD.decide(with_sums(mixed(MEASURED), {"V100": 0.1, "P100": 0.5}))
    assert isinstance(action, AdjustBatch)
    divided = [
        msgspec.structs.replace(one, batch_size=share.batch_size, accumulation=share.accumulation)
        for one in mixed(MEASURED).workers
        for share in [action.shares[one.node]]
    ]
    now = msgspec.structs.replace(mixed(MEASURED), workers=tuple(divided))
    assert DD.decide(with_sums(now, {"V100": 0.1, "P100": 0.52})) == []
    assert DD.decide(with_sums(now, {"V100": 0.1, "P100": 2.0})) != []


def test_dd_uses_all_that_is_measured_of_a_class_that_is_alone_for_a_while() -> None:
    sizes = (12, 24, 48, 96, 192)
    measured = {"V100": {size: batch_s("V100", size) for size in sizes}}
    fast = limited(mixed(measured), *[None] * 8)
    seen = msgspec.structs.replace(fast, workers=fast.workers[:4], absent=4)
    (action,) = Dedicated().decide(seen)
    assert isinstance(action, AdjustBatch)
    assert set(action.shares.values()) == {Share(192)}
    follows = msgspec.structs.replace(seen, global_batch=4 * 96, batch_per_worker=96)
    assert Dedicated().decide(follows) == [], "as they are; nothing is measured anew"


def test_dd_keeps_the_slow_class_above_saturation() -> None:
    (action,) = DD.decide(mixed(MEASURED))
    assert isinstance(action, AdjustBatch)
    total = sum(share.batch_size * share.accumulation for share in action.shares.values())
    assert total == 768
    assert all(SATURATED <= share.batch_size <= LIMIT for share in action.shares.values())
    # 3 : 1, so 144 and 48 samples: 1.5 s against the 3 s of an even split.
    fast, slow = action.shares["w0"], action.shares["w7"]
    assert fast.batch_size * fast.accumulation == 144
    assert slow == Share(48)


def test_dd_divides_once() -> None:
    (action,) = DD.decide(mixed(MEASURED))
    assert isinstance(action, AdjustBatch)
    seen = mixed(MEASURED)
    workers = tuple(
        msgspec.structs.replace(
            worker,
            batch_size=action.shares[worker.node].batch_size,
            accumulation=action.shares[worker.node].accumulation,
        )
        for worker in seen.workers
    )
    assert DD.decide(msgspec.structs.replace(seen, workers=workers)) == []


def test_dd_reports_a_global_batch_that_cannot_be_had() -> None:
    seen = mixed(MEASURED, global_batch=770)
    with pytest.raises(NoExactSum, match="768 or 772"):
        DD.decide(seen)
    (action,) = Dedicated(largest=LIMIT, nearest=True).decide(seen)
    assert isinstance(action, AdjustBatch)
    total = sum(share.batch_size * share.accumulation for share in action.shares.values())
    assert total in (768, 772)


def limited(seen: Observation, *limits: int | None) -> Observation:
    """What fits into the memory of the first workers is this."""
    workers = tuple(
        msgspec.structs.replace(worker, batch_limit=limit)
        for worker, limit in zip(seen.workers, limits, strict=False)
    )
    return msgspec.structs.replace(seen, workers=(*workers, *seen.workers[len(workers) :]))


def test_dd_goes_up_to_twice_an_even_share_unless_it_is_told_more() -> None:
    (action,) = Dedicated(num_sizes=2).decide(limited(mixed(), *[None] * 8))
    assert isinstance(action, Profile)
    assert set(action.sizes.values()) == {96}
    measured = {kind: {96: batch_s(kind, 96)} for kind in SPEEDS}
    (action,) = Dedicated(num_sizes=2).decide(limited(mixed(measured), *[None] * 8))
    assert isinstance(action, Profile)
    assert set(action.sizes.values()) == {192}


def test_dd_does_not_try_what_does_not_fit_into_the_memory_of_one_of_a_class() -> None:
    fits = {kind: {size: batch_s(kind, size) for size in (8, 16, 32, 64)} for kind in SPEEDS}
    (action,) = DD.decide(limited(mixed(fits), 100))
    assert isinstance(action, Profile)
    assert action.sizes == {f"w{index}": 128 for index in range(4, 8)}
    with pytest.raises(ConfigError, match=r"\[8\] leave 5 % of the memory of w0 free"):
        DD.decide(limited(mixed(fits), 15))


def test_dd_is_for_synchronous_training() -> None:
    assert Dedicated().decide(mixed(mode="asp")) == []
