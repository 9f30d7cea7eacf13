"""Observations and the loop, for tests of resource policies."""

from collections.abc import Sequence

import msgspec

from paceline.features.sizes.policy.observation import (
    RateWindow,
    ResourceBounds,
    ResourceObservation,
    TransitionTime,
)
from paceline.policy.job_size import JobSize

SMALL = JobSize(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)


def windows(
    rates: Sequence[float], begin_s: float = 0.0, seconds: float = 10.0
) -> tuple[RateWindow, ...]:
    """One window of each rate, one after the other."""
    return tuple(
        RateWindow(end_s=begin_s + (number + 1) * seconds, seconds=seconds, samples=rate * seconds)
        for number, rate in enumerate(rates)
    )


def observation(
    rates: Sequence[float] = (100.0, 101.0, 99.0, 100.0, 100.0),
    size: JobSize = SMALL,
    begin_s: float = 0.0,
    **fields: object,
) -> ResourceObservation:
    """A job of these rates, now at the end of the last."""
    seen = ResourceObservation(
        now_s=begin_s + 10.0 * len(rates),
        mode="asp",
        batch_size=100,
        samples_done=10_000,
        size=size,
        bounds=ResourceBounds(cores=20.0),
        windows=windows(rates, begin_s),
        transitions=(
            TransitionTime(kind="workers", seconds=5.0, stall_s=0.5),
            TransitionTime(kind="servers", seconds=10.0, stall_s=1.0),
        ),
    )
    return msgspec.structs.replace(seen, **fields)
