"""Sizes, bounds, rates and plans: what they say of themselves."""

import random
import statistics

import pytest
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.features.sizes.policy import registry
from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.features.sizes.policy.plan import NodeTarget, ResourcePlan
from paceline.features.sizes.policy.rates import rate_since
from paceline.policy.job_size import GIB, JobSize, ResourcePrices
from tests.unit.sizes.sizing import SMALL, observation, windows

SIZE = JobSize(
    workers=4,
    servers=2,
    worker_cpu=1.0,
    server_cpu=0.5,
    worker_memory=GIB,
    server_memory=2 * GIB,
)


def test_a_size_says_what_it_takes() -> None:
    assert SIZE.cores == 5.0
    assert JobSize(workers=3, servers=1).cores == 4.0
    assert SIZE.memory_bytes == 8 * GIB
    assert SIZE.cost(ResourcePrices()) == pytest.approx(5.8)


def test_parts_of_a_change_are_named_and_cost_what_earlier_ones_did() -> None:
    more = replace(SMALL, workers=3, server_cpu=2.0)
    assert SMALL.differing(more) == ("workers", "server_cpu")
    assert SMALL.kinds(more) == ("server_size", "workers")
    assert SMALL.differing(replace(SMALL, worker_cpu=1.0 + 1e-9)) == ()
    seen = observation()
    assert seen.transition_s(replace(SMALL, workers=2, servers=2)) == 15.0
    assert seen.stall_s(replace(SMALL, workers=2)) == 0.5


@pytest.mark.parametrize(
    ("bounds", "excess"),
    [
        (ResourceBounds(), ""),
        (ResourceBounds(cores=5.0, memory_bytes=8 * GIB, max_workers=4), ""),
        (ResourceBounds(cores=4.9), "cores: 5, and the limit is 4.9"),
        (ResourceBounds(memory_bytes=7 * GIB), "GiB of memory: 8, and the limit is 7"),
        (ResourceBounds(cost=5.0), "cost per hour: 5.8, and the limit is 5"),
        (ResourceBounds(max_workers=3), "4 workers, and at most 3 may be"),
        (ResourceBounds(min_servers=3), "2 servers, and at least 3 must be"),
        (ResourceBounds(max_node_cores=0.7), "cores of one node: 1, and the limit is 0.7"),
        (ResourceBounds(max_node_bytes=GIB), "GiB of one node"),
        (ResourceBounds(min_node_cores=0.6), "cores of one node: 0.5, and the least is 0.6"),
    ],
)
def test_bounds_say_what_is_too_much(bounds: ResourceBounds, excess: str) -> None:
    found = bounds.excess(SIZE, ResourcePrices())
    assert found.startswith(excess)
    assert bool(found) == bool(excess)


def test_a_rate_needs_windows_that_count() -> None:
    many = windows([10.0] * 3 + [20.0] * 3)
    assert rate_since(many, 30.0, 4) is None
    rate = rate_since(many, 30.0)
    assert rate is not None
    assert (rate.per_s, rate.error, rate.windows) == (20.0, 0.0, 3)
    broken = tuple(replace(each, disturbed=each.end_s == 60.0) for each in many)
    assert rate_since(broken, 30.0) is None


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_the_error_of_a_rate_covers_its_scatter(alike: float) -> None:
    draw = random.Random(1)
    off = []
    for _ in range(300):
        level, rates = 0.0, []
        for _ in range(40):
            level = alike * level + draw.gauss(0.0, 10.0)
            rates.append(100.0 + level)
        rate = rate_since(windows(rates), None)
        assert rate is not None
        off.append((rate.per_s - 100.0) / rate.error)
    # Of a normal error, 1; a little more where correlation is estimated from the same windows.
    assert 0.85 < statistics.pstdev(off) < 1.35


def test_a_rate_that_rises_has_not_settled() -> None:
    rising = rate_since(windows([50.0, 60.0, 70.0, 80.0, 90.0, 100.0]), None)
    even = rate_since(windows([98.0, 101.0, 100.0, 99.0, 102.0, 100.0]), None)
    assert rising is not None
    assert even is not None
    assert (rising.settled, even.settled) == (False, True)


def test_a_plan_explains_itself() -> None:
    asked = ResourcePlan(
        target=replace(SMALL, workers=4, server_cpu=2.0),
        nodes=(NodeTarget(node="server-1", cpu=3.0),),
        relieves="compute",
        present_per_s=100.0,
        expected_per_s=320.0,
        cost_s=2.5,
        cost_per_hour=4.0,
        confidence=0.8,
        extrapolates=("workers",),
    )
    assert asked.describe(SMALL) == (
        "workers 1 -> 4, server cpu 1 -> 2, server-1 to 3 cores: relieves the workers' "
        "computation; expects 320 samples/s after 100 (confidence 0.80, beyond what was measured "
        "in workers); costs 2.5 s, and +4 an hour"
    )


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_built_in_policies_are_found_and_need_no_parameters(name: str) -> None:
    assert isinstance(registry.RESOURCES.make(name), registry.BUILT_IN[name])


def test_an_unknown_policy_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no resource policy 'non'; .*did you mean none"):
        registry.RESOURCES.make("non")
