"""A size is tried to learn from where what was measured leaves open what fewer nodes bring."""

import pytest
from msgspec.structs import replace

from paceline.features.sizes.policy.history import MeasuredSize, PlanOutcome, SizingHistory
from paceline.features.sizes.policy.observation import (
    ResourceBounds,
    ResourceObservation,
    StepParts,
)
from paceline.features.sizes.policy.plan import Hold, ResourcePlan
from paceline.features.sizes.policy.policies.rm import DlroverRm
from paceline.features.sizes.policy.rates import JobRate
from paceline.policy.job_size import JobSize
from tests.unit.sizes.sizing import observation

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


def test_a_job_on_its_way_tries_fewer_nodes_for_less() -> None:
    """As a real job measured them: xDeepFM, quota 1.2. With one worker it was faster by 14 %."""
    half = JobSize(workers=2, servers=1, worker_cpu=0.36, server_cpu=0.36)
    last = JobSize(workers=2, servers=1, worker_cpu=0.48, server_cpu=0.24)
    helped = PlanOutcome(
        origin=half,
        target=last,
        relieves="compute",
        before_per_s=10575.0,
        expected_per_s=13218.0,
        after_per_s=13671.0,
        verdict="better",
    )
    before = SizingHistory(
        measured=(
            measured(MANY, 2263.0, (0.088, 0.054), (0.0673, 0.0009, 0.0458)),
            measured(THEN, 6502.0, (0.177, 0.117), (0.0263, 0.0008, 0.0185)),
            replace(measured(half, 10575.0, (0.348, 0.101), (0.0186, 0.0006, 0.0063)), batch=128.0),
            replace(measured(last, 13671.0, (0.463, 0.138), (0.0152, 0.0006, 0.0054)), batch=128.0),
        ),
        outcomes=(helped,),
        probes=1,
    )
    rates = [13600.0, 13700.0, 13650.0, 13680.0, 13671.0]
    bounds = ResourceBounds(
        cores=1.2, max_workers=4, max_servers=2, min_node_cores=0.06, core_step=0.06
    )
    seen = observation(rates, last, batch_size=128, global_batch=256, bounds=bounds)
    plan = DlroverRm().decide(seen, before)
    assert isinstance(plan, ResourcePlan)
    assert plan.aim == "learn"
    assert (plan.target.workers, plan.target.servers) == (1, 1)
    # One that no change has helped, but for more memory, is well-sized as far as anybody can tell.
    for others in ((), (replace(helped, relieves="memory"),), (replace(helped, verdict="worse"),)):
        assert isinstance(DlroverRm().decide(seen, replace(before, outcomes=others)), Hold)
    assert isinstance(DlroverRm().decide(seen, replace(before, probes=3)), Hold)
