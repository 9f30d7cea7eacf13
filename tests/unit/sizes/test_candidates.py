"""Sizes on the Pareto front, and which of them is taken."""

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace

from paceline.features.sizes.policy.candidates import SizeOffer, offers, size_at
from paceline.features.sizes.policy.choice import (
    JobOffers,
    SpareResources,
    weight,
    weighted_greedy,
)
from paceline.features.sizes.policy.fitting import fit
from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import (
    ResourceBounds,
    ResourceObservation,
    TransitionTime,
)
from paceline.policy.job_size import GIB, JobSize
from tests.unit.sizes.job_world import Job
from tests.unit.sizes.sizing import observation
from tests.unit.sizes.test_throughput_model import seen as measured

NOW = JobSize(workers=4, servers=2, worker_cpu=1.0, server_cpu=1.0)
JOB = Job(compute=1.0, serve=0.3)


def front(seen: ResourceObservation, **fields: float) -> list[SizeOffer]:
    quotas = replace(seen.size, worker_cpu=1.0, server_cpu=1.0)
    now = replace(measured(JOB, quotas, random.Random(1)), size=seen.size)
    return offers(seen, fit(SizingHistory(), now, "asp"), now.rate.per_s, **fields)


def test_the_front_is_within_the_bounds_and_no_offer_is_beaten() -> None:
    bounds = ResourceBounds(cores=12.0, max_workers=9, max_node_cores=1.5)
    found = front(observation(size=NOW, bounds=bounds))
    assert len(found) > 10
    for each in found:
        assert not bounds.excess(each.size, observation().prices)
        assert 1 <= each.size.workers <= 9
    for one, other in itertools.permutations(found, 2):
        assert not (other.cost < one.cost - 1e-6 and other.gain > one.gain + 1e-6)


def test_the_search_finds_what_trying_all_sizes_finds() -> None:
    seen = observation(size=NOW, bounds=ResourceBounds(cores=10.0, core_step=0.5))
    now = measured(JOB, seen.size, random.Random(1))
    model = fit(SizingHistory(), now, "asp")
    found = offers(seen, model, now.rate.per_s)
    from paceline.features.sizes.policy.step_model import SizeTable

    sizes = [
        size_at(list(point), 0.5, NOW)
        for point in itertools.product(range(1, 17), range(1, 9), range(1, 9), range(1, 9))
    ]
    allowed = [each for each in sizes if each.cores <= 10.0]
    rates = model.per_s(SizeTable.of(allowed, [100] * len(allowed)))
    assert max(each.per_s for each in found) > 0.95 * rates.max()


def test_the_same_job_has_the_same_front_whatever_was_drawn_before() -> None:
    seen = observation(size=NOW)
    first = front(seen)
    random.seed(1)
    np.random.seed(1)
    assert front(seen) == first


def test_a_change_that_costs_more_than_is_left_of_the_job_gains_nothing() -> None:
    dear = tuple(
        TransitionTime(kind=kind, seconds=60.0, stall_s=60.0)
        for kind in ("workers", "servers", "worker_size", "server_size")
    )
    soon = observation(size=NOW, transitions=dear, samples_total=12_000)
    assert all(each.gain <= 0.0 for each in front(soon) if each.size != NOW)
    later = observation(size=NOW, transitions=dear, samples_total=10_000_000)
    assert any(each.gain > 0.0 for each in front(later))


def test_fewer_servers_hold_as_much_memory_together() -> None:
    now = replace(NOW, servers=4, server_memory=GIB)
    assert size_at([4, 3, 10, 10], 0.1, now).server_memory * 3 >= 4 * GIB
    assert size_at([4, 6, 10, 10], 0.1, now).server_memory == GIB


def test_quotas_that_are_not_set_stay_so() -> None:
    free = replace(NOW, worker_cpu=0.0, server_cpu=0.0)
    assert {
        (each.size.worker_cpu, each.size.server_cpu) for each in front(observation(size=free))
    } == {(0.0, 0.0)}


def offer(cores: float, gain: float) -> SizeOffer:
    size = JobSize(workers=1, worker_cpu=cores)
    return SizeOffer(
        size=size,
        per_s=100.0 + gain,
        error=0.0,
        gain=gain,
        cost=cores - 1.0,
        stall_s=0.0,
    )


def job(name: str, gains: dict[float, float], *, of_weight: float = 1.0) -> JobOffers:
    return JobOffers(
        job=name,
        present=JobSize(workers=1, worker_cpu=1.0),
        weight=of_weight,
        per_s=100.0,
        cost=1.0,
        offers=tuple(offer(cores, gain) for cores, gain in gains.items()),
    )


def test_one_job_climbs_as_long_as_it_is_worth_the_cost() -> None:
    gains = {2.0: 80.0, 4.0: 150.0, 8.0: 160.0, 16.0: 161.0}
    assert weighted_greedy([job("a", gains)], SpareResources())["a"].size.worker_cpu == 4.0
    chosen = weighted_greedy([job("a", gains)], SpareResources(), thrift=0.001)
    assert chosen["a"].size.worker_cpu == 16.0
    assert weighted_greedy([job("a", {2.0: -1.0})], SpareResources()) == {}


def test_jobs_that_end_sooner_come_first() -> None:
    gains = {2.0: 50.0}
    soon, late = weight(100.0), weight(1000.0)
    assert weight(100.0, rho=0.0) == weight(1000.0, rho=0.0)
    jobs = [job("late", gains, of_weight=late), job("soon", gains, of_weight=soon)]
    assert set(weighted_greedy(jobs, SpareResources(cores=1.0))) == {"soon"}
    assert set(weighted_greedy(jobs, SpareResources(cores=2.0))) == {"soon", "late"}


@pytest.mark.parametrize("seed", range(8))
def test_greedy_is_close_to_the_best_division(seed: int) -> None:
    draw = random.Random(seed)
    jobs = []
    for number in range(4):
        scale, bend = draw.uniform(20.0, 100.0), draw.uniform(0.3, 0.9)
        gains = {1.0 + cores: scale * cores**bend for cores in range(1, 7)}
        jobs.append(job(str(number), gains))
    spare = 9.0
    chosen = weighted_greedy(jobs, SpareResources(cores=spare), thrift=0.0)
    assert sum(each.cost for each in chosen.values()) <= spare + 1e-9
    total = sum(each.gain for each in chosen.values())
    exact = max(
        sum(each.gain for each in picks if each)
        for picks in itertools.product(*[(None, *each.offers) for each in jobs])
        if sum(each.cost for each in picks if each) <= spare
    )
    assert total >= 0.95 * exact
