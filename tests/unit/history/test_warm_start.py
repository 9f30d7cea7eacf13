"""The size a job begins with: which earlier jobs are like it, and what their sizes make."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.features.history.policy.features import JobFeatures
from paceline.features.history.policy.warm_start import (
    SIMILAR,
    FinishedSize,
    distance,
    smoothed,
    warm_start,
)
from paceline.features.sizes.policy.observation import ResourceBounds
from paceline.policy.job_size import JobSize

CLICKS = JobFeatures(
    user="ada",
    script="/clicks.py",
    arguments="--days 7",
    strategy="ps",
    mode="asp",
    batch_size=4096,
    num_samples=1_000_000,
    table_rows={"users": 1_000, "items": 500},
)


def job(number: int, final: JobSize, **other: Any) -> FinishedSize:
    features = JobFeatures(
        **{name: getattr(CLICKS, name) for name in CLICKS.__struct_fields__} | other
    )
    return FinishedSize(
        job_id=f"job-{number}", ended_s=float(number), features=features, final=final
    )


def workers(count: int, servers: int = 1, **other: Any) -> JobSize:
    return JobSize(workers=count, servers=servers, **other)


def test_the_most_similar_weighs_most() -> None:
    # By hand: from the least similar 1, then 2, 4, 8, 16: 1.5, 2.75, 5.375, 10.6875.
    sizes = [workers(16), workers(8), workers(4), workers(2), workers(1), workers(99)]
    earlier = [
        job(9 - number, size, num_samples=1_000_000 - 10_000 * number)
        for number, size in enumerate(sizes)
    ]
    found = warm_start(CLICKS, earlier)
    assert found is not None
    assert [one.job_id for one in found.similar] == [
        f"job-{9 - number}" for number in range(SIMILAR)
    ]
    assert found.size == workers(11)
    assert found.confidence == 1.0


def test_of_equally_similar_jobs_the_newest_weighs_most() -> None:
    found = warm_start(CLICKS, [job(1, workers(10)), job(3, workers(2)), job(2, workers(10))])
    assert found is not None
    assert [one.job_id for one in found.similar] == ["job-3", "job-2", "job-1"]
    assert found.size.workers == 6


def test_other_jobs_say_nothing() -> None:
    other = {"script": "/speech.py", "arguments": "", "user": "bob", "table_rows": None}
    assert warm_start(CLICKS, [job(1, workers(64), **other)]) is None
    assert warm_start(CLICKS, []) is None


def test_jobs_much_farther_than_the_most_similar_one_do_not_count() -> None:
    doubled = {"batch_size": 2 * 4096}
    found = warm_start(CLICKS, [job(1, workers(4)), job(2, workers(8), **doubled)])
    assert found is not None
    assert found.size == workers(4)
    alone = warm_start(CLICKS, [job(2, workers(8), **doubled)])
    assert alone is not None
    assert (alone.size, alone.confidence) == (workers(8), 1.0 - 0.5 / 8)


def test_features_that_are_not_known_count_neither_way() -> None:
    submitted = JobFeatures(user="ada", script="/clicks.py", arguments="--days 7")
    assert distance(submitted, CLICKS) == 0.0
    assert distance(submitted, JobFeatures(user="bob", script="/clicks.py")) == 0.5
    assert distance(JobFeatures(), CLICKS) == 1.0


def test_sizes_are_apart_by_their_ratio() -> None:
    assert distance(JobFeatures(batch_size=100), JobFeatures(batch_size=400)) == 0.75
    one, other = {"users": 100, "items": 5}, {"users": 50}
    assert distance(JobFeatures(table_rows=one), JobFeatures(table_rows=other)) == 0.75
    assert distance(JobFeatures(table_rows={}), JobFeatures(table_rows={})) == 0.0
    assert distance(JobFeatures(dense_bytes=0), JobFeatures(dense_bytes=0)) == 0.0


FEATURES = st.builds(
    JobFeatures,
    user=st.sampled_from([None, "a", "b"]),
    batch_size=st.one_of(st.none(), st.integers(0, 10**12)),
    table_rows=st.one_of(
        st.none(), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 10**9), max_size=3)
    ),
)


@given(FEATURES, FEATURES)
def test_a_distance_is_symmetric_and_at_most_1(one: JobFeatures, other: JobFeatures) -> None:
    far = distance(one, other)
    assert far == pytest.approx(distance(other, one))
    assert 0.0 <= far <= 1.0
    known = any(getattr(one, name) is not None for name in one.__struct_fields__)
    assert distance(one, one) == (0.0 if known else 1.0)


def test_no_limit_is_no_number() -> None:
    limited, free = workers(2, worker_cpu=2.0, server_memory=100), workers(2, worker_cpu=0.0)
    assert smoothed([limited, free]) == free
    assert smoothed([free, limited]) == limited
    assert smoothed([workers(3), JobSize(workers=3)]).servers == 0
    more = workers(2, worker_cpu=1.0, server_memory=300)
    assert smoothed([limited, more]) == workers(2, worker_cpu=1.5, server_memory=200)


def test_a_first_size_is_within_the_bounds() -> None:
    earlier = [job(1, workers(8, servers=4, worker_cpu=1.0, server_cpu=1.0))]

    def first(**bounds: Any) -> JobSize | None:
        found = warm_start(CLICKS, earlier, ResourceBounds(**bounds))
        return found.size if found else None

    assert first() == earlier[0].final
    few = first(cores=6.0)
    assert few is not None
    assert (few.workers, few.servers) == (2, 4)
    fewer = first(cores=2.0)
    assert fewer is not None
    assert (fewer.workers, fewer.servers) == (1, 1)
    assert first(cores=1.5) is None
    most = first(max_workers=3, max_servers=2)
    assert most is not None
    assert (most.workers, most.servers) == (3, 2)
    held = warm_start(CLICKS, [job(1, JobSize(workers=3))], ResourceBounds())
    assert held is not None
    assert held.size == JobSize(workers=3)
