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
A step and a message have costs of their own, however little is in them: where workers divide a
global batch, they do not become less with more workers. And a node uses some cores while it waits,
which the papers' nodes of whole cores do not show.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from paceline.features.sizes.policy.plan import Relief
from paceline.policy.job_size import DIMENSIONS, Dimension, JobSize

Floats = NDArray[np.float64]

TERMS: tuple[Relief, ...] = (
    "compute",
    "compute",
    "compute",
    "server_work",
    "server_work",
    "sync",
    "lookup",
    "shared",
    "no_term",
)
"""Term that each coefficient belongs to, in the order of the columns. Workers' work has three: for
a sample, for a step, and for a message to each server. Servers' work has two: for a sample, and for
a message. The last is the constant."""
COMPUTED, WORK, SERVED, SENT = (0, 1), (0, 1, 2), (3, 4), (2, 3, 4, 5, 6, 7)
"""Columns of a worker's own part of a step, of its work, of the servers' work, and of all that a
worker waits for."""
_KNEE = 3.0
"""Sharpness with which the two times of the saturating form join."""
_BOUND_ERROR = 0.15
"""Relative error of the bound by the servers' cores."""
_LEAST_PART = 0.1
"""Least part of its cores that a node has for its work, whatever it uses while it waits."""
_FEW_SIZES = 3
"""Sizes from which on they say how the speed changes from one to the next; with fewer it is the
form alone that says it, and a form may be wrong of close sizes, too."""
_LOG_STEP = 0.1
"""Expected relative error of a model for each factor e outside of what was measured."""


class StepForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a model: what is not found by least squares."""

    saturating: bool = False
    worker_cores: float = math.inf
    """Cores of a worker beyond which more bring nothing (the paper's w hat)."""
    server_cores: float = math.inf
    """Cores of a server beyond which more do not help one request."""
    server_rows: float = 0.0
    """Core-seconds that a sample costs all servers; with the next 0: not known, so servers do not
    bound the rate."""
    server_message: float = 0.0
    """Core-seconds that a worker's step costs each server, however little it is asked for."""
    skew: float = 1.0
    """Work of the busiest of several servers, for each second of their mean."""
    worker_own: float = 0.0
    """Cores that a worker uses while it waits."""
    server_own: float = 0.0

    def bound_s(self, sizes: "SizeTable") -> Floats:
        """Seconds of a step below which the servers' cores do not suffice."""
        work = self.server_rows * self.busiest(sizes) + self.server_message
        bound_s = work * sizes.workers / self.server_cpu(sizes)
        return np.asarray(np.where(sizes.servers > 0.0, bound_s, 0.0))

    def busiest(self, sizes: "SizeTable") -> Floats:
        """Samples of a worker's step that are the busiest server's."""
        servers = np.maximum(sizes.servers, 1.0)
        return np.asarray(sizes.batch * np.minimum(self.skew, servers) / servers)

    def worker_cpu(self, sizes: "SizeTable") -> Floats:
        """Cores of each worker for its steps."""
        return _for_work(np.minimum(sizes.worker_cpu, self.worker_cores), self.worker_own)

    def server_cpu(self, sizes: "SizeTable") -> Floats:
        """Cores of each server for requests."""
        return _for_work(np.minimum(sizes.server_cpu, self.server_cores), self.server_own)


def _for_work(granted: Floats, own: float) -> Floats:
    return np.asarray(np.maximum(granted - own, _LEAST_PART * granted))


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
    """Return the factors of the coefficients, one row for each size, one column for each term."""
    has_servers = sizes.servers > 0.0
    servers = np.maximum(sizes.servers, 1.0)
    at_once = 1.0 if form.saturating else sizes.workers
    ring = 2.0 * (sizes.workers - 1.0) / sizes.workers
    worker_cpu, served = form.worker_cpu(sizes), at_once / form.server_cpu(sizes)
    return np.stack(
        [
            sizes.batch / worker_cpu,
            1.0 / worker_cpu,
            np.where(has_servers, sizes.servers, 1.0) / worker_cpu,
            np.where(has_servers, served * form.busiest(sizes), 0.0),
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
    """Coefficients by term, none below 0."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the coefficients, as far as the measurements determine them."""
    form_error: float
    """Relative error of its form: what it was wrong by at sizes that were held out."""
    num_sizes: int
    """Number of sizes that were measured."""
    lows: tuple[float, ...]
    """Least and largest of each dimension among the measured sizes."""
    highs: tuple[float, ...]

    def step_s(self, sizes: SizeTable) -> Floats:
        """Seconds of a worker's step at each size."""
        return joined(self._free_s(sizes), self.form.bound_s(sizes), self.form)

    def per_s(self, sizes: SizeTable) -> Floats:
        """Samples per second of the job at each size."""
        return np.asarray(sizes.workers * sizes.batch / self.step_s(sizes))

    def errors(self, sizes: SizeTable, now: SizeTable | None = None) -> Floats:
        """Relative error to expect of each: of the coefficients, the form, and the distance.

        Args:
            sizes: one or more.
            now: the size at which the level of all rates is measured: close to it, an error of the
                model is the same in both. None: the errors are of the rates alone.
        """
        rows = self._relative(sizes)
        of_form, of_bound = np.full(len(sizes), self.form_error), self._bound_part(sizes)
        if now is not None:
            rows = rows - self._relative(now)
            apart, of_now = np.minimum(_apart(sizes, now), 1.0), self._bound_part(now)
            of_bound = np.maximum(np.abs(of_bound - of_now), apart * np.minimum(of_bound, of_now))
            if self.num_sizes >= _FEW_SIZES:
                of_form = of_form * apart
        spread = np.einsum("ij,jk,ik->i", rows, np.array(self.covariance), rows)
        squares = np.maximum(spread, 0.0) + (_BOUND_ERROR * of_bound) ** 2
        return np.asarray(np.sqrt(squares + of_form**2 + self._distance(sizes) ** 2))

    def _relative(self, sizes: SizeTable) -> Floats:
        """Return the part of a step's time by which each second of a coefficient's error counts."""
        free_s, step_s = self._free_s(sizes), self.step_s(sizes)
        part = (free_s / step_s) ** (_KNEE - 1.0) / step_s
        return np.asarray(columns(sizes, self.form) * part[:, np.newaxis])

    def _bound_part(self, sizes: SizeTable) -> Floats:
        return np.asarray((self.form.bound_s(sizes) / self.step_s(sizes)) ** _KNEE)

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
        terms[:, SERVED[0]] += self.step_s(sizes) - terms.sum(axis=1)
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


def _apart(sizes: SizeTable, now: SizeTable) -> Floats:
    """How far sizes are from another, in factors e over all dimensions."""
    squares = [
        np.log(getattr(sizes, name) / getattr(now, name)) ** 2
        for name in ("workers", "servers", "worker_cpu", "server_cpu")
        if getattr(now, name)[0] > 0.0
    ]
    return np.asarray(np.sqrt(sum(squares)))


def confidence(error: float) -> float:
    """How far to trust a prediction of this relative error, 0 to 1; a half at 0.3."""
    return 1.0 / (1.0 + (error / 0.3) ** 2)
