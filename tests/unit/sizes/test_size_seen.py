"""What a resource policy is shown of a job: how long its nodes wait for a place."""

from paceline.features.sizes.policy.observation import PendingTime
from paceline.features.sizes.seen import pending_times
from paceline.policy.job_size import JobSize


def test_waits_of_real_launches_count_and_the_platform_speaks_for_quotas_without_any() -> None:
    size = JobSize(workers=2, servers=1, worker_cpu=1.0, server_cpu=0.5)
    measured = {1.0: [2.0, 4.0], 8.0: [60.0]}

    assert pending_times(measured, 7.0, size) == (
        PendingTime(cores=0.5, seconds=7.0, launches=0),
        PendingTime(cores=1.0, seconds=3.0, launches=2),
        PendingTime(cores=8.0, seconds=60.0, launches=1),
    )
    assert pending_times({}, None, size) == ()
    unlimited = JobSize(workers=1, servers=1)
    assert pending_times({}, 7.0, unlimited) == ()
