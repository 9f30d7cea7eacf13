"""Families of straggler patterns for judging solutions: drawn by seed, none of them the paper's.

Every scenario is the paper's job, a third of its length, for any number of workers, with stragglers
of one family: which nodes, how slow, from when to when is all drawn. The share of slow workers is
that of a job of twenty. Solutions are judged on seeds from `experiments.FIRST_EVALUATION_SEED` on.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np

from paceline_experiments.sim.costs import Traffic
from paceline_experiments.sim.patterns import (
    AnyPattern,
    Correlated,
    Cycle,
    HeavyTail,
    Ladder,
    OnOff,
    Persistent,
    Role,
    Shared,
)
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.presets import (
    LOCAL_BATCH,
    NOISE,
    PER_SAMPLE_S,
    SERVERS,
    STEPS,
    WORKERS,
    ScaleFactors,
    paper_job,
)

LENGTH = 1 / 3
"""Length of a job, as a part of the paper's job."""
JOB_S = 1_200.0
"""Seconds that the job takes, about, without stragglers."""
BATCH_S = PER_SAMPLE_S * LOCAL_BATCH
"""An undisturbed batch."""
REDUCE_S = 0.1
"""Assumed: an all-reduce takes as long as the messages and the servers of an undisturbed step."""

P = TypeVar("P", Cycle, Shared, Persistent)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Trouble: what a family does to a job."""

    patterns: tuple[AnyPattern, ...] = ()
    noise: float = NOISE
    speeds: tuple[float, ...] = ()
    kinds: tuple[str, ...] = ()
    steps: int | None = None
    """None: as many as the other families' jobs have."""


class Draw:
    """The draws of one job: of its nodes, and of numbers."""

    def __init__(self, rng: np.random.Generator, workers: int, servers: int) -> None:
        """``servers``: 0 with all-reduce."""
        self.rng, self.workers, self.servers = rng, workers, servers

    def between(self, low: float, high: float) -> float:
        """A number, uniformly."""
        return float(self.rng.uniform(low, high))

    def role(self) -> Role:
        """A server once in four times, if there are any."""
        is_server = self.rng.random() < 0.25
        return "server" if is_server and self.servers else "worker"

    def nodes(self, role: Role) -> tuple[int, ...]:
        """Draw one to three workers of twenty, or one server."""
        if role == "server":
            return (int(self.rng.integers(self.servers)),)
        count = int(self.rng.integers(1, 4)) * self.workers // WORKERS
        return self.some(max(1, count))

    def some(self, count: int) -> tuple[int, ...]:
        """Draw so many workers."""
        return tuple(int(i) for i in self.rng.choice(self.workers, count, replace=False))

    def slow(self, low: float, high: float, pattern: P) -> P:
        """Set a pattern's slowdown or, as often, the delay that makes a usual batch as slow."""
        slowdown = self.between(low, high)
        if self.rng.random() < 0.5:
            return msgspec.structs.replace(pattern, delay_s=BATCH_S * (slowdown - 1.0))
        return msgspec.structs.replace(pattern, slowdown=slowdown)


Family = Callable[[Draw], Trouble]


# ---------------------------------------------------------------------------- as they come and go


def _constant(draw: Draw) -> Trouble:
    """Slow from some moment on: delayed, or slowed down as by contention."""
    role = draw.role()
    delayed = role == "server" or draw.rng.random() < 0.5
    pattern = Persistent(
        role=role,
        nodes=draw.nodes(role),
        delay_s=draw.between(0.3, 3.0) if delayed else 0.0,
        slowdown=1.0 if delayed else draw.between(1.2, 4.0),
        start=draw.between(0.0, 0.5) * JOB_S,
    )
    return Trouble(patterns=(pattern,))


def _bursty(draw: Draw) -> Trouble:
    """Now and then a few iterations take seconds longer."""
    pattern = OnOff(
        clock="iterations",
        mean_on=draw.between(2.0, 6.0),
        mean_off=draw.between(40.0, 200.0),
        delay_s=draw.between(1.0, 4.0),
        probability=draw.between(0.3, 1.0),
    )
    return Trouble(patterns=(pattern,))


def _markov(draw: Draw) -> Trouble:
    """On and off for minutes."""
    pattern = OnOff(
        mean_on=draw.between(60.0, 300.0),
        mean_off=draw.between(150.0, 900.0),
        delay_s=draw.between(0.3, 2.0),
        probability=draw.between(0.1, 0.6),
    )
    return Trouble(patterns=(pattern,))


def _heavy_tailed(draw: Draw) -> Trouble:
    """Every iteration is disturbed, some of them a lot; a few workers more than others."""
    pattern = HeavyTail(
        scale_s=draw.between(0.02, 0.1),
        shape=draw.between(1.3, 2.5),
        worst_s=10.0,
        noisy=draw.between(0.0, 0.1),
    )
    return Trouble(patterns=(pattern,))


def _ladder(draw: Draw) -> Trouble:
    """Slower in steps of a few per cent, then relieved."""
    pattern = Ladder(
        nodes=draw.nodes("worker"),
        rung_s=draw.between(0.05, 0.15),
        rungs=int(draw.rng.integers(6, 16)),
        every=draw.between(0.01, 0.04) * JOB_S,
        hold=draw.between(0.1, 0.4) * JOB_S,
        start=draw.between(0.0, 0.3) * JOB_S,
    )
    return Trouble(patterns=(pattern,))


def _flapping(draw: Draw) -> Trouble:
    """Some workers are slow for every other part of a minute or a few."""
    on = draw.between(10.0, 90.0)
    pattern = draw.slow(
        1.5,
        4.0,
        Cycle(
            nodes=draw.nodes("worker"),
            on=on,
            period=on * draw.between(1.5, 3.0),
            start=draw.between(0.0, 0.2) * JOB_S,
        ),
    )
    return Trouble(patterns=(pattern,))


def _rolling(draw: Draw) -> Trouble:
    """One worker after the other is slow for a minute or so."""
    on = draw.between(30.0, 120.0)
    pattern = draw.slow(
        1.5, 3.0, Cycle(nodes=draw.some(draw.workers), on=on, period=on * draw.workers, stagger=on)
    )
    return Trouble(patterns=(pattern,))


def _rack(draw: Draw) -> Trouble:
    """A quarter of the workers is slow at the same times, whatever is restarted."""
    pattern = draw.slow(
        1.5,
        3.0,
        Shared(
            nodes=draw.some(max(1, draw.workers // 4)),
            mean_on=draw.between(60.0, 240.0),
            mean_off=draw.between(100.0, 400.0),
            key=int(draw.rng.integers(1 << 31)),
        ),
    )
    return Trouble(patterns=(pattern,))


# ---------------------------------------------------------------------------- as they stay


def _stays(draw: Draw) -> Trouble:
    """Slow from some moment on, and after every restart."""
    pattern = draw.slow(
        1.3,
        8.0,
        Persistent(nodes=draw.nodes("worker"), start=draw.between(0.0, 0.5) * JOB_S, bound=False),
    )
    return Trouble(patterns=(pattern,))


def _ramp(draw: Draw, *, bound: bool = True) -> Trouble:
    """Slower little by little, through much of the job."""
    rungs = 60
    worst_s = BATCH_S * draw.between(0.5, 3.0)
    pattern = Ladder(
        nodes=draw.nodes("worker"),
        rung_s=worst_s / rungs,
        rungs=rungs,
        every=draw.between(0.3, 0.8) * JOB_S / rungs,
        hold=100.0 * JOB_S,
        start=draw.between(0.0, 0.3) * JOB_S,
        bound=bound,
    )
    return Trouble(patterns=(pattern,))


def _ramp_stays(draw: Draw) -> Trouble:
    """The same, after every restart, too."""
    return _ramp(draw, bound=False)


def _bad_rack(draw: Draw) -> Trouble:
    """A quarter of the workers becomes slow at once, and is cured by restarts."""
    pattern = draw.slow(
        1.5,
        4.0,
        Persistent(
            nodes=draw.some(max(1, draw.workers // 4)), start=draw.between(0.0, 0.5) * JOB_S
        ),
    )
    return Trouble(patterns=(pattern,))


def _two_classes(draw: Draw) -> Trouble:
    """Half of the workers are slower machines; as often as not the master knows their kinds."""
    fast = draw.workers - draw.workers // 2
    speed = draw.between(0.4, 0.8)
    speeds = (1.0,) * fast + (speed,) * (draw.workers - fast)
    kinds = tuple("fast" if each == 1.0 else "slow" for each in speeds)
    return Trouble(speeds=speeds, kinds=kinds if draw.rng.random() < 0.5 else ())


def _short(draw: Draw) -> Trouble:
    """A job of some minutes, in which somebody is slow from the first step on."""
    pattern = draw.slow(1.5, 4.0, Persistent(nodes=draw.nodes("worker")))
    return Trouble(patterns=(pattern,), steps=int(draw.rng.integers(20, 101)))


def _late(draw: Draw) -> Trouble:
    """Somebody becomes slow near the end."""
    pattern = draw.slow(
        1.5, 4.0, Persistent(nodes=draw.nodes("worker"), start=draw.between(0.8, 0.97) * JOB_S)
    )
    return Trouble(patterns=(pattern,))


# ---------------------------------------------------------------------------- servers


def _server(draw: Draw) -> Trouble:
    """A server is slow from some moment on; as often as not its successor is, too."""
    pattern = Persistent(
        role="server",
        nodes=draw.nodes("server"),
        delay_s=draw.between(0.3, 2.0),
        start=draw.between(0.0, 0.5) * JOB_S,
        bound=bool(draw.rng.random() < 0.5),
    )
    return Trouble(patterns=(pattern,))


def _flapping_server(draw: Draw) -> Trouble:
    """A server is slow for every other part of a minute or a few."""
    on = draw.between(10.0, 90.0)
    pattern = Cycle(
        role="server",
        nodes=draw.nodes("server"),
        on=on,
        period=on * draw.between(1.5, 3.0),
        delay_s=draw.between(0.3, 2.0),
    )
    return Trouble(patterns=(pattern,))


def _both(draw: Draw) -> Trouble:
    """A worker and a server are slow."""
    worker = draw.slow(
        1.5, 4.0, Persistent(nodes=draw.nodes("worker"), start=draw.between(0.0, 0.5) * JOB_S)
    )
    server = Persistent(
        role="server",
        nodes=draw.nodes("server"),
        delay_s=draw.between(0.3, 2.0),
        start=draw.between(0.0, 0.5) * JOB_S,
    )
    return Trouble(patterns=(worker, server))


# ---------------------------------------------------------------------------- nobody is slow


def _undisturbed(draw: Draw) -> Trouble:
    """Nothing."""
    del draw
    return Trouble()


def _noise(draw: Draw) -> Trouble:
    """Every iteration of every worker takes longer or shorter."""
    return Trouble(noise=draw.between(0.1, 0.5))


def _correlated(draw: Draw) -> Trouble:
    """The same, for some iterations on end."""
    pattern = Correlated(sigma=draw.between(0.05, 0.2), memory=draw.between(0.8, 0.95))
    return Trouble(patterns=(pattern,))


def _outliers(draw: Draw) -> Trouble:
    """Some iterations take very much longer, of all workers alike."""
    pattern = HeavyTail(
        scale_s=draw.between(0.03, 0.15), shape=draw.between(1.05, 1.3), worst_s=20.0
    )
    return Trouble(patterns=(pattern,))


FAMILIES: dict[str, Family] = {
    "constant": _constant,
    "bursty": _bursty,
    "Markov": _markov,
    "heavy-tailed": _heavy_tailed,
    "ladder": _ladder,
    "flapping": _flapping,
    "rolling": _rolling,
    "rack": _rack,
    "stays": _stays,
    "ramp": _ramp,
    "ramp stays": _ramp_stays,
    "bad rack": _bad_rack,
    "two classes": _two_classes,
    "short": _short,
    "late": _late,
    "server": _server,
    "flapping server": _flapping_server,
    "both roles": _both,
    "undisturbed": _undisturbed,
    "noise": _noise,
    "correlated": _correlated,
    "outliers": _outliers,
}
"""Generators by family name; a family's place in this table seeds its draws, so new ones come
last."""
OF_SERVERS = frozenset({"server", "flapping server", "both roles"})
"""Families with slow servers, which all-reduce jobs do not have."""
NOBODY_SLOW = frozenset({"undisturbed", "noise", "correlated", "outliers"})
"""Workers differ by chance only: nothing is to be gained by looking for the slow one."""


def names(mode: str) -> list[str]:
    """The families that jobs of this mode can have."""
    return [name for name in FAMILIES if mode != "allreduce" or name not in OF_SERVERS]


def family_of(scenario: str) -> str | None:
    """The family that a scenario of this name is of; None: of none."""
    name = scenario.partition(", ")[0]
    return name if name in FAMILIES else None


def draw(family: str, mode: str, workers: int, seed: int) -> Scenario:
    """The scenario of a family, a mode, a number of workers (2 or more) and a seed."""
    servers = 0 if mode == "allreduce" else max(1, SERVERS * workers // WORKERS)
    rng = np.random.default_rng((seed, list(FAMILIES).index(family)))
    trouble = FAMILIES[family](Draw(rng, workers, servers))
    name = family if workers == WORKERS else f"{family}, {workers} workers"
    job = paper_job(name, mode, trouble.patterns, ScaleFactors(steps=LENGTH))
    steps = trouble.steps or round(STEPS * LENGTH)
    return msgspec.structs.replace(
        job,
        workers=workers,
        servers=servers,
        batch_size=workers * LOCAL_BATCH,
        num_samples=max(1, round(steps / job.epochs)) * workers * LOCAL_BATCH,
        compute=msgspec.structs.replace(job.compute, noise=trouble.noise),
        traffic=job.traffic if servers else Traffic(reduce_s=REDUCE_S),
        speeds=trouble.speeds,
        kinds=trouble.kinds,
    )
