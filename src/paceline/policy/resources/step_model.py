"""The time of a worker's step as a function of a job's size: its terms, and what they need.

Two forms. *Linear* is DLRover-RM's: the servers' work is that of all workers, over all servers'
cores. It is right where all workers push at the same time. *Saturating* is DLRover's: cores beyond
what the graph uses give nothing, a request takes one worker's work, and the servers' cores bound
the rate. Near that bound requests wait, so the two times join smoothly.

Reference: DLRover-RM Eq. 1 to 6; DLRover Eq. 1 and 4.
Differs: the constants M / B and D are part of the coefficients. DLRover has the servers' bound as a
constraint that a plan must keep; here it is a part of the time, so that sizes beyond it have one. A
job without servers has no work of servers, and a ring's transfer instead of theirs. What all
workers share whatever the number of servers (one link, one machine's memory) is one more term.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from paceline.policy.resources.observation import DIMENSIONS, Dimension, JobSize
from paceline.policy.resources.plan import Relief

Floats = NDArray[np.float64]

TERMS: tuple[Relief, ...] = ("compute", "server_work", "sync", "lookup", "shared", "no_term")
"""What each coefficient makes dear, in the order of the columns; the last is the constant."""
_SERVED = TERMS.index("server_work")
_KNEE = 3.0
"""How sharply the two times of the saturating form join."""
_BOUND_ERROR = 0.15
"""Relative error of the bound by the servers' cores."""
_LOG_STEP = 0.1
"""Expected relative error of a model for each factor e outside of what was measured."""


class StepForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a model: what is not found by least squares."""

    saturating: bool = False
    worker_cores: float = math.inf
    """Cores of a worker beyond which more bring nothing (the paper's w hat)."""
    server_cores: float = math.inf
    """The same of a server, for one request."""
    server_work: float = 0.0
    """Core-seconds that a worker's step costs all servers; 0: not known, so servers do not bound
    the rate."""
    skew: float = 1.0
    """Work of the busiest of several servers, for each second of their mean."""

    def bound_s(self, sizes: "SizeTable") -> Floats:
        """Seconds of a step below which the servers' cores do not suffice."""
        work = self.server_work * sizes.workers
        return np.asarray(np.where(sizes.servers > 0.0, work / self.even_cores(sizes), 0.0))

    def even_cores(self, sizes: "SizeTable") -> Floats:
        """Cores for the work of all servers: as many as if each had as much as the busiest."""
        servers = np.maximum(sizes.servers, 1.0)
        granted = np.minimum(sizes.server_cpu, self.server_cores)
        return np.asarray(servers / np.minimum(self.skew, servers) * granted)


class SizeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Many sizes as columns; batches are of one worker."""

    workers: Floats
    servers: Floats
    worker_cpu: Floats
    server_cpu: Floats
    batch: Floats

    def __len__(self) -> int:
        return len(self.workers)

    @classmethod
    def of(cls, sizes: Sequence[JobSize], batches: Sequence[float]) -> "SizeTable":
        """The table of these sizes; a node without a quota counts as one of one core."""

        def column(name: Dimension) -> Floats:
            return np.array([float(getattr(each, name)) for each in sizes])

        worker_cpu, server_cpu = column("worker_cpu"), column("server_cpu")
        return cls(
            workers=column("workers"),
            servers=column("servers"),
            worker_cpu=np.where(worker_cpu > 0.0, worker_cpu, 1.0),
            server_cpu=np.where(server_cpu > 0.0, server_cpu, 1.0),
            batch=np.array([float(each) for each in batches]),
        )


def columns(sizes: SizeTable, form: StepForm) -> Floats:
    """What each coefficient is multiplied by, one row for each size, one column for each term."""
    has_servers = sizes.servers > 0.0
    servers = np.maximum(sizes.servers, 1.0)
    at_once = 1.0 if form.saturating else sizes.workers
    ring = 2.0 * (sizes.workers - 1.0) / sizes.workers
    served = at_once / form.even_cores(sizes)
    return np.stack(
        [
            sizes.batch / np.minimum(sizes.worker_cpu, form.worker_cores),
            np.where(has_servers, served, 0.0),
            np.where(has_servers, sizes.workers / servers, ring),
            np.where(has_servers, sizes.batch / servers, 0.0),
            sizes.workers,
            np.ones(len(sizes)),
        ],
        axis=1,
    )


def joined(free_s: Floats, bound_s: Floats, form: StepForm) -> Floats:
    """A step's time, of that without waiting and the bound by the servers' cores.

    The linear form has the work for all workers already, so there the larger one counts.
    """
    if not form.saturating:
        return np.maximum(free_s, bound_s)
    return np.asarray((free_s**_KNEE + bound_s**_KNEE) ** (1.0 / _KNEE))


def parted(step_s: Floats, bound_s: Floats, form: StepForm) -> Floats:
    """The time without waiting, of a step's time and the bound; the inverse of `joined`."""
    if not form.saturating:
        return step_s
    left = np.maximum(step_s**_KNEE - bound_s**_KNEE, (0.3 * step_s) ** _KNEE)
    return np.asarray(left ** (1.0 / _KNEE))


class SizeModel(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted model of one job."""

    form: StepForm
    coefficients: tuple[float, ...]
    """By term, none below 0."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the coefficients, as far as the measurements determine them."""
    form_error: float
    """Relative error of its form: what it was wrong by at sizes that were held out."""
    lows: tuple[float, ...]
    """Least and largest of each dimension among the measured sizes."""
    highs: tuple[float, ...]

    def step_s(self, sizes: SizeTable) -> Floats:
        """Seconds of a worker's step at each size."""
        return joined(self._free_s(sizes), self.form.bound_s(sizes), self.form)

    def per_s(self, sizes: SizeTable) -> Floats:
        """Samples per second of the job at each size."""
        return np.asarray(sizes.workers * sizes.batch / self.step_s(sizes))

    def errors(self, sizes: SizeTable) -> Floats:
        """Relative error to expect of each: of the coefficients, the form, and the distance."""
        rows = columns(sizes, self.form)
        spread = np.einsum("ij,jk,ik->i", rows, np.array(self.covariance), rows)
        free_s, bound_s = self._free_s(sizes), self.form.bound_s(sizes)
        step_s = joined(free_s, bound_s, self.form)
        of_free = np.sqrt(np.maximum(spread, 0.0)) / step_s * (free_s / step_s) ** (_KNEE - 1.0)
        of_bound = _BOUND_ERROR * (bound_s / step_s) ** _KNEE
        squares = of_free**2 + of_bound**2 + self.form_error**2 + self._distance(sizes) ** 2
        return np.asarray(np.sqrt(squares))

    def least_per_s(self, sizes: SizeTable) -> Floats:
        """Samples per second if cores of one node beyond the most that was measured bring nothing.

        One thread can use a whole core, so that many bring something in any case.
        """
        known = replace(
            self.form,
            worker_cores=min(self.form.worker_cores, max(self.highs[2], 1.0)),
            server_cores=min(self.form.server_cores, max(self.highs[3], 1.0)),
        )
        return replace(self, form=known).per_s(sizes)

    def terms(self, sizes: SizeTable) -> Floats:
        """Seconds of each term of a step, one row for each size; waiting is the servers'."""
        terms = columns(sizes, self.form) * np.array(self.coefficients)
        terms[:, _SERVED] += self.step_s(sizes) - terms.sum(axis=1)
        return np.asarray(terms)

    def outside(self, size: JobSize) -> tuple[Dimension, ...]:
        """Dimensions in which a size lies outside of what was measured."""
        found = []
        for place, name in enumerate(DIMENSIONS[:4]):
            value = float(getattr(size, name))
            if not self.lows[place] * (1 - 1e-6) <= value <= self.highs[place] * (1 + 1e-6):
                found.append(name)
        return tuple(found)

    def _free_s(self, sizes: SizeTable) -> Floats:
        free_s = columns(sizes, self.form) @ np.array(self.coefficients)
        return np.asarray(np.maximum(free_s, 1e-9))

    def _distance(self, sizes: SizeTable) -> Floats:
        values = np.stack([sizes.workers, sizes.servers, sizes.worker_cpu, sizes.server_cpu])
        logs = np.log(np.maximum(values, 1e-3))
        lows = np.log(np.maximum(np.array(self.lows), 1e-3))[:, np.newaxis]
        highs = np.log(np.maximum(np.array(self.highs), 1e-3))[:, np.newaxis]
        beyond = np.maximum(logs - highs, 0.0) + np.maximum(lows - logs, 0.0)
        return np.asarray(_LOG_STEP * np.sqrt((beyond**2).sum(axis=0)))


def confidence(error: float) -> float:
    """How far to trust a prediction of this relative error, 0 to 1; a half at 0.3."""
    return 1.0 / (1.0 + (error / 0.3) ** 2)
