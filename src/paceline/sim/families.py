"""Families of straggler patterns for judging solutions: drawn by seed, none of them the paper's.

Every scenario is the paper's job, a third of its length, with stragglers of one family: which
nodes, how slow, from when to when is all drawn. Solutions are judged on seeds from
`experiments.FIRST_EVALUATION_SEED` on.
"""

from collections.abc import Callable

import numpy as np

from paceline.sim.patterns import AnyPattern, HeavyTail, Ladder, OnOff, Persistent, Role
from paceline.sim.presets import SERVERS, WORKERS, Scale, paper_job
from paceline.sim.scenarios import Scenario

STEPS = 1 / 3
"""Of the paper's job."""
JOB_S = 1_200.0
"""What that takes, about, without stragglers."""

Rng = np.random.Generator


def _nodes(rng: Rng, role: Role) -> tuple[int, ...]:
    """One to three workers, or one server."""
    if role == "server":
        return (int(rng.integers(SERVERS)),)
    count = int(rng.integers(1, 4))
    return tuple(int(i) for i in rng.choice(WORKERS, count, replace=False))


def _role(rng: Rng) -> Role:
    return "server" if rng.random() < 0.25 else "worker"


def _constant(rng: Rng) -> tuple[AnyPattern, ...]:
    """Slow from some moment on: delayed, or slowed down as by contention."""
    role = _role(rng)
    delayed = role == "server" or rng.random() < 0.5
    return (
        Persistent(
            role=role,
            nodes=_nodes(rng, role),
            delay_s=float(rng.uniform(0.3, 3.0)) if delayed else 0.0,
            slowdown=1.0 if delayed else float(rng.uniform(1.2, 4.0)),
            start=float(rng.uniform(0.0, 0.5)) * JOB_S,
        ),
    )


def _bursty(rng: Rng) -> tuple[AnyPattern, ...]:
    """Now and then a few iterations take seconds longer."""
    return (
        OnOff(
            clock="iterations",
            mean_on=float(rng.uniform(2.0, 6.0)),
            mean_off=float(rng.uniform(40.0, 200.0)),
            delay_s=float(rng.uniform(1.0, 4.0)),
            probability=float(rng.uniform(0.3, 1.0)),
        ),
    )


def _markov(rng: Rng) -> tuple[AnyPattern, ...]:
    """On and off for minutes."""
    return (
        OnOff(
            mean_on=float(rng.uniform(60.0, 300.0)),
            mean_off=float(rng.uniform(150.0, 900.0)),
            delay_s=float(rng.uniform(0.3, 2.0)),
            probability=float(rng.uniform(0.1, 0.6)),
        ),
    )


def _heavy_tailed(rng: Rng) -> tuple[AnyPattern, ...]:
    """Every iteration is disturbed, some of them a lot; a few workers more than others."""
    return (
        HeavyTail(
            scale_s=float(rng.uniform(0.02, 0.1)),
            shape=float(rng.uniform(1.3, 2.5)),
            worst_s=10.0,
            noisy=float(rng.uniform(0.0, 0.1)),
        ),
    )


def _ladder(rng: Rng) -> tuple[AnyPattern, ...]:
    """Slower in steps of a few per cent, then relieved."""
    return (
        Ladder(
            nodes=_nodes(rng, "worker"),
            rung_s=float(rng.uniform(0.05, 0.15)),
            rungs=int(rng.integers(6, 16)),
            every=float(rng.uniform(0.01, 0.04)) * JOB_S,
            hold=float(rng.uniform(0.1, 0.4)) * JOB_S,
            start=float(rng.uniform(0.0, 0.3)) * JOB_S,
        ),
    )


FAMILIES: dict[str, Callable[[Rng], tuple[AnyPattern, ...]]] = {
    "constant": _constant,
    "bursty": _bursty,
    "Markov": _markov,
    "heavy-tailed": _heavy_tailed,
    "ladder": _ladder,
}


def draw(family: str, mode: str, seed: int) -> Scenario:
    """The scenario of a family and a seed."""
    rng = np.random.default_rng((seed, list(FAMILIES).index(family)))
    return paper_job(family, mode, FAMILIES[family](rng), Scale(steps=STEPS))
