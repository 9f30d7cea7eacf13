"""Sizes that are tried to learn something: they tell terms of the model apart.

A plan whose outcome the measurements leave open is not followed blindly. A size close to the
present one is tried first: the one after which the plan's outcome would be known best.

Reference: none; DLRover-RM fits its model to whatever sizes the job has had.
"""

import math
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation
from paceline.features.sizes.policy.plan import ResourcePlan
from paceline.features.sizes.policy.step_model import SizeModel, SizeTable, columns, confidence
from paceline.policy.job_size import JobSize

_MEASURED = 0.05
"""Relative error with which the step's time would be known at a size that is tried."""
_NO_LOSS = 0.95
"""Least part of the present rate that a size must promise to be tried."""
_LEARNS = 0.8
"""Largest part of the variance at the plan's target that a trial may leave."""


def probe(
    seen: ResourceObservation, history: SizingHistory, model: SizeModel, plan: ResourcePlan
) -> ResourcePlan | None:
    """The size to try before a plan; None: none teaches enough.

    Args:
        seen: the job now.
        history: sizes that were measured or did not work out are not tried.
        model: of the job's steps.
        plan: whose outcome is open.
    """
    covariance = np.array(model.covariance)
    target = columns(_table(seen, plan.target), model.form)[0]
    spread = float(target @ covariance @ target)
    now = _table(seen, seen.size)
    best: tuple[float, JobSize] | None = None
    for size in _near(seen, plan.target):
        if seen.bounds.excess(size, seen.prices) or history.avoids(size, seen.now_s):
            continue
        if any(not each.size.differing(size) for each in history.measured):
            continue
        table = _table(seen, size)
        if float(model.per_s(table)[0] / model.per_s(now)[0]) < _NO_LOSS:
            continue
        row = columns(table, model.form)[0]
        step_s = float(row @ np.array(model.coefficients))
        noise = (_MEASURED * step_s) ** 2
        known = target @ covariance @ row
        left = spread - float(known**2 / (row @ covariance @ row + noise))
        if left < _LEARNS * spread and (best is None or left < best[0]):
            best = left, size
    if best is None:
        return None
    size = best[1]
    table = _table(seen, size)
    ratio = float(model.per_s(table)[0] / model.per_s(now)[0])
    error = float(model.errors(table)[0])
    return ResourcePlan(
        target=size,
        aim="learn",
        relieves="too_little_known",
        present_per_s=plan.present_per_s,
        expected_per_s=plan.present_per_s * ratio,
        expected_error=error,
        cost_s=seen.stall_s(size),
        cost_per_hour=size.cost(seen.prices) - seen.size.cost(seen.prices),
        confidence=confidence(error),
        extrapolates=model.outside(size),
    )


def _table(seen: ResourceObservation, size: JobSize) -> SizeTable:
    return SizeTable.of([size], [seen.batch_at(size.workers)])


def _near(seen: ResourceObservation, target: JobSize) -> Iterator[JobSize]:
    """Steps from the present size towards the target: in one dimension, or a part of the way."""
    now, step = seen.size, seen.bounds.core_step
    partly = {
        "workers": round(math.sqrt(now.workers * target.workers)),
        "servers": round(math.sqrt(now.servers * target.servers)),
        "worker_cpu": _rounded(math.sqrt(now.worker_cpu * target.worker_cpu), step),
        "server_cpu": _rounded(math.sqrt(now.server_cpu * target.server_cpu), step),
    }
    for name, value in partly.items():
        for towards in (value, getattr(target, name)):
            if towards != getattr(now, name):
                yield replace(now, **{name: towards})
    halfway = replace(now, **partly)
    if halfway.differing(now) and halfway.differing(target):
        yield halfway


def _rounded(cores: float, step: float) -> float:
    return round(max(round(cores / step), 1) * step, 9) if cores else 0.0
