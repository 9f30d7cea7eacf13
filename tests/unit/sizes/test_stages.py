"""The way between two sizes: it ends, and no stage has more than the larger end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.features.sizes.policy.stages import next_stage, quota
from paceline.policy.job_size import JobSize

SIZES = st.builds(
    JobSize,
    workers=st.integers(1, 8),
    servers=st.integers(1, 4),
    worker_cpu=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    server_cpu=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    worker_memory=st.sampled_from([1 << 28, 1 << 30]),
    server_memory=st.sampled_from([1 << 28, 1 << 30]),
)


@given(origin=SIZES, target=SIZES)
def test_each_way_ends_at_the_target_within_the_larger_end(
    origin: JobSize, target: JobSize
) -> None:
    most_cores = max(origin.cores, target.cores)
    most_bytes = max(origin.memory_bytes, target.memory_bytes)
    now, stages = origin, 0
    while (stage := next_stage(now, target)) is not None:
        assert stage.cores <= most_cores * (1 + 1e-9)
        assert stage.memory_bytes <= most_bytes
        now, stages = stage, stages + 1
        assert stages <= 4
    assert not now.differing(target)


def test_cores_go_from_workers_to_servers_without_a_moment_of_both() -> None:
    origin = JobSize(workers=4, servers=1, worker_cpu=1.0, server_cpu=0.5)
    target = JobSize(workers=2, servers=2, worker_cpu=1.0, server_cpu=1.2)
    first = next_stage(origin, target)
    assert first == JobSize(workers=2, servers=1, worker_cpu=1.0, server_cpu=0.5)
    second = next_stage(first, target)
    assert second == JobSize(workers=2, servers=1, worker_cpu=1.0, server_cpu=1.2)
    assert next_stage(second, target) == target
    assert next_stage(target, target) is None


def test_a_quota_of_nothing_is_the_largest() -> None:
    origin = JobSize(workers=1, servers=1)
    target = JobSize(workers=2, servers=1, worker_cpu=0.5, server_cpu=0.5)
    first = next_stage(origin, target)
    assert first == JobSize(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5)


@pytest.mark.parametrize(
    ("role", "target", "own", "wanted"),
    [
        ((0.5, 1.0), 0.6, {}, (0.6, 1.0)),
        ((0.5, 1.0), 2.0, {}, (2.0, 2.0)),
        ((0.5, 1.0), 0.4, {}, (0.4, 1.0)),
        ((0.5, 0.5), 0.4, {}, (0.4, 0.4)),
        ((0.05, 1.0, 1.0), 1.0, {0: 1.0}, (1.0, 1.0, 1.0)),
        ((1.0, 1.0, 1.0), 0.05, {0: 0.05}, (0.05, 1.0, 1.0)),
        ((1.0, 1.0), 1.0, {1: 1.8}, (1.0, 1.8)),
        ((1.0, 1.8), 1.0, {1: 1.0}, (1.0, 1.0)),
        ((0.0, 0.0), 1.0, {}, (1.0, 1.0)),
        ((1.0, 1.0), 0.0, {}, (0.0, 0.0)),
        ((1.0, 0.0), 1.5, {}, (1.5, 0.0)),
    ],
)
def test_another_quota_of_a_role_cuts_no_node_that_has_more(
    role: tuple[float, ...], target: float, own: dict[int, float], wanted: tuple[float, ...]
) -> None:
    least = min(each or math.inf for each in role)
    least = 0.0 if least == math.inf else least
    found = tuple(
        quota(now, least, target, own.get(number), alone=bool(own))
        for number, now in enumerate(role)
    )
    assert found == wanted
