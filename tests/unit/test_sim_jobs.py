"""Simulated jobs: what a step costs, what actions do, and that every sample is in the model once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.straggler.actions import (
    AdjustBatch,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.straggler.observation import RestartCost
from paceline.sim.costs import Compute, Traffic, served_s
from paceline.sim.nodes import worker_names
from paceline.sim.patterns import Persistent, Transient
from paceline.sim.scenarios import Recovery, Scenario
from tests.simulated import NOISY, SMALL, changed, run

SLOW_WORKER = Persistent(nodes=(1,), delay_s=2.0)
SLOW_SERVER = Persistent(role="server", nodes=(1,), delay_s=2.0)
MODES = ("bsp", "asp", "ssp", "allreduce")
WORKERS = worker_names(4)
TOTAL = SMALL.num_samples * SMALL.epochs


def mode_of(mode: str, scenario: Scenario = SMALL, **changes: object) -> Scenario:
    servers = 0 if mode == "allreduce" else scenario.servers
    return changed(scenario, mode=mode, servers=servers, staleness=2, **changes)


def shares(*sizes: int) -> AdjustBatch:
    return AdjustBatch(shares={f"worker-{i}": Share(size) for i, size in enumerate(sizes)})


# ------------------------------------------------------------------------- what a step costs


def test_bsp_takes_as_long_as_its_slowest_worker() -> None:
    outcome, _ = run(changed(SMALL, patterns=(SLOW_WORKER,)))
    # Five steps of 400 and one of 50, cut 12, 13, 12, 13, in each epoch.
    assert outcome.jct_s == pytest.approx(2 * (5 * 3.0 + 2.13))
    assert outcome.steps == 12


def test_a_slow_server_costs_bsp_its_delay_once_a_step() -> None:
    outcome, _ = run(changed(SMALL, patterns=(SLOW_SERVER,)))
    assert outcome.jct_s == pytest.approx(2 * (5 * 3.0 + 2.13))


def test_a_slow_server_costs_asp_its_delay_once_a_contribution() -> None:
    outcome, _ = run(mode_of("asp", patterns=(SLOW_SERVER,)))
    assert outcome.jct_s == pytest.approx(outcome.steps * 2.0, rel=0.05)


@given(
    delay_s=st.floats(0.05, 5.0),
    workers=st.integers(2, 12),
    batch=st.integers(20, 200),
    seed=st.integers(0, 100),
)
@settings(max_examples=25, deadline=None)
def test_with_a_slow_server_asp_is_slower_than_bsp(
    delay_s: float, workers: int, batch: int, seed: int
) -> None:
    # One contribution takes a server as long as a batch takes a worker, at least: less than that
    # hides behind the computation (the pull of the next batch overlaps it).
    pattern = Persistent(role="server", nodes=(0,), delay_s=delay_s + 0.01 * batch * 2)
    job = changed(
        NOISY, workers=workers, batch_size=workers * batch, num_samples=8 * workers * batch
    )
    job = changed(job, patterns=(pattern,))
    assert run(changed(job, mode="asp"), seed=seed)[0].jct_s > run(job, seed=seed)[0].jct_s


def test_asp_gives_a_slow_worker_less_instead_of_waiting_for_it() -> None:
    scenario = mode_of("asp", patterns=(SLOW_WORKER,), num_samples=20_000)
    outcome, _ = run(scenario)
    # Three workers make 100 samples/s each, the slow one 100 in 3 s.
    assert outcome.jct_s == pytest.approx(40_000 / (300 + 100 / 3), rel=0.02)
    assert outcome.shares["worker-1"] * 2.8 < outcome.shares["worker-0"]


def test_an_even_partition_waits_for_the_slow_worker() -> None:
    scenario = mode_of("asp", patterns=(SLOW_WORKER,), num_samples=20_000)
    fixed = AdjustBatch(shares=shares(100, 100, 100, 100).shares, fixed=True)
    outcome, _ = run(scenario, (0.0, [fixed]))
    assert outcome.jct_s == pytest.approx(10_000 / (100 / 3), rel=0.01)
    assert outcome.shares == dict.fromkeys(WORKERS, 10_000)


def test_ssp_keeps_together() -> None:
    outcome, _ = run(mode_of("ssp", patterns=(SLOW_WORKER,), num_samples=20_000))
    counts = sorted(outcome.shares.values())
    assert counts[-1] - counts[0] <= 4 * 100
    assert outcome.jct_s == pytest.approx(40_000 / (4 * 100 / 3), rel=0.03)


def test_parts_of_a_step_queue_at_a_server_and_overlap_with_computation() -> None:
    assert served_s(np.array([1.0, 1.0, 1.0]), 0.1) == pytest.approx(1.3)
    assert served_s(np.array([0.0, 0.5, 1.0]), 0.1) == pytest.approx(1.1)
    assert served_s(np.array([]), 0.1) == 0.0


def test_messages_of_nodes_that_share_a_machine_grow_with_the_pairs() -> None:
    traffic = Traffic(message_s=0.1, pair_s=0.01)
    clean, loaded = run(SMALL)[0], run(changed(SMALL, traffic=traffic))[0]
    assert loaded.jct_s - clean.jct_s == pytest.approx(12 * (0.1 + 0.01 * 8))


def test_small_batches_below_saturation_take_no_less() -> None:
    compute = Compute(per_sample_s=0.01, saturation=100)
    assert compute.batch_s(np.array([0, 10, 100, 200])).tolist() == [0.0, 1.0, 1.0, 2.0]


# ------------------------------------------------------------------------- actions


def test_adjusted_batches_take_effect_at_one_step_for_all() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=40_000)
    before, _ = run(scenario)
    after, control = run(scenario, (30.5, [shares(150, 10, 120, 120)]))
    assert after.jct_s < before.jct_s
    sizes = {}
    for node, facts, now_s in control.reports:
        if node.startswith("worker"):
            sizes.setdefault(now_s, {})[node] = facts.step_samples
    sums = {sum(each.values()) for each in sizes.values() if len(each) == 4}
    assert sums == {400.0}


def test_accumulation_is_several_batches_of_one_step() -> None:
    plan = AdjustBatch(shares={f"worker-{i}": Share(50, 2) for i in range(4)})
    scenario = changed(SMALL, compute=Compute(per_sample_s=0.01, fixed_s=0.5), num_samples=8_000)
    outcome, _ = run(scenario, (0.0, [plan]))
    assert outcome.jct_s == pytest.approx(40 * 2.0)
    assert outcome.steps == 40


def test_backup_workers_do_not_wait_for_the_slowest_and_lose_nothing() -> None:
    scenario = changed(NOISY, patterns=(SLOW_WORKER,), num_samples=8_000)
    outcome, _ = run(scenario, (3.5, [BackupWorkers(count=1)]))
    assert outcome.samples == 16_000
    # Ordered in the second step, for two steps on: 37 are short.
    assert outcome.left_out >= 37 * 100
    # A quarter of each step comes back, of that a quarter again, down to the last sample.
    assert 3 + 37 * 4 / 3 <= outcome.steps <= 3 + 37 * 4 / 3 + 6
    assert outcome.jct_s == pytest.approx(3 * 3.0 + 37 * 4 / 3, rel=0.15)
    assert outcome.jct_s < 0.6 * run(scenario)[0].jct_s


def test_backup_workers_do_not_help_against_a_slow_server() -> None:
    scenario = changed(NOISY, patterns=(SLOW_SERVER,), num_samples=8_000)
    assert run(scenario, (0.0, [BackupWorkers(count=1)]))[0].jct_s > run(scenario)[0].jct_s


def test_a_partial_step_takes_what_a_straggler_has_finished() -> None:
    slow = Persistent(nodes=(1,), slowdown=4.0)
    scenario = changed(SMALL, patterns=(slow,), num_samples=8_000)
    outcome, _ = run(scenario, (4.5, [Partial(left_out=80, chunks=10)]))
    assert outcome.samples == 16_000
    assert outcome.shares["worker-1"] > 0.2 * 4_000
    assert outcome.jct_s < 0.5 * run(scenario)[0].jct_s


def test_ending_backup_workers_makes_steps_whole_again() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    script = [(3.5, [BackupWorkers(count=1)]), (18.5, [BackupWorkers(count=0)])]
    outcome, _ = run(scenario, *script)
    assert 8 <= outcome.short_steps <= 12


def test_short_steps_begin_ahead_and_never_before_they_are_ordered() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    times_s = [run(scenario, (at_s, [BackupWorkers(count=1)]))[0].jct_s for at_s in (3.5, 5.9)]
    assert times_s[0] == pytest.approx(times_s[1]), "both in the second step"


# ------------------------------------------------------------------------- restarts


def test_a_restarted_worker_leaves_its_straggling_behind() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=40_000)
    outcome, control = run(scenario, (10.0, [KillRestart(node="worker-1")]))
    assert control.restarts == [("worker-1", 7)]
    # Three steps of 3 s, 7 s in which three workers share the work, then steps of 1 s.
    assert outcome.jct_s == pytest.approx(200 + 3 * 2.0 + 7 * 0.25, abs=3.0)
    assert outcome.restarts == 1


def test_the_survivors_share_the_step_of_a_killed_worker() -> None:
    outcome, _ = run(SMALL, (0.5, [KillRestart(node="worker-1")]))
    # Step 1: 1 s, then a third of 100 samples more. The slices of the others are not cut anew.
    assert outcome.redone == 50
    assert outcome.samples == TOTAL


def test_a_worker_that_restarts_already_is_not_killed_again() -> None:
    script = [(t, [KillRestart(node="worker-1")]) for t in (1.0, 2.0, 3.0)]
    assert run(SMALL, *script)[0].restarts == 1


def test_a_server_serves_on_until_a_fresh_one_takes_over() -> None:
    recovery = Recovery(worker=RestartCost(), server=RestartCost(start_s=10.0), switch_s=0.5)
    scenario = changed(SMALL, patterns=(SLOW_SERVER,), num_samples=8_000, recovery=recovery)
    outcome, control = run(scenario, (5.0, [KillRestart(node="server-1")]))
    # Until 15 s a step takes 3 s.
    assert outcome.jct_s == pytest.approx(15 + 0.5 + 35, abs=2.0)
    assert control.restarts == [("server-1", 7)]


@pytest.mark.parametrize("mode", ["bsp", "asp"])
@pytest.mark.parametrize("node", ["worker-1", "server-1"])
def test_from_checkpoints_a_restart_takes_everybody_back(mode: str, node: str) -> None:
    recovery = Recovery(
        worker=RestartCost(start_s=3.0),
        server=RestartCost(start_s=3.0),
        checkpoint_every_s=10.0,
        checkpoint_s=1.0,
    )
    scenario = mode_of(mode, num_samples=8_000)
    plain = run(scenario)[0].jct_s
    saving = changed(scenario, recovery=recovery)
    outcome, _ = run(saving, (18.0, [KillRestart(node=node)]))
    # Saves of 1 s each 10 s, 3 s to start, and what was done since the last one.
    assert outcome.redone == pytest.approx(7.5 * 400, abs=700)
    assert outcome.jct_s == pytest.approx(plain + 4 + 3 + 7, abs=2.5)
    assert outcome.samples == 16_000


# ------------------------------------------------------------------------- every sample once

NODES = [*WORKERS, "server-0", "server-1"]


def actions(nodes: list[str]) -> st.SearchStrategy[AnyAction]:
    sizes = st.tuples(*[st.integers(1, 97)] * 3).map(lambda s: shares(*s, 400 - sum(s)))
    fixed = sizes.map(lambda plan: AdjustBatch(shares=plan.shares, fixed=True))
    return st.one_of(
        sizes,
        fixed,
        st.integers(1, 300).map(lambda size: Profile(sizes={"worker-2": size}, steps=3)),
        st.integers(0, 3).map(lambda count: BackupWorkers(count=count)),
        st.tuples(st.integers(0, 300), st.integers(1, 5)).map(
            lambda two: Partial(left_out=two[0], chunks=two[1])
        ),
        st.sampled_from(nodes).map(lambda node: KillRestart(node=node)),
    )


@given(
    mode=st.sampled_from(MODES),
    script=st.lists(
        st.tuples(st.floats(0.0, 25.0), st.lists(actions(NODES), max_size=2)), max_size=8
    ),
    checkpoints=st.booleans(),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_the_model_once_whatever_is_done(
    mode: str, script: list[tuple[float, list[AnyAction]]], checkpoints: bool, seed: int
) -> None:
    recovery = Recovery(
        worker=RestartCost(start_s=2.0),
        server=RestartCost(start_s=3.0),
        checkpoint_every_s=4.0 if checkpoints else None,
    )
    patterns = (Transient(probability=0.4, period=6.0, share=0.5, delay_s=0.7),)
    scenario = mode_of(mode, NOISY, recovery=recovery, patterns=patterns)
    script = [(t, [a for a in acts if a_possible(a, scenario)]) for t, acts in script]
    outcome, _ = run(scenario, *script, seed=seed)
    # The job asserts itself that its ledger is complete, and a ledger never grants what is done.
    assert math.isfinite(outcome.jct_s)
    assert outcome.samples == TOTAL


def a_possible(action: AnyAction, scenario: Scenario) -> bool:
    return not (isinstance(action, KillRestart) and action.node.startswith("server")) or (
        scenario.servers > 0
    )


def test_the_last_worker_may_be_killed() -> None:
    script = [(1.0, [KillRestart(node=f"worker-{i}") for i in range(4)])]
    for mode in MODES:
        assert run(mode_of(mode), *script)[0].samples == TOTAL


@pytest.mark.parametrize("mode", MODES)
def test_the_seed_decides(mode: str) -> None:
    scenario = mode_of(mode, NOISY)
    assert run(scenario, seed=1)[0] == run(scenario, seed=1)[0]
    assert run(scenario, seed=1)[0].jct_s != run(scenario, seed=2)[0].jct_s


# ------------------------------------------------------------------------- what nodes report


def test_workers_and_servers_report_what_they_did() -> None:
    traffic = Traffic(part_s=0.01, update_s=0.02)
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), traffic=traffic, report_every=2)
    _, control = run(scenario)
    _, facts, now_s = next(r for r in control.reports if r[0] == "worker-1")
    assert (facts.steps, facts.step_samples) == (2, 100.0)
    assert facts.compute_s == pytest.approx(3.0)
    assert facts.bpt_s == pytest.approx(now_s / 2)
    _, facts, _ = next(r for r in control.reports if r[0] == "server-0")
    assert facts.steps == 2
    assert facts.server_s == pytest.approx(4 * 0.01 + 0.02)
    _, control = run(changed(mode_of("asp"), traffic=traffic, report_every=2))
    _, facts, _ = next(r for r in control.reports if r[0] == "server-0")
    assert (facts.step, facts.steps) == (0, 8), "answered pulls: it has no steps"
    assert facts.server_s == pytest.approx(0.01 + 0.02)


def test_a_late_batch_is_reported_when_it_is_over() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    _, control = run(scenario, (0.0, [BackupWorkers(count=1)]))
    late = [(facts, now_s) for node, facts, now_s in control.reports if node == "worker-1"]
    assert late[0][1] >= 3.0
    assert {round(facts.compute_s, 6) for facts, _ in late[:5]} == {3.0}


def test_the_controller_sees_the_plan_in_force() -> None:
    script = [(1.5, [shares(40, 120, 120, 120), BackupWorkers(count=1)]), (3.0, [])]
    _, control = run(SMALL, *script)
    assert control.seen[0].workers["worker-0"] == Share(100)
    assert control.seen[1].workers["worker-0"] == Share(40)
    assert control.seen[1].backup == 1
