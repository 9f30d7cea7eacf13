"""Run lengths: the posterior over the time since a series last changed its level.

Reference: Adams & MacKay 2007, arXiv:0710.3742 (run lengths); Murphy 2007 (the conjugate updates).
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RunLengths:
    """Posterior over the time since the last change point of a series of normal values.

    Args:
        mean: prior mean of a new run.
        scale: prior standard deviation of a value about its run's mean.
        hazard: probability of a change point at any value.
        longest: run lengths kept; memory and time per value are proportional to it.
    """

    def __init__(self, mean: float, scale: float, hazard: float = 1 / 250, longest: int = 250):
        self._prior = (mean, 2.0 * scale * scale)
        self._hazard = hazard
        self._longest = longest
        self.log_weights: Floats = np.zeros(1)
        """Logarithms of the run lengths' probabilities; the first is the hazard's, see
        `paceline.policy.stats.changes`."""
        self._means: Floats = np.array([mean])
        self._betas: Floats = np.array([self._prior[1]])

    def update(self, value: float) -> None:
        """Take in the next value."""
        n = len(self._means)
        t = _tables(self._longest)
        off = value - self._means
        squares = off * off
        log_density = (
            t.log_norm[:n]
            - 0.5 * np.log(self._betas)
            - t.power[:n] * np.log1p(squares / (self._betas * t.width[:n]))
        )
        joint = self.log_weights + log_density
        joint -= joint.max()
        log_total = math.log(float(np.exp(joint).sum()))
        keep = min(n, self._longest - 1)
        mean, beta = self._prior
        self.log_weights = _shifted(
            math.log(self._hazard), joint[:keep] + (math.log1p(-self._hazard) - log_total)
        )
        self._betas = _shifted(beta, (self._betas + squares * t.spread[:n])[:keep])
        self._means = _shifted(mean, (self._means + off * t.pull[:n])[:keep])
        if n > keep:
            self.log_weights -= math.log(float(np.exp(self.log_weights).sum()))

    def mass(self, first: int, last: int) -> float:
        """Probability that the run is ``first`` to ``last`` values long."""
        return float(np.exp(self.log_weights[first : last + 1]).sum())

    def likeliest(self, first: int, last: int) -> int:
        """The likeliest of the run lengths from ``first`` to ``last``."""
        return first + int(self.log_weights[first : last + 1].argmax())


def _shifted(head: float, tail: Floats) -> Floats:
    out = np.empty(len(tail) + 1)
    out[0] = head
    out[1:] = tail
    return out


class _Tables:
    """Terms of a Student-t density and of the updates that depend on the run length alone."""

    def __init__(self, longest: int) -> None:
        run = np.arange(longest, dtype=np.float64)
        kappa, alpha = 1.0 + run, 1.0 + 0.5 * run
        freedom = 2.0 * alpha
        gammas = [math.lgamma(0.5 * f + 0.5) - math.lgamma(0.5 * f) for f in freedom.tolist()]
        self.width: Floats = 2.0 * (kappa + 1.0) / kappa
        """Times beta: degrees of freedom times the squared scale."""
        self.log_norm: Floats = np.array(gammas) - 0.5 * np.log(np.pi * self.width)
        self.power: Floats = alpha + 0.5
        self.spread: Floats = kappa / (2.0 * (kappa + 1.0))
        self.pull: Floats = 1.0 / (kappa + 1.0)


_tables = functools.lru_cache(_Tables)
