"""A size is tried to learn from where what was measured leaves open what fewer nodes bring."""

import pytest

from paceline.policy.resources.history import MeasuredSize, SizingHistory
from paceline.policy.resources.observation import (
    JobSize,
    ResourceBounds,
    ResourceObservation,
    StepParts,
)
from paceline.policy.resources.plan import ResourcePlan
from paceline.policy.resources.policies.rm import DlroverRm
from paceline.policy.resources.rates import JobRate
from tests.unit.resources.sizing import observation

MANY = JobSize(workers=4, servers=2, worker_cpu=0.09, server_cpu=0.42)
THEN = JobSize(workers=4, servers=2, worker_cpu=0.18, server_cpu=0.24)


def measured(
    size: JobSize, per_s: float, cores: tuple[float, float], parts_s: tuple[float, float, float]
) -> MeasuredSize:
    compute_s, server_s, message_s = parts_s
    return MeasuredSize(
        size=size,
        batch=64.0,
        rate=JobRate(per_s=per_s, error=0.03 * per_s, windows=6),
        parts=StepParts(compute_s=compute_s, server_s=server_s, message_s=message_s),
        worker_cores=cores[0],
        server_cores=cores[1],
        skew=1.08,
    )


@pytest.fixture
def history() -> SizingHistory:
    """As a real job measured them: Wide & Deep, quota 1.2, from the most nodes there may be."""
    return SizingHistory(
        measured=(
            measured(MANY, 4264.0, (0.089, 0.101), (0.0314, 0.0016, 0.0383)),
            measured(THEN, 9455.0, (0.170, 0.174), (0.0127, 0.0009, 0.0148)),
        )
    )


@pytest.fixture
def seen() -> ResourceObservation:
    bounds = ResourceBounds(
        cores=1.2, max_workers=4, max_servers=2, min_node_cores=0.06, core_step=0.06
    )
    rates = [9400.0, 9500.0, 9450.0, 9460.0, 9465.0]
    return observation(rates, THEN, batch_size=64, global_batch=256, bounds=bounds)


def test_fewer_nodes_are_tried_where_they_may_bring_much(
    seen: ResourceObservation, history: SizingHistory
) -> None:
    plan = DlroverRm().decide(seen, history)
    assert isinstance(plan, ResourcePlan)
    assert plan.aim == "learn"
    assert (plan.target.workers, plan.target.servers) < (4, 2)
    assert plan.expected_per_s >= 0.95 * 9455.0
    assert not seen.bounds.excess(plan.target, seen.prices)
