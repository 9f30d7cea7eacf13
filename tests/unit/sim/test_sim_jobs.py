"""Simulated jobs: what a step costs, what actions do, and that every sample is in the model once."""

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline_experiments.sim.costs import Compute, Traffic, served_s
from paceline_experiments.sim.leader import Leader
from paceline_experiments.sim.nodes import worker_names
from paceline_experiments.sim.patterns import Persistent, Transient
from paceline_experiments.sim.scenarios import Recovery, Scenario
from paceline_experiments.sim.slices import Members, Slices

from paceline.base.samples import SampleSet, Span
from paceline.policy.actions import (
    AdjustBatch,
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
    Share,
)
from paceline.policy.observation import RestartCost
from paceline.policy.stats.history import ProfiledTimes
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import Server
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.node import (
    Committed,
    GiveBack,
    InitialWritten,
    LeaseRequest,
    OpenFeed,
    Prepared,
    Restored,
)
from paceline.wire.schema import ModelSchema
from tests.simulated import NOISY, SMALL, Scripted, changed, job_of, run

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
    scenario = mode_of("asp", patterns=(SLOW_WORKER,), num_samples=40_000)
    outcome, _ = run(scenario)
    # Three workers make 100 samples/s each, the slow one 100 in 3 s; at the end it keeps a batch
    # beside the one that it is in.
    assert outcome.jct_s == pytest.approx(80_000 / (300 + 100 / 3), rel=0.02)
    assert outcome.shares["worker-1"] * 2.8 < outcome.shares["worker-0"]


def test_an_even_partition_waits_for_the_slow_worker() -> None:
    scenario = mode_of("asp", patterns=(SLOW_WORKER,), num_samples=20_000)
    fixed = AdjustBatch(shares=shares(100, 100, 100, 100).shares, fixed=True)
    outcome, _ = run(scenario, (0.0, [fixed]))
    # What is leased by then stays: all of it is of the first part. Each was granted four batches
    # before its speed was known, and those that compute one a second have asked for more.
    assert outcome.jct_s == pytest.approx((10_000 + 400) / (100 / 3), rel=0.01)
    beside = {"worker-1": 400, "worker-2": 800, "worker-3": 800}
    assert {name: size - 10_000 for name, size in outcome.shares.items()} == {
        "worker-0": -sum(beside.values()),
        **beside,
    }


def test_in_asp_a_share_is_what_grants_are_sized_for() -> None:
    scenario = mode_of("asp", num_samples=20_000)
    job = job_of(scenario, Scripted([(0.0, [shares(40, 120, 120, 120)])]))
    granted: dict[int, list[int]] = {}
    grant = job.ledger.grant

    def noted(inc: int, spans: Iterable[Span]) -> None:
        granted.setdefault(inc, []).append(sum(map(len, spans)))
        grant(inc, spans)

    job.ledger.grant = noted
    job.run()
    # Six seconds of a tenth, and of three tenths, of 400 samples/s; four batches at first.
    assert {inc: max(sizes[2:]) for inc, sizes in granted.items()} == {
        1: 200,
        2: 700,
        3: 700,
        4: 700,
    }


def test_at_the_tail_a_slow_worker_gives_back_what_it_has_not_begun() -> None:
    slow = Persistent(nodes=(1,), delay_s=20.0, start=20.0)
    outcome, _ = run(mode_of("asp", patterns=(slow,), num_samples=8_000))
    # It was granted six batches while it was fast; one that it is in and one more are its own.
    assert 40.0 < outcome.jct_s <= 21.0 + 3 * 21.0
    assert outcome.samples == 16_000


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
    # Before a step is measured plans begin 2 steps ahead.
    assert outcome.jct_s == pytest.approx(2 * 1.5 + 38 * 2.0)
    assert outcome.steps == 40


def test_backup_workers_do_not_wait_for_the_slowest_and_lose_nothing() -> None:
    scenario = changed(NOISY, patterns=(SLOW_WORKER,), num_samples=8_000)
    outcome, _ = run(scenario, (3.5, [BackupWorkers(count=1)]))
    assert outcome.samples == 16_000
    # Ordered in the second step, for two steps on: 37 are short.
    assert outcome.left_out >= 37 * 100
    # A quarter of each step comes back, of that a quarter again, down to the last sample.
    assert 3 + 37 * 4 / 3 <= outcome.steps <= 3 + 37 * 4 / 3 + 6
    # At the end of each epoch 50 are left, of which 12 may be missing and the slow one has 13.
    assert outcome.jct_s == pytest.approx(3 * 3.0 + 37 * 4 / 3 + 2 * 3.0, rel=0.15)
    assert outcome.jct_s < 0.6 * run(scenario)[0].jct_s


def test_as_many_samples_may_be_late_as_the_backup_workers_with_the_largest_shares_have() -> None:
    slow = Persistent(nodes=(2, 3), delay_s=5.0)
    scenario = changed(SMALL, patterns=(slow,), num_samples=16_000, epochs=1)
    sizes = shares(160, 80, 80, 80)
    outcome, _ = run(scenario, (0.0, [sizes, BackupWorkers(count=1)]))
    # The share of worker-0 is as much as both slow ones have: from step 17 on nobody waits.
    num_late = 2 * (40 - 16)
    assert outcome.left_out >= 80 * num_late
    # 80 of three that are slow are too many to do without.
    more = changed(scenario, patterns=(changed(slow, nodes=(1, 2, 3)),))
    assert run(more, (0.0, [sizes, BackupWorkers(count=1)]))[0].short_steps == 0


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


def test_a_grace_costs_nothing_while_nobody_is_late() -> None:
    calm = changed(SMALL, num_samples=8_000)
    outcome, _ = run(calm, (4.5, [Partial(left_out=0, late=100, grace_s=0.5)]))
    assert outcome.short_steps == 0
    assert outcome.jct_s == pytest.approx(run(calm)[0].jct_s)


def test_who_is_late_is_waited_for_as_long_as_the_grace() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    jcts_s = []
    for grace_s in (0.0, 0.5, 5.0):
        partial = Partial(left_out=0, late=100, grace_s=grace_s)
        outcome, _ = run(scenario, (0.0, [partial]))
        assert (outcome.short_steps > 0) == (grace_s < 2.0)
        jcts_s.append(outcome.jct_s)
    assert jcts_s[0] < jcts_s[1] < jcts_s[2] == run(scenario)[0].jct_s


def test_a_contribution_after_the_first_costs_half_of_a_steps_messages() -> None:
    scenario = changed(SMALL, num_samples=8_000, traffic=Traffic(message_s=0.25))
    jcts_s = [
        run(scenario, (3.5, [Partial(left_out=0, chunks=chunks)]))[0].jct_s for chunks in (1, 2, 4)
    ]
    per_chunk_s = jcts_s[1] - jcts_s[0]
    assert per_chunk_s == pytest.approx(0.125 * 34, abs=0.125 * 3), "40 steps, but the first few"
    assert jcts_s[2] - jcts_s[0] == pytest.approx(3 * per_chunk_s)


def test_ending_backup_workers_makes_steps_whole_again() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    script = [(3.5, [BackupWorkers(count=1)]), (18.5, [BackupWorkers(count=0)])]
    outcome, _ = run(scenario, *script)
    assert 8 <= outcome.short_steps <= 12


def test_short_steps_begin_ahead_and_never_before_they_are_ordered() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    times_s = [run(scenario, (at_s, [BackupWorkers(count=1)]))[0].jct_s for at_s in (3.5, 5.9)]
    assert times_s[0] == pytest.approx(times_s[1]), "both in the second step"


def test_what_short_steps_leave_out_comes_back_at_the_end_of_its_epoch() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    job = job_of(scenario, Scripted([(0.0, [Partial(left_out=100)])]))
    done: list[int] = []
    job.ledger.commit = commits_of(job.ledger, done)
    job.run()
    assert 8_000 in done, "nothing of the second epoch before the first is whole"


def commits_of(ledger: Ledger, reach: list[int]) -> Callable[[Iterable[Span]], None]:
    """Its commits, and beside them how far the epochs reach of which all is done."""
    commit = ledger.commit

    def noted(spans: Iterable[Span]) -> None:
        commit(spans)
        reach.append(ledger.done.line(next(iter(ledger.lines))).edges[1])

    return noted


@given(
    num_samples=st.integers(1, 150),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 40),
    sizes=st.none() | st.tuples(*[st.integers(1, 40)] * 3),
    steps=st.integers(1, 5),
    late=st.lists(st.tuples(*[st.floats(0.0, 0.6)] * 3), max_size=12),
)
@settings(max_examples=200, deadline=None)
def test_steps_are_dealt_as_the_master_deals_them(
    num_samples: int,
    epochs: int,
    batch_size: int,
    sizes: tuple[int, ...] | None,
    steps: int,
    late: list[tuple[float, ...]],
) -> None:
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=num_samples,
        epochs=epochs,
        batch_size=batch_size if sizes is None else sum(sizes),
        shard_size=0,
        shuffle=True,
        seed=0,
    )
    names = WORKERS[:3]
    master = Dealing(feed, names, steps)
    plans = Plans(Ledger(), synchronous=True)
    plans.ledger.open(feed)
    slices = Slices(plans, feed, np.array([1, 2, 3]))
    if sizes is not None:
        plan = AdjustBatch(shares=dict(zip(names, map(Share, sizes), strict=True)))
        master.state.carry_out(plan, 1)
        plans.prepare(plan, 1, 1, names)
        plans.apply(plans.committable())
    members = Members(names, range(3))
    for fractions in itertools.chain(late, itertools.repeat((0.0, 0.0, 0.0))):
        parts = slices.next(members, 2, steps)
        whole, leased = master.deal()
        if parts is None:
            assert not whole
            break
        assert parts.whole == whole
        assert [parts.of(row) for row in range(3)] == leased
        kept = [int(size * (1 - f)) for size, f in zip(parts.sizes, fractions, strict=True)]
        if not any(kept):
            kept = parts.sizes.tolist()
        back = {row: spans for row in range(3) if (spans := parts.of(row, kept[row]))}
        committed = SampleSet(whole)
        for spans in back.values():
            committed.subtract(spans)
        slices.decide(committed.spans(), back)
        master.decided(committed, back)
    assert slices.ledger.done == master.state.ledger.done


class Dealing:
    """A real master, and workers that ask it at each step."""

    def __init__(self, feed: Feed, names: list[str], steps: int) -> None:
        self.steps, self.state = (
            steps,
            MasterState(ServerHolder(), mode="bsp", samples="exactly-once"),
        )
        self.returns = [0, 0, 0]
        for inc, name in enumerate(names, 1):
            self.state.worker_up(inc, name)
            self.state.holder.prepare(Prepared(inc=inc, schema=ModelSchema()))
        self.state.holder.initial_written(
            InitialWritten(inc=1, file="initial", checksum="", num_bytes=0)
        )
        self.state.open_feed(OpenFeed(inc=1, feed=feed))
        self.state.holder.start_epoch((Server(9, "server-0", ""),))
        self.state.holder.restored(Restored(epoch_no=self.state.epoch_no, inc=9))
        self.model = SampleSet()

    def deal(self) -> tuple[Slice, list[list[Span]]]:
        """The undecided step, and what each worker holds of it."""
        state, whole = self.state, self.state.plans.undecided()
        for inc in (1, 2, 3):
            last = state.grants.get(inc)
            n, step = last.n + 1 if last else 1, state.step + 1
            request = LeaseRequest(epoch_no=state.epoch_no, inc=inc, n=n, feed=0, step=step)
            state.request(request, Sizing(steps=self.steps))
        leases = [state.ledger.leases.get(inc, SampleSet()) for inc in (1, 2, 3)]
        return whole, [[one for span in whole for one in held.overlap(span)] for held in leases]

    def decided(self, committed: SampleSet, back: dict[int, list[Span]]) -> None:
        """The leader and those who were late say so."""
        state = self.state
        self.model.update(committed)
        now = self.model.spans()
        said = Committed(epoch_no=state.epoch_no, inc=9, step=state.step + 1, committed=now)
        state.holder.committed(said)
        for row, spans in back.items():
            self.returns[row] += 1
            r, inc = self.returns[row], row + 1
            given = GiveBack(epoch_no=state.epoch_no, inc=inc, r=r, spans=tuple(spans))
            state.given_back(given)


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
        st.builds(
            Partial,
            left_out=st.integers(0, 300),
            chunks=st.integers(1, 5),
            late=st.integers(0, 300),
            grace_s=st.floats(0.0, 3.0),
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


def test_the_leader_reports_what_is_new_but_not_too_often_and_now_and_then_anyway() -> None:
    leader = Leader()
    leader.applied(2.0)
    assert leader.num_reports == 2, "at 1.1 s that nothing has changed"
    leader.applied(4.0)
    assert leader.num_reports == 4, "at 3.1 s, too"
    for hundredth in range(1, 101):
        leader.applied(4.0 + hundredth / 100)
    assert leader.num_reports == pytest.approx(14, abs=1)


def test_what_the_ledger_hears_is_counted() -> None:
    # All slices are in the first grants; a report per step, as steps take less than 1.1 s.
    assert run(SMALL)[0].ledger_calls == 4 + 12
    outcome, _ = run(SMALL, (0.0, [KillRestart(node="worker-1")]))
    assert outcome.ledger_calls > 4 + 12 + 1 + 3, "the others are granted what came back"


def test_in_asp_the_leader_reports_every_tenth_of_a_second() -> None:
    # Twenty contributions a second.
    compute = Compute(per_sample_s=0.002)
    outcome, _ = run(mode_of("asp", NOISY, compute=compute, num_samples=40_000))
    assert outcome.ledger_calls == pytest.approx(outcome.jct_s / 0.1, rel=0.3)


def test_a_late_batch_is_reported_when_it_is_over() -> None:
    scenario = changed(SMALL, patterns=(SLOW_WORKER,), num_samples=8_000)
    _, control = run(scenario, (0.0, [BackupWorkers(count=1)]))
    late = [(facts, now_s) for node, facts, now_s in control.reports if node == "worker-1"]
    assert late[0][1] >= 3.0
    assert {round(facts.compute_s, 6) for facts, _ in late[:5]} == {3.0}


def test_the_controller_sees_the_plan_in_force() -> None:
    ordered = [shares(40, 120, 120, 120), BackupWorkers(count=1)]
    _, control = run(SMALL, (1.5, ordered), (2.5, []), (3.5, []))
    assert [seen.workers["worker-0"] for seen in control.seen] == [
        Share(100),
        Share(100),
        Share(40),
    ]
    assert [seen.backup for seen in control.seen] == [0, 0, 1]


def test_a_profile_is_told_by_itself_and_the_others_wait_for_it() -> None:
    undisturbed, quiet = run(SMALL)
    outcome, control = run(SMALL, (2.5, [Profile(sizes={"worker-2": 50}, steps=3)]))
    (told,) = control.profiles
    assert told == ("worker-2", ProfiledTimes(batch_size=50, batches=3, batch_s=pytest.approx(0.5)))
    assert outcome.jct_s == pytest.approx(undisturbed.jct_s + 3 * 0.5)
    sizes = [facts.step_samples for _, facts, _ in control.reports]
    assert sizes == [facts.step_samples for _, facts, _ in quiet.reports], "of its steps alone"
