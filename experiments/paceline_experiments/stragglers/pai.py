"""Slow workers as they were measured: four production jobs of Alibaba's PAI, ten workers each.

The data (mini-batch times per worker and tick, normalised to 0..1000) is not part of this project:
files ``job_1_norm.csv.gz`` to ``job_4_norm.csv.gz`` of the cluster-trace-gpu-v2020.

Reference: Weng et al. 2022, "MLaaS in the Wild" (NSDI); github alibaba/clusterdata, CC BY 4.0.
Differs: only the ratios between workers are taken. A tick is taken for 10 s, and a time for the
fastest worker's median times a slowdown; a node that is started again is in the place of a random
worker of the same job.
"""

import csv
import gzip
import zlib
from pathlib import Path

import numpy as np

from paceline.base.errors import ConfigError
from paceline_experiments.sim.costs import Floats
from paceline_experiments.sim.patterns import Trace
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.presets import PAPER_SCALE, paper_job, resized

JOBS = (1, 2, 3, 4)
TICK_S = 10.0
SERVERS = 4
STEPS = 700
"""Steps of a job, 2 s each without stragglers: some half of the shortest trace."""


def file_of(directory: Path, job: int) -> Path:
    """The trace of a job."""
    return directory / f"job_{job}_norm.csv.gz"


def read(path: Path) -> Floats:
    """Slowdowns by worker and tick, 1: the median of the fastest worker.

    A worker without a value in a tick has that of the tick before.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    try:
        with gzip.open(path, "rt", newline="") as file:
            rows = [
                (int(row["time"]), int(row["worker"]), float(row["batch_time_norm"]))
                for row in csv.DictReader(file)
            ]
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is not there; --data names the directory with the four files "
            "job_*_norm.csv.gz of github.com/alibaba/clusterdata"
        ) from error
    except (OSError, EOFError, zlib.error, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no trace of mini-batch times: {error!r}") from error
    if not rows:
        raise ConfigError(f"{path} is no trace of mini-batch times: it has no rows")
    ticks = sorted({time for time, _, _ in rows})
    index = {time: tick for tick, time in enumerate(ticks)}
    table = np.full((1 + max(worker for _, worker, _ in rows), len(ticks)), np.nan)
    for time, worker, value in rows:
        table[worker, index[time]] = value
    filled = _carry_forward(table)
    slowdowns: Floats = filled / np.median(filled, axis=1).min()
    return slowdowns


def _carry_forward(table: Floats) -> Floats:
    """Gaps get the value before them, or at the start the one after."""
    there = np.where(np.isnan(table), 0, np.arange(table.shape[1]))
    last = np.maximum.accumulate(there, axis=1)
    filled = np.take_along_axis(table, last, axis=1)
    first = np.argmax(~np.isnan(table), axis=1)
    start = table[np.arange(len(table)), first]
    return np.where(np.isnan(filled), start[:, None], filled)


def draw(directory: Path, job: int, mode: str, seed: int) -> Scenario:
    """The job's trace from a random tick on.

    Raises:
        ConfigError: the trace cannot be read.
    """
    slowdowns = read(file_of(directory, job))
    workers, ticks = slowdowns.shape
    start = int(np.random.default_rng((seed, job)).integers(ticks))
    rolled = np.roll(slowdowns, -start, axis=1)
    levels = tuple(tuple(row) for row in rolled.round(4).tolist())
    traced = paper_job(f"PAI job {job}", mode, (Trace(tick=TICK_S, levels=levels),), PAPER_SCALE)
    return resized(traced, workers, SERVERS, STEPS)
