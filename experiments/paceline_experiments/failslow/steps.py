"""Synthetic jobs for the detector: the time of each step, and when the job was slow.

All have benign shifts of level of up to 7 % and single slow steps. What differs is the noise, how
long samples are, and whether the amount of work is known.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.features.failslow.policy.detection import StepFact

Floats = NDArray[np.float64]

_SHIFT = 0.07
_SPIKES = 0.006
_SPIKE = 1.5, 3.0
_FIRST = 100
"""Steps before which no episode begins."""


class Episode(NamedTuple):
    """A stretch of slow steps."""

    start: int
    end: int
    factor: float


class JobKind(NamedTuple):
    """Ranges from which jobs are drawn; pairs are their ends."""

    name: str
    noise: tuple[float, float] = (0.01, 0.03)
    """Standard deviation of the logarithm of a step's time at equal work."""
    variation: tuple[float, float] = (0.0, 0.0)
    """Standard deviation of the amount of work over its mean."""
    amounts_known: bool = False
    factor: tuple[float, float] = (1.15, 2.0)
    """Time of a step in an episode over that outside."""
    lasts: tuple[int, int] = (60, 200)
    """Steps of an episode."""
    steps: int = 600


class SyntheticJob(NamedTuple):
    """The steps of one job."""

    times_s: Floats
    amounts: Floats | None
    """None: not known to the detector."""
    episode: Episode | None
    spread: float
    """Noise of the logarithm, for a detector that knows the amounts where the job says them."""

    def facts(self) -> list[StepFact]:
        """Return the steps as a detector is given them."""
        ends_s = np.cumsum(self.times_s).tolist()
        known = [None] * len(ends_s) if self.amounts is None else self.amounts.tolist()
        rows = zip(self.times_s.tolist(), ends_s, known, strict=True)
        return [
            StepFact(number=number, end_s=end_s, took_s=took_s, amount=amount)
            for number, (took_s, end_s, amount) in enumerate(rows)
        ]


def draw_job(kind: JobKind, rng: np.random.Generator, *, slow: bool) -> SyntheticJob:
    """Draw one job, with an episode if it is to be a slow one."""
    count = kind.steps
    noise, variation = rng.uniform(*kind.noise), rng.uniform(*kind.variation)
    sigma = math.sqrt(math.log1p(variation * variation))
    amounts = rng.lognormal(-0.5 * sigma * sigma, sigma, count)
    fixed = rng.uniform(0.0, 0.5)
    times_s = (fixed + (1.0 - fixed) * amounts) * np.exp(rng.normal(0.0, noise, count))
    times_s[rng.integers(count) :] *= 1.0 + rng.uniform(-_SHIFT, _SHIFT)
    spikes = rng.random(count) < _SPIKES
    times_s[spikes] *= rng.uniform(*_SPIKE, int(spikes.sum()))
    episode = None
    if slow:
        lasts = int(rng.integers(kind.lasts[0], kind.lasts[1] + 1))
        start = int(rng.integers(_FIRST, count - lasts))
        episode = Episode(start, start + lasts, rng.uniform(*kind.factor))
        times_s[start : episode.end] *= episode.factor
    hidden = 0.0 if kind.amounts_known else (1.0 - fixed) * sigma
    known = amounts if kind.amounts_known else None
    return SyntheticJob(times_s, known, episode, math.hypot(noise, hidden))
