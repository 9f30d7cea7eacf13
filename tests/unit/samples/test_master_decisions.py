"""Grant sizes, when cuts are due, the stages of the end, what the monitor makes of reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.jobs.outcome import End
from paceline.master.ending import LAST_CUT_S, LEAVE_S, Ending, Seen, Stage
from paceline.master.monitor import Monitor, RunningRate
from paceline.protocol.samples.grant_size import lease_samples, lease_steps, plan_lead, tail_share
from paceline.wire.messages.agent import NodeFacts

PLENTY = 10**9


def test_a_lease_is_six_seconds_of_its_owner_s_work() -> None:
    fast = lease_samples(speed=1000.0, batch_size=100, remaining=PLENTY, num_workers=4)
    slow = lease_samples(speed=100.0, batch_size=100, remaining=PLENTY, num_workers=4)
    assert (fast, slow) == (6000, 600)


def test_a_plan_says_how_much_of_the_work_a_worker_is_granted() -> None:
    all_work = {"batch_size": 10, "remaining": 1000, "num_workers": 2}
    fast, slow = (
        lease_samples(speed=400.0 * share, share=share, **all_work) for share in (0.75, 0.05)
    )
    assert (fast, slow) == (370, 20), "at the tail, too"


def test_before_it_is_measured_a_worker_gets_four_batches() -> None:
    assert lease_samples(speed=None, batch_size=64, remaining=PLENTY, num_workers=2) == 256


def test_a_shard_size_set_by_the_user_holds() -> None:
    size = lease_samples(
        speed=1e6, batch_size=64, remaining=PLENTY, num_workers=2, shard_size=1_000
    )
    assert size == 1_000


@given(
    speed=st.none() | st.floats(0.001, 1e9),
    batch_size=st.integers(1, 10_000),
    remaining=st.integers(0, 10**9),
    num_workers=st.integers(0, 100),
)
def test_a_lease_is_at_least_a_batch_and_fair_at_the_tail(
    speed: float | None, batch_size: int, remaining: int, num_workers: int
) -> None:
    size = lease_samples(
        speed=speed, batch_size=batch_size, remaining=remaining, num_workers=num_workers
    )
    assert size % batch_size == 0
    assert size == batch_size or size * 2 * max(1, num_workers) <= remaining
    assert size >= batch_size


def test_who_asks_early_gets_nothing_beyond_its_share_of_the_tail() -> None:
    early = lease_samples(speed=1000.0, batch_size=10, remaining=300, num_workers=2, held=100)
    assert early == 0
    assert lease_samples(speed=1000.0, batch_size=10, remaining=300, num_workers=2) == 70
    plenty = lease_samples(speed=100.0, batch_size=10, remaining=PLENTY, num_workers=2, held=100)
    assert plenty == 600
    own = {"speed": 100.0, "batch_size": 10, "num_workers": 2, "shard_size": 250}
    assert lease_samples(remaining=PLENTY, held=100, **own) == 250
    assert lease_samples(remaining=1000, held=200, **own) == 0


def test_at_the_tail_the_slowest_shares_what_it_holds() -> None:
    leases, speeds = {1: 100, 2: 60}, {1: 30.0, 2: 10.0, 3: 30.0}
    assert tail_share(leases, speeds, 3, batch_size=5) == (2, 15), "so that both end together"
    assert tail_share(leases, {}, 3, batch_size=10) == (1, 50)
    assert tail_share({1: 30}, {3: 10.0}, 3, batch_size=20) is None, "not enough for two"
    assert tail_share({}, speeds, 3, batch_size=1) is None


@given(
    leases=st.dictionaries(st.integers(1, 9), st.integers(1, 10_000), max_size=6),
    speeds=st.dictionaries(st.integers(1, 10), st.none() | st.floats(0.01, 1e6)),
    batch_size=st.integers(1, 500),
)
def test_who_shares_keeps_a_batch_and_gives_one(
    leases: dict[int, int], speeds: dict[int, float | None], batch_size: int
) -> None:
    found = tail_share(leases, speeds, 10, batch_size)
    if found is not None:
        inc, keep = found
        assert batch_size <= keep <= leases[inc] - batch_size
        assert keep % batch_size == 0


@pytest.mark.parametrize(("step_s", "lead"), [(None, 2), (2.0, 2), (0.3, 2), (0.1, 4), (0.01, 31)])
def test_a_plan_begins_some_tenths_of_a_second_ahead(step_s: float | None, lead: int) -> None:
    assert plan_lead(step_s) == lead


@pytest.mark.parametrize(
    ("step_s", "steps"), [(None, 16), (0.001, 1024), (0.1, 60), (1.0, 6), (60.0, 2)]
)
def test_a_synchronous_grant_reaches_some_seconds_ahead(step_s: float | None, steps: int) -> None:
    assert lease_steps(step_s) == steps


@pytest.mark.parametrize(("step_s", "steps"), [(None, 2), (0.1, 5), (10.0, 2)])
def test_while_a_worker_is_missed_little_is_dealt_out_ahead(
    step_s: float | None, steps: int
) -> None:
    assert lease_steps(step_s, complete=False) == steps


def seen(workers: int = 0, cut: int = 0, *, servers_up: bool = True, agents: int = 0) -> Seen:
    return Seen(
        workers_alive=workers, last_stored_no=cut, servers_up=servers_up, agents_connected=agents
    )


def test_a_stop_waits_for_workers_then_a_cut_then_agents() -> None:
    ending = Ending(end=End.STOPPED)
    ending.advance(seen(workers=1, agents=3), 0.0)
    assert ending.stage is Stage.WORKERS
    ending.advance(seen(agents=3), 1.0)
    assert ending.stage is Stage.CUT
    ending.wanted_cut = 4
    ending.advance(seen(cut=3, agents=3), 2.0)
    assert ending.stage is Stage.CUT
    ending.advance(seen(cut=4, agents=3), 3.0)
    assert ending.stage is Stage.LEAVE
    ending.advance(seen(cut=4, agents=1), 4.0)
    assert ending.stage is Stage.LEAVE
    ending.advance(seen(cut=4), 4.1)
    assert ending.stage is Stage.OVER


def test_nobody_is_waited_for_without_end() -> None:
    ending = Ending(end=End.FINISHED, stage=Stage.CUT, deadline_s=LAST_CUT_S)
    ending.advance(seen(agents=1), LAST_CUT_S + 0.1)
    assert ending.stage is Stage.LEAVE
    ending.advance(seen(agents=1), LAST_CUT_S + LEAVE_S + 0.2)
    assert ending.stage is Stage.OVER


def test_a_stopped_job_does_not_wait_for_a_server_that_nobody_replaces() -> None:
    stopped, finished = (
        Ending(end=end, stage=Stage.CUT, deadline_s=9) for end in (End.STOPPED, End.FINISHED)
    )
    for ending in (stopped, finished):
        ending.advance(seen(servers_up=False, agents=1), 1.0)
    assert stopped.stage is Stage.LEAVE
    assert finished.stage is Stage.CUT


def test_a_rate_is_the_growth_over_the_window() -> None:
    rate = RunningRate()
    assert rate.per_s() is None
    for second in range(30):
        rate.add(float(second), 100 * second if second < 15 else 1400 + 10 * (second - 14))
    assert rate.per_s() == pytest.approx(10.0)


def test_a_rate_leaves_out_the_wait_before_the_first_growth() -> None:
    rate = RunningRate()
    for second in range(9):
        rate.add(float(second), 0)
    rate.add(9.0, 50)
    assert rate.per_s() is None
    rate.add(10.0, 100)
    assert rate.per_s() == pytest.approx(50.0)


def test_a_rate_counts_whole_steps_however_long_they_take() -> None:
    rate, seen = RunningRate(), []
    for second in range(100):
        rate.add(float(second), 4000 * (second // 20))
        seen.append(rate.per_s())
    assert seen[:40] == [None] * 40, "one step has ended"
    assert seen[40:] == [pytest.approx(200.0)] * 60


def test_a_rate_ends_when_nothing_grows_and_is_soon_known_again_after_a_pause() -> None:
    rate = RunningRate()
    for second in range(20):
        rate.add(float(second), 100 * second)
    assert rate.per_s() == pytest.approx(100.0)
    for second in range(20, 31):
        rate.add(float(second), 1900)
    assert (rate.per_s(), rate.is_known) == (None, True)
    for second in range(31, 33):
        rate.add(float(second), 1900 + 100 * (second - 30))
    assert rate.per_s() == pytest.approx(100.0)
    rate.add(33.0, 7)
    assert not rate.is_known


def test_totals_are_over_all_lives_of_a_node() -> None:
    monitor = Monitor()
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=100, steps=1, cpu_s=2.0, bpt_s=0.5), 1.0)
    monitor.heartbeat("worker-0", NodeFacts(inc=2, samples=5, cpu_s=1.0), 2.0)
    assert (monitor.nodes["worker-0"].samples, monitor.nodes["worker-0"].cpu_s) == (105, 3.0)
    assert monitor.speed("worker-0") is None


def test_means_stay_while_no_step_ends() -> None:
    monitor = Monitor()
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=100, steps=4, bpt_s=2.0), 1.0)
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=100, rss_bytes=7), 1.5)
    facts = monitor.nodes["worker-0"].facts
    assert (facts.bpt_s, facts.rss_bytes) == (2.0, 7)
    assert monitor.step_s() == 2.0


def test_progress_is_what_grows() -> None:
    monitor = Monitor()
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=100), 1.0)
    assert monitor.progress_s == 0.0
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=200), 2.0)
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=200), 3.0)
    assert monitor.progress_s == 2.0
    monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=300), 4.0)
    assert monitor.speed("worker-0") == pytest.approx(50.0)
