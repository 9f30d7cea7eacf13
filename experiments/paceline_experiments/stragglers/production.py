"""Production, as AntDT section VII-F tells of it: a fleet of jobs, and one large one.

The paper says how much the mean JCT over all jobs fell, not which jobs straggled or how. What is
assumed here is written beside each constant, and shown with the results.
"""

import msgspec
import numpy as np

from paceline_experiments.sim.patterns import AnyPattern, OnOff, Persistent
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.presets import PAPER_SCALE, paper_job, resized

STRAGGLING = 0.3
"""Assumed: this share of the fleet's jobs has stragglers."""

HOMEPAGE_WORKERS, HOMEPAGE_SERVERS = 230, 50
HOMEPAGE_STEPS = 8_000
"""Assumed."""
HOMEPAGE_SLOWDOWN = 6.14
"""Fitted to 27.8 h under BSP; stragglers "can be up to eight times slower than other nodes"."""


def fleet(mode: str, seed: int) -> Scenario:
    """Make one job of the fleet per seed: 10 to 60 workers, 20 to 60 minutes, maybe stragglers."""
    rng = np.random.default_rng((seed, 0))
    workers = int(rng.choice([10, 20, 30, 60]))
    servers = max(2, workers * 2 // 5)
    patterns = _stragglers(rng, workers) if rng.random() < STRAGGLING else ()
    job = paper_job("fleet", mode, patterns, PAPER_SCALE)
    job = resized(job, workers, servers, int(rng.integers(550, 1_650)))
    return msgspec.structs.replace(job, report_every=10)


def _stragglers(rng: np.random.Generator, workers: int) -> tuple[AnyPattern, ...]:
    """A persistent one among the workers, transient ones, or both; in a quarter a server, too."""
    patterns: list[AnyPattern] = []
    kind = int(rng.integers(3))
    if kind != 0:
        persistent = Persistent(
            nodes=(int(rng.integers(workers)),),
            slowdown=float(rng.uniform(1.5, 4.0)),
            start=float(rng.uniform(0.0, 1_000.0)),
        )
        patterns.append(persistent)
    if kind != 1:
        transient = OnOff(
            mean_on=float(rng.uniform(120.0, 600.0)),
            mean_off=float(rng.uniform(600.0, 1_800.0)),
            delay_s=float(rng.uniform(0.3, 1.5)),
            probability=0.3,
        )
        patterns.append(transient)
    if rng.random() < 0.25:
        delay_s = float(rng.uniform(0.3, 2.0))
        patterns.append(Persistent(role="server", nodes=(0,), delay_s=delay_s))
    return tuple(patterns)


def homepage(mode: str, scale: float = 1.0) -> Scenario:
    """The homepage's ranking model: 27.8 h under BSP; ``scale``: of its length."""
    patterns = (
        Persistent(nodes=(11, 97), slowdown=HOMEPAGE_SLOWDOWN),
        OnOff(mean_on=600.0, mean_off=1_800.0, delay_s=1.0, probability=0.2),
    )
    job = paper_job("homepage", mode, patterns, PAPER_SCALE)
    steps = round(HOMEPAGE_STEPS * scale)
    job = resized(job, HOMEPAGE_WORKERS, HOMEPAGE_SERVERS, steps)
    return msgspec.structs.replace(job, report_every=10)
