"""What a profile says: the slow rank, the slow link, both, neither, on clocks that do not agree."""

import random

import msgspec
import pytest
from paceline_experiments.failslow.bytedance import imbalances

from paceline.features.failslow.policy.profile import (
    ProfileSummary,
    ProfileWindow,
    TimedCall,
    summarise,
)
from paceline.features.failslow.policy.suspects import Findings, find_suspects
from tests.unit.failslow.emulated_mesh import EmulatedMesh


def findings(mesh: EmulatedMesh, baseline: ProfileSummary | None = None) -> Findings:
    return find_suspects(summarise(mesh.window()), baseline)


def named(found: Findings) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.kind, one.ranks) for one in found.suspects}


@pytest.fixture(scope="module")
def healthy() -> ProfileSummary:
    return summarise(EmulatedMesh().window())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_stands_out_of_a_healthy_job(seed: int, healthy: ProfileSummary) -> None:
    mesh = EmulatedMesh(seed=seed + 10, noise=0.1)
    assert findings(mesh) == Findings()
    assert findings(EmulatedMesh(seed=seed + 10), healthy) == Findings()


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("with_baseline", [False, True])
def test_the_slow_rank_is_named_and_none_that_it_holds_up(
    rank: int, with_baseline: bool, healthy: ProfileSummary
) -> None:
    found = findings(EmulatedMesh(factors={rank: 1.5}), healthy if with_baseline else None)
    assert named(found) == {("computation", (rank,))}
    (one,) = found.suspects
    assert one.against == ("baseline" if with_baseline else "peers")
    assert one.ratio == pytest.approx(1.5, rel=0.06)
    assert one.lost > 0.1


@pytest.mark.parametrize("group", [(0, 2), (5, 7), (0, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("with_baseline", [False, True])
def test_the_slow_link_is_named(
    group: tuple[int, ...], with_baseline: bool, healthy: ProfileSummary
) -> None:
    found = findings(EmulatedMesh(links={group: 6.0}), healthy if with_baseline else None)
    assert named(found) == {("link", group)}
    assert found.suspects[0].ratio == pytest.approx(6.0, rel=0.1)


def test_a_slow_rank_and_a_slow_link_are_both_named_the_dearer_first() -> None:
    found = findings(EmulatedMesh(factors={3: 3.0}, links={(4, 6): 3.0}))
    assert [one.ranks for one in found.suspects] == [(3,), (4, 6)]
    assert named(found) == {("computation", (3,)), ("link", (4, 6))}


def test_only_a_baseline_tells_that_half_of_a_position_is_slow(healthy: ProfileSummary) -> None:
    slow = (0, 2, 4, 6)
    found = findings(EmulatedMesh(factors=dict.fromkeys(slow, 1.5)), healthy)
    assert named(found) == {("computation", (rank,)) for rank in slow}


def test_what_slows_all_ranks_is_no_rank_but_shared(healthy: ProfileSummary) -> None:
    busy = dict.fromkeys(range(8), 1.5)
    found = findings(EmulatedMesh(factors=busy), healthy)
    assert not found.suspects
    assert found.shared == pytest.approx(1.5, rel=0.05)
    found = findings(EmulatedMesh(factors=busy | {3: 3.0}), healthy)
    assert named(found) == {("computation", (3,))}


def test_a_rank_that_a_busy_machine_slows_a_little_more_than_the_others_is_no_suspect(
    healthy: ProfileSummary,
) -> None:
    busy = {0: 1.05, 1: 1.14, 2: 1.34, 3: 1.0, 4: 1.17, 5: 1.08, 6: 1.24, 7: 1.1}
    assert not findings(EmulatedMesh(factors=busy), healthy).suspects
    assert named(findings(EmulatedMesh(factors=busy | {2: 2.0}), healthy)) == {
        ("computation", (2,))
    }


def test_a_suspect_must_account_for_some_of_the_slowdown(healthy: ProfileSummary) -> None:
    found = findings(EmulatedMesh(factors={3: 8.0, 6: 1.5}), healthy)
    assert named(found) == {("computation", (3,))}
    assert named(findings(EmulatedMesh(factors={3: 1.5, 6: 1.3}), healthy)) == {
        ("computation", (3,)),
        ("computation", (6,)),
    }


def test_links_that_differ_by_nature_are_no_suspects_with_a_baseline() -> None:
    links = {(0, 2): 1.5, (1, 3): 1.2, (0, 4): 1.5, (2, 6): 1.4}
    own = summarise(EmulatedMesh(links=links).window())
    assert named(findings(EmulatedMesh(links=links, seed=2)))
    assert findings(EmulatedMesh(links=links, seed=2), own) == Findings()
    slower = links | {(1, 3): 2.4}
    assert named(findings(EmulatedMesh(links=slower, seed=2), own)) == {("link", (1, 3))}


def test_a_replica_with_more_micro_batches_is_no_suspect(healthy: ProfileSummary) -> None:
    mesh = EmulatedMesh(shared={0: 6, 1: 2})
    assert named(findings(mesh, healthy)) == set()
    mesh = EmulatedMesh(shared={0: 6, 1: 2}, factors={6: 2.0})
    assert named(findings(mesh)) == {("computation", (6,))}


def test_a_stage_that_has_more_to_do_is_an_imbalance_and_no_suspect() -> None:
    mesh = EmulatedMesh(pp=4, factors=dict.fromkeys(range(12, 16), 1.6))
    assert not findings(mesh).suspects
    (one,) = imbalances(summarise(mesh.window()))
    assert one.stage == 3
    assert one.ranks == (12, 13, 14, 15)
    assert one.seconds / one.reference_s == pytest.approx(1.6, rel=0.06)


def test_stages_are_told_apart_by_their_place_in_the_pipeline() -> None:
    mesh = EmulatedMesh(pp=4, tp=1, dp=3, factors={5: 1.5} | dict.fromkeys((6, 7, 8), 1.2))
    summary = summarise(mesh.window())
    assert len({times.position for times in summary.ranks.values()}) == 4
    assert summary.ranks[7].position == "3 ranks by 1; stage 2 of 4"
    assert named(find_suspects(summary)) == {("computation", (5,))}


def test_what_cannot_be_compared_is_to_be_validated() -> None:
    found = findings(EmulatedMesh(tp=1, dp=1, pp=2))
    assert found.lone_ranks == (0, 1)
    assert found.lone_groups == ((0, 1), (1, 0))
    found = findings(EmulatedMesh(tp=1, dp=2, pp=1))
    assert found.lone_groups == ((0, 1),)
    assert not found.lone_ranks
    baseline = summarise(EmulatedMesh(tp=1, dp=1, pp=2).window())
    slow = findings(EmulatedMesh(tp=1, dp=1, pp=2, factors={1: 1.4}), baseline)
    assert named(slow) == {("computation", (1,))}
    assert not slow.lone_ranks + slow.lone_groups


def test_a_rank_that_is_late_now_and_then_is_no_suspect() -> None:
    numbers = random.Random(3)
    window = EmulatedMesh().window(12)
    computing = {
        rank: tuple(
            0.12 * (2.0 if rank == 5 and numbers.random() < 0.3 else 1.0) for _ in range(12)
        )
        for rank in range(8)
    }
    seen = msgspec.structs.replace(window, computing_s=computing)
    assert find_suspects(summarise(seen)) == Findings()


def test_of_calls_beside_computing_only_the_time_blocked_is_left_out() -> None:
    calls = tuple(
        TimedCall(rank, (0, 1), "all_reduce", 8, step, step + 0.1, step + 0.9, blocked_s=0.2)
        for rank in range(2)
        for step in range(4)
    )
    steps = {rank: tuple((float(step), step + 1.0) for step in range(4)) for rank in range(2)}
    summary = summarise(ProfileWindow(calls=calls, steps=steps))
    assert summary.ranks[0].computing_s == pytest.approx([0.8] * 4)
    assert summary.transfers[0].seconds == pytest.approx(0.8)


def test_a_message_that_left_before_it_arrived_is_timed_on_the_common_clock() -> None:
    calls = []
    for step in range(4):
        calls.append(TimedCall(0, (0, 1), "send", 8, step, step + 0.5, step + 0.51))
        calls.append(TimedCall(1, (0, 1), "recv", 8, step, step + 0.1, step + 0.9))
    steps = {rank: tuple((float(step), step + 1.0) for step in range(4)) for rank in range(2)}
    window = ProfileWindow(calls=tuple(calls), steps=steps)
    assert summarise(window).transfers[0].seconds == pytest.approx(0.01)
    on_one = msgspec.structs.replace(window, same_clock=True)
    assert summarise(on_one).transfers[0].seconds == pytest.approx(0.4)


@pytest.mark.parametrize("late", ["send", "recv"])
def test_a_rank_that_computes_before_it_asks_for_the_end_makes_no_transfer_longer(
    late: str,
) -> None:
    calls = []
    for step in range(4):
        for rank, op in enumerate(("send", "recv")):
            end_s, blocked_s = (step + 0.9, 1e-5) if op == late else (step + 0.4, 0.1)
            calls.append(TimedCall(rank, (0, 1), op, 8, step, step + 0.1, end_s, blocked_s))
    steps = {rank: tuple((float(step), step + 1.0) for step in range(4)) for rank in range(2)}
    window = ProfileWindow(calls=tuple(calls), steps=steps, same_clock=True)
    assert summarise(window).transfers[0].seconds == pytest.approx(0.3)


def test_a_call_that_a_rank_did_not_record_is_left_out() -> None:
    window = EmulatedMesh(factors={2: 1.5}).window()
    torn = msgspec.structs.replace(window, calls=window.calls[25:-25])
    assert ("computation", (2,)) in named(find_suspects(summarise(torn)))


def test_ranks_with_other_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[1, 2\] steps"):
        summarise(ProfileWindow(calls=(), steps={0: ((0, 1),), 1: ((0, 1), (1, 2))}))
    with pytest.raises(ValueError, match=r"got \[\] steps"):
        summarise(ProfileWindow(calls=(), steps={}))


def test_a_baseline_is_kept_as_json(healthy: ProfileSummary) -> None:
    assert msgspec.json.decode(msgspec.json.encode(healthy), type=ProfileSummary) == healthy


def test_two_groups_of_the_same_ranks_are_told_apart() -> None:
    window = EmulatedMesh(factors={2: 1.5}).window()
    twins = tuple(
        msgspec.structs.replace(call, start_s=call.end_s, end_s=call.end_s + 1e-4, blocked_s=None)
        for call in window.calls
        if "reduce" in call.op
    )
    both = summarise(msgspec.structs.replace(window, calls=twins + window.calls))
    assert named(find_suspects(both)) == {("computation", (2,))}
    once = {one.group: one.per_step for one in summarise(window).transfers}
    assert {one.per_step for one in both.transfers if one.group == (0, 1)} == {2 * once[0, 1]}


def test_a_send_that_nobody_waits_for_hides_no_computing() -> None:
    calls = tuple(
        TimedCall(0, (0, 1), "send", 8, step, step + 0.1, step + 0.9) for step in range(4)
    )
    window = ProfileWindow(
        calls=calls, steps={0: tuple((float(step), step + 1.0) for step in range(4))}
    )
    assert summarise(window).ranks[0].computing_s == pytest.approx([1.0] * 4)


def of_steps(computing_s: dict[int, list[float]], *more: TimedCall) -> Findings:
    """What is found in steps of a second, where two ranks meet once in each."""
    steps = len(computing_s[0])
    meets = [
        TimedCall(rank, (0, 1, 2), "barrier", 0, step, step + 0.9, step + 0.91)
        for rank in computing_s
        for step in range(steps)
    ]
    spans = tuple((float(step), step + 1.0) for step in range(steps))
    return find_suspects(
        summarise(
            ProfileWindow(
                calls=(*meets, *more),
                steps=dict.fromkeys(computing_s, spans),
                computing_s={rank: tuple(each) for rank, each in computing_s.items()},
            )
        )
    )


def test_a_suspect_is_late_in_three_quarters_of_the_steps() -> None:
    usual = [0.5] * 10
    assert named(of_steps({0: usual, 1: usual, 2: [0.8] * 8 + [0.5] * 2})) == {
        ("computation", (2,))
    }
    assert not of_steps({0: usual, 1: usual, 2: [0.8] * 7 + [0.5] * 3}).suspects


def test_a_difference_within_a_ranks_own_scatter_is_chance() -> None:
    usual = [0.5] * 8
    scattered = [0.49, 0.51, 0.51, 0.55, 0.61, 0.8, 0.9, 1.0]
    assert not of_steps({0: usual, 1: usual, 2: scattered}).suspects
    assert named(of_steps({0: usual, 1: usual, 2: [0.57] * 8})) == {("computation", (2,))}


def test_a_suspect_has_the_time_for_which_its_quota_was_used_up() -> None:
    window = EmulatedMesh(factors={2: 1.5}).window()
    cut = msgspec.structs.replace(window, starved_s={2: 0.3}, throttled_s={2: 0.2})
    assert [one.throttled_s for one in find_suspects(summarise(cut)).suspects] == [0.2]
    assert [one.throttled_s for one in find_suspects(summarise(window)).suspects] == [0.0]


def meeting(op: str, took_s: dict[tuple[int, int], float]) -> list[TimedCall]:
    return [
        TimedCall(rank, group, op, 8, step, float(step), step + seconds)
        for group, seconds in took_s.items()
        for rank in group
        for step in range(4)
    ]


def links(*calls: TimedCall) -> Findings:
    spans = tuple((float(step), step + 1.0) for step in range(4))
    window = ProfileWindow(
        calls=calls,
        steps=dict.fromkeys(range(6), spans),
        computing_s=dict.fromkeys(range(6), (0.1,) * 4),
    )
    return find_suspects(summarise(window))


def test_a_slow_transfer_that_hardly_matters_is_no_suspect() -> None:
    assert not links(*meeting("barrier", {(0, 1): 0.001, (2, 3): 0.001, (4, 5): 0.025})).suspects


def test_a_long_transfer_that_is_hardly_longer_is_no_suspect() -> None:
    assert not links(*meeting("all_reduce", {(0, 1): 0.7, (2, 3): 0.7, (4, 5): 0.76})).suspects


def test_a_groups_losses_are_added_up_over_its_operations() -> None:
    gather = meeting("all_gather", {(0, 1): 0.1, (2, 3): 0.1, (4, 5): 0.12})
    reduce = meeting("all_reduce", {(0, 1): 0.1, (2, 3): 0.1, (4, 5): 0.125})
    assert not links(*gather).suspects
    (one,) = links(*gather, *reduce).suspects
    assert one.lost == pytest.approx(0.045)
    assert (one.op, one.seconds) == ("allreduce", pytest.approx(0.125))


def test_calls_inside_one_another_are_counted_once() -> None:
    spans = ((0.1, 0.8), (0.2, 0.3), (0.7, 0.9))
    calls = tuple(TimedCall(0, (0,), "x", 8, 0, start_s, end_s) for start_s, end_s in spans)
    window = ProfileWindow(calls=calls, steps={0: ((0.0, 1.0),)})
    assert summarise(window).ranks[0].computing_s == pytest.approx([0.2])


def test_a_loss_counts_all_micro_batches_of_a_step() -> None:
    few = EmulatedMesh(shared={0: 4, 1: 4}, factors={6: 2.0})
    (one,) = findings(few).suspects
    assert one.seconds == pytest.approx(0.06, rel=0.05)  # of one micro-batch
    (same,) = findings(EmulatedMesh(factors={6: 2.0})).suspects
    assert one.lost == pytest.approx(same.lost, rel=0.01)
