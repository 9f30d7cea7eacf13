"""AntMan's rules, one by one."""

import pytest
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.features.cluster.policy.estimate import waits
from paceline.features.cluster.policy.facts import (
    AnySchedulingAct,
    ClusterDevice,
    ClusterFacts,
    ClusterJob,
    HoldJob,
    ReserveDevices,
    StartJob,
    Tenant,
    UpgradeJob,
    after,
)
from paceline.features.cluster.policy.policies.antman import AntMan
from paceline.features.cluster.policy.policies.plain import Fifo, YarnCs
from paceline.features.cluster.policy.registry import SCHEDULERS

NOW_S = 1000.0
PLAIN = AntMan()


def cluster(*sizes: int, a: int = 0, b: int = 0, loads: tuple[float, ...] = ()) -> ClusterFacts:
    """Machines with so many devices each, and the quotas of two tenants."""
    names = [(f"n{node}/{at}", f"n{node}") for node, size in enumerate(sizes) for at in range(size)]
    devices = tuple(
        ClusterDevice(name, node, loads[at] if loads else 0.0)
        for at, (name, node) in enumerate(names)
    )
    return ClusterFacts(now_s=NOW_S, tenants=(Tenant("a", a), Tenant("b", b)), devices=devices)


def job(name: str, size: int = 1, tenant: str = "a", **more: object) -> ClusterJob:
    """A job that was submitted in the second that its name ends in."""
    made = ClusterJob(
        job_id=name,
        tenant=tenant,
        asked="guaranteed",
        size=size,
        submitted_s=NOW_S - 100 + int(name[-1]),
    )
    return replace(made, **more)


def running(one: ClusterJob, *devices: str, kind: str = "guaranteed") -> ClusterJob:
    """The same job since long ago."""
    return replace(one, kind=kind, devices=devices, started_s=NOW_S - 50, size=len(devices))


def decide(
    facts: ClusterFacts, *jobs: ClusterJob, policy: AntMan = PLAIN
) -> list[AnySchedulingAct]:
    """What the policy says about these jobs."""
    return policy.decide(replace(facts, jobs=jobs))


def started(acts: list[AnySchedulingAct]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Which jobs start, how, and where."""
    return [(one.job_id, one.kind, one.devices) for one in acts if isinstance(one, StartJob)]


def test_the_tenant_with_the_least_part_of_its_quota_in_use_is_next() -> None:
    facts = cluster(8, a=4, b=2)
    acts = decide(
        facts,
        running(job("a0"), "n0/0", "n0/1"),
        job("a1"),
        job("b2", tenant="b"),
        job("b3", tenant="b"),
    )
    # b uses nothing, then as much as a (half), and a's job was submitted before.
    assert [name for name, _, _ in started(acts)] == ["b2", "a1", "b3"]
    assert acts[0].reason == "b uses 0 of its quota of 2, the least part of all"


def test_a_tenants_jobs_wait_behind_its_first_one() -> None:
    acts = decide(cluster(4, a=2), running(job("a0"), "n0/0"), job("a1", 2), job("a2"))
    assert [type(act) for act in acts] == [HoldJob, HoldJob]
    assert [act.reason for act in acts] == [
        "needs 2 of the quota of a, which uses 1 of 2",
        "waits behind a1 of a",
    ]


def test_a_gang_reserves_a_whole_machine_and_opportunistic_jobs_use_it_meanwhile() -> None:
    facts = cluster(2, 2, a=2, b=2)
    one, other = running(job("b0", tenant="b"), "n0/0"), running(job("b1", tenant="b"), "n1/0")
    other = replace(other, expected_s=60.0)  # it will be over in 10 s
    gang, small = job("a2", 2, one_node=True), job("a3", asked="opportunistic")
    acts = decide(facts, one, other, gang, small)
    assert isinstance(acts[0], ReserveDevices)
    assert acts[0].devices == ("n1/1", "n1/0")
    assert started(acts) == [("a3", "opportunistic", ("n0/0",))]
    # Nobody else gets a guaranteed place there, and the gang starts when the job is over.
    kept = replace(facts, jobs=(one, other, gang))
    kept = after(kept, acts[0])
    late = job("b4", tenant="b")
    assert started(AntMan().decide(replace(kept, jobs=(*kept.jobs, late)))) == []
    free = replace(kept, jobs=tuple(each for each in kept.jobs if each != other))
    assert started(AntMan().decide(free)) == [("a2", "guaranteed", ("n1/0", "n1/1"))]


def test_two_gangs_reserve_nothing_twice() -> None:
    facts = cluster(2, 2, a=2, b=2)
    facts = replace(facts, tenants=(Tenant("a", 2), Tenant("b", 2), Tenant("c", 0)))
    busy = [
        running(job(f"c{at}", tenant="c"), name, kind="guaranteed")
        for at, name in enumerate(("n0/0", "n1/0"))
    ]
    gangs = job("a2", 2, one_node=True), job("b3", 2, tenant="b", one_node=True)
    acts = decide(facts, *busy, *gangs)
    found = [act.devices for act in acts if isinstance(act, ReserveDevices)]
    assert len(found) == 2
    assert set(found[0]).isdisjoint(found[1])


def test_opportunistic_jobs_go_to_the_least_loaded_devices_up_to_the_cap() -> None:
    facts = cluster(3, loads=(0.5, 0.9, 0.2))
    jobs = [job(f"a{at}", asked="opportunistic") for at in range(5)]
    acts = decide(facts, *jobs)
    places = [devices for _, _, devices in started(acts)]
    # One that has just started is not in the load yet: it makes the device look full.
    assert places == [("n0/2",), ("n0/0",)]
    held = [act.reason for act in acts if isinstance(act, HoldJob)]
    assert held[0] == "it is opportunistic, but too few devices have room for it"
    assert held[1] == "it is opportunistic, but waits behind a2 of a"
    acts = decide(facts, *jobs, policy=AntMan(busy=1.1))
    assert len(started(acts)) == 5


def test_an_opportunistic_job_shares_a_device_with_a_guaranteed_one() -> None:
    facts = cluster(1, a=1)
    acts = decide(facts, running(job("a0"), "n0/0"), job("a1", asked="opportunistic"))
    assert started(acts) == [("a1", "opportunistic", ("n0/0",))]


@pytest.mark.parametrize(("left_s", "kind"), [(30.0, None), (100.0, "opportunistic")])
def test_an_auto_job_becomes_opportunistic_when_it_would_wait_too_long(
    left_s: float, kind: str | None
) -> None:
    first = replace(running(job("a0"), "n0/0"), expected_s=50.0 + left_s)
    auto = job("a1", asked="auto", submitted_s=NOW_S - 10.0)
    acts = decide(cluster(2, a=1), first, auto)
    assert [found for _, found, _ in started(acts)] == ([] if kind is None else [kind])
    if kind:
        assert acts[0].reason == ("it would wait longer than 60 s for the quota of a")


def test_an_auto_job_that_no_quota_is_large_enough_for_is_opportunistic_at_once() -> None:
    acts = decide(cluster(4, a=1), job("a1", 2, asked="auto"))
    assert started(acts) == [("a1", "opportunistic", ("n0/0", "n0/1"))]


def test_an_upgrade_comes_before_a_later_job_and_after_an_earlier_one() -> None:
    facts = cluster(2, a=1)
    auto = running(job("a1", asked="auto"), "n0/0", kind="opportunistic")
    acts = decide(facts, auto, job("a2"))
    assert [type(act) for act in acts] == [UpgradeJob, HoldJob]
    acts = decide(facts, job("a0"), auto)
    assert started(acts) == [("a0", "guaranteed", ("n0/1",))]


def test_no_upgrade_beside_another_guaranteed_job_nor_of_a_job_that_asked_for_none() -> None:
    facts = cluster(2, a=1, b=1)
    other = running(job("b0", tenant="b"), "n0/0")
    auto = running(job("a1", asked="auto"), "n0/0", kind="opportunistic")
    fixed = running(job("a2", asked="opportunistic"), "n0/1", kind="opportunistic")
    assert decide(facts, other, auto, fixed) == []
    assert [type(act) for act in decide(facts, auto, fixed)] == [UpgradeJob]


def test_a_gang_is_not_starved_by_a_stream_of_small_jobs() -> None:
    policy = AntMan()
    facts = cluster(2, 2, a=2, b=2)
    gang = job("a9", 2, one_node=True)
    small = [running(job(f"b{at}", tenant="b"), name) for at, name in enumerate(("n0/0", "n1/0"))]
    facts = replace(facts, jobs=(*small, gang))
    for step in range(20):
        for act in policy.decide(facts):
            facts = after(facts, act)
        if next(one for one in facts.jobs if one.job_id == "a9").kind:
            break
        first = next(one for one in facts.jobs if one.kind)
        fresh = replace(job("b5", tenant="b"), job_id=f"s{step}", submitted_s=facts.now_s)
        rest = tuple(one for one in facts.jobs if one != first)
        facts = replace(facts, jobs=(*rest, fresh), now_s=facts.now_s + 10)
    assert step <= 2


def test_waits_are_those_of_the_queue_simulated_forward() -> None:
    facts = cluster(2, a=1)
    first = replace(running(job("a0"), "n0/0"), expected_s=80.0)  # for another 30 s
    facts = replace(facts, jobs=(first, job("a1", expected_s=100.0), job("a2"), job("a3", 2)))
    assert waits(facts, AntMan().claims) == {"a1": 30.0, "a2": 130.0}
    assert waits(facts, AntMan().claims, most_s=60.0) == {"a1": 30.0}
    assert waits(facts, AntMan().claims, most_ends=1) == {"a1": 30.0}


def test_fifo_knows_no_tenants_and_yarn_goes_beyond_a_quota_on_idle_devices() -> None:
    jobs = (job("a1", 2), job("b2", tenant="b"), job("a3"))
    facts = replace(cluster(3, a=1, b=1), jobs=jobs)
    assert [name for name, _, _ in started(Fifo().decide(facts))] == ["a1", "b2"]
    found = [(name, kind) for name, kind, _ in started(YarnCs().decide(facts))]
    assert found == [("b2", "guaranteed"), ("a1", "opportunistic")]
    assert started(YarnCs(elastic=False).decide(facts)) == [("b2", "guaranteed", ("n0/0",))]


def test_what_can_never_start_is_refused() -> None:
    facts = cluster(2, 2, a=1)
    policy = AntMan()
    assert policy.refusal(facts, job("a1", 5)) == (
        "it needs 5 devices, and there are fewer in the cluster"
    )
    assert policy.refusal(facts, job("a1", 3, one_node=True)).endswith("fewer on one machine")
    assert policy.refusal(facts, job("a1", 2)) == (
        "it needs 2 guaranteed devices, and a has a quota of 1"
    )
    assert policy.refusal(facts, job("a1", 2, asked="auto")) == ""
    assert Fifo().refusal(facts, job("a1", 2)) == ""


def test_policies_are_found_by_name() -> None:
    assert SCHEDULERS.names() == ["antman", "fifo", "yarn_cs"]
    assert SCHEDULERS.make("antman", {"wait_s": "5"}) == AntMan(wait_s=5.0)
    with pytest.raises(ConfigError, match=r"no policy 'antmen'.*did you mean antman\?"):
        SCHEDULERS.make("antmen")
    with pytest.raises(ConfigError, match="policy antman has no parameter wait"):
        SCHEDULERS.make("antman", {"wait": 5})
