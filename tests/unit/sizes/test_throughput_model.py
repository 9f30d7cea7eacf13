"""The model of a job's steps: fitted, chosen by held-out error, honest about what it does not know."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from msgspec.structs import replace

from paceline.features.sizes.policy.fitting import fit, rmsle
from paceline.features.sizes.policy.history import MeasuredSize, PlanOutcome, SizingHistory
from paceline.features.sizes.policy.observation import StepParts
from paceline.features.sizes.policy.rates import JobRate
from paceline.features.sizes.policy.step_model import SizeTable, StepForm, columns, confidence
from paceline.policy.job_size import JobSize
from tests.unit.sizes.job_world import BATCH, Job, speed

GRID = [
    JobSize(workers=workers, servers=servers, worker_cpu=worker_cpu, server_cpu=server_cpu)
    for workers, servers, worker_cpu, server_cpu in [
        (1, 1, 1.0, 1.0),
        (2, 1, 1.0, 2.0),
        (4, 1, 2.0, 1.0),
        (4, 2, 0.5, 1.0),
        (8, 2, 1.0, 0.5),
        (8, 4, 2.0, 1.0),
        (12, 4, 0.5, 2.0),
        (16, 4, 1.0, 1.0),
        (16, 8, 0.5, 0.5),
        (24, 8, 0.5, 1.0),
    ]
]
OTHERS = [
    JobSize(workers=workers, servers=servers, worker_cpu=worker_cpu, server_cpu=server_cpu)
    for workers, servers, worker_cpu, server_cpu in itertools.product(
        (3, 10, 20), (2, 6), (0.7, 1.5), (0.8, 1.6)
    )
]


def measured(size: JobSize, step_s: float) -> MeasuredSize:
    per_s = size.workers * BATCH / step_s
    rate = JobRate(per_s=per_s, error=0.01 * per_s, windows=6)
    return MeasuredSize(size=size, batch=BATCH, rate=rate)


def table(*sizes: JobSize) -> SizeTable:
    return SizeTable.of(sizes, [BATCH] * len(sizes))


def by_form(size: JobSize, form: StepForm, coefficients: list[float]) -> float:
    return float((columns(table(size), form) @ np.array(coefficients))[0])


def seen(job: Job, size: JobSize, draw: random.Random) -> MeasuredSize:
    """A size of the made-up job, as it would be measured, 3 % of noise."""
    now = speed(job, size)
    per_s = now.per_s * draw.lognormvariate(0.0, 0.03)
    mean = sum(now.server_cores) / len(now.server_cores)
    return MeasuredSize(
        size=size,
        batch=BATCH,
        rate=JobRate(per_s=per_s, error=0.03 * per_s, windows=6),
        parts=now.parts,
        worker_cores=now.worker_cores,
        server_cores=mean,
        skew=max(now.server_cores) / mean,
    )


def test_the_linear_form_is_recovered_from_times_alone() -> None:
    true = [0.01, 0.004, 0.0, 0.0005, 0.01, 0.02, 0.001, 0.0, 0.03]
    sizes = [measured(each, by_form(each, StepForm(), true)) for each in GRID]
    model = fit(SizingHistory(measured=tuple(sizes[:-1])), sizes[-1], "bsp")
    assert not model.form.saturating
    assert rmsle(model, [measured(each, by_form(each, StepForm(), true)) for each in OTHERS]) < 0.03


def test_cores_beyond_what_the_graph_uses_bring_nothing() -> None:
    """DLRover's Eq. 1: a worker that uses 1.2 cores at most."""
    form = StepForm(saturating=True, worker_cores=1.0)
    true = [0.01, 0.004, 0.0, 0.0005, 0.01, 0.02, 0.0, 0.0, 0.03]
    sizes = [measured(each, by_form(each, form, true)) for each in GRID]
    model = fit(SizingHistory(measured=tuple(sizes[:-1])), sizes[-1], "asp")
    assert model.form.worker_cores == 1.0
    more, most = GRID[3], replace(GRID[3], worker_cpu=4.0)
    enough = replace(GRID[3], worker_cpu=1.0)
    rates = model.per_s(table(more, enough, most))
    assert rates[1] > 1.2 * rates[0]
    assert rates[2] == pytest.approx(rates[1])


@pytest.mark.parametrize(
    "job",
    [
        Job(compute=0.3, threads=2, serve=0.25),
        Job(compute=2.0, threads=4, serve=0.3),
        Job(compute=1.0, serve=0.5, skew=0.6),
    ],
)
def test_another_kind_of_job_is_followed_at_sizes_that_were_not_measured(job: Job) -> None:
    draw = random.Random(4)
    sizes = [seen(job, each, draw) for each in GRID]
    model = fit(SizingHistory(measured=tuple(sizes[:-1])), sizes[-1], "asp")
    off = rmsle(model, [seen(job, each, draw) for each in OTHERS])
    assert off < 0.15
    # What it says of its own error is of the right size.
    assert 0.4 * off < float(np.median(model.errors(table(*OTHERS)))) < 4.0 * off + 0.1


def test_one_server_alone_has_no_busiest_and_two_have() -> None:
    job, draw = Job(compute=1.0, serve=0.5, skew=0.6), random.Random(4)
    one, two = GRID[1], GRID[3]
    model = fit(SizingHistory(measured=(seen(job, one, draw),)), seen(job, two, draw), "asp")
    assert model.form.skew == pytest.approx(1.6, rel=0.05)
    assert BATCH * model.form.server_rows == pytest.approx(0.5, rel=0.1)
    bounds = model.form.bound_s(table(one, replace(one, servers=2)))
    assert bounds[0] / bounds[1] == pytest.approx(2.0 / 1.6, rel=0.05)


def test_cores_that_a_node_uses_while_it_waits_are_found_from_two_sizes() -> None:
    job, draw = Job(compute=0.007, worker_own=0.08, server_own=0.1), random.Random(4)
    job = dataclasses.replace(job, serve=0.0002, network_s=0.0, fixed_s=0.0)
    small = JobSize(workers=1, servers=1, worker_cpu=0.15, server_cpu=0.15)
    large = replace(small, worker_cpu=0.75, server_cpu=0.75)
    model = fit(SizingHistory(measured=(seen(job, small, draw),)), seen(job, large, draw), "asp")
    assert model.form.worker_own == pytest.approx(0.08, abs=0.03)
    # More nodes of the same cores do less.
    split = replace(large, workers=4, worker_cpu=0.1875)
    rates = model.per_s(table(large, split))
    assert rates[1] < 0.85 * rates[0]


def test_one_size_with_its_parts_and_use_foretells_others() -> None:
    job, draw = Job(compute=2.0, threads=4, serve=0.3), random.Random(4)
    first = seen(job, GRID[0], draw)
    model = fit(SizingHistory(), first, "asp")
    target = replace(GRID[0], workers=4, servers=2)
    assert math.log(model.per_s(table(target))[0] / speed(job, target).per_s) == pytest.approx(
        0.0, abs=0.15
    )


def test_what_is_not_measured_lowers_the_confidence() -> None:
    job, draw = Job(), random.Random(4)
    whole = seen(job, GRID[0], draw)
    bare = replace(whole, parts=StepParts(), worker_cores=None, server_cores=None)
    target = table(replace(GRID[0], workers=4))
    with_parts = float(fit(SizingHistory(), whole, "asp").errors(target)[0])
    without = float(fit(SizingHistory(), bare, "asp").errors(target)[0])
    assert confidence(with_parts) > 0.5
    assert confidence(without) < 0.5


def test_the_error_grows_with_the_distance_and_names_the_dimensions() -> None:
    model = fit(SizingHistory(), seen(Job(), GRID[0], random.Random(4)), "asp")
    near, far = replace(GRID[0], workers=2), replace(GRID[0], workers=16)
    errors = model.errors(table(GRID[0], near, far))
    assert errors[0] < errors[1] < errors[2]
    assert model.outside(GRID[0]) == ()
    assert model.outside(replace(far, server_cpu=2.0)) == ("workers", "server_cpu")


def test_plans_that_came_out_as_expected_make_it_surer() -> None:
    now = seen(Job(), GRID[0], random.Random(4))

    def error(after_per_s: float) -> float:
        outcome = PlanOutcome(
            origin=GRID[0],
            target=GRID[1],
            relieves="compute",
            before_per_s=50.0,
            expected_per_s=100.0,
            after_per_s=after_per_s,
            verdict="better",
        )
        return fit(SizingHistory(outcomes=(outcome,)), now, "asp").form_error

    assert error(100.0) < fit(SizingHistory(), now, "asp").form_error < error(60.0)


def test_similar_jobs_are_a_prior_that_own_measurements_outweigh() -> None:
    draw = random.Random(4)
    other = Job(compute=2.0, serve=0.5)
    similar = tuple(seen(other, each, draw) for each in GRID)
    own = seen(Job(compute=1.0, serve=0.3), GRID[0], draw)
    model = fit(SizingHistory(similar=similar), own, "asp")
    assert model.per_s(table(GRID[0]))[0] == pytest.approx(own.rate.per_s, rel=0.1)


def test_a_job_without_servers_has_a_ring() -> None:
    sizes = [JobSize(workers=workers, worker_cpu=1.0) for workers in (1, 2, 4, 8)]
    steps = [1.0 + 0.5 * 2.0 * (each.workers - 1) / each.workers for each in sizes]
    seen_so = [measured(size, step_s) for size, step_s in zip(sizes, steps, strict=True)]
    model = fit(SizingHistory(measured=tuple(seen_so[:-1])), seen_so[-1], "allreduce")
    assert rmsle(model, seen_so) < 0.05
