"""The jobs of the paper's experiments.

The constants that the paper leaves open are fitted to its BSP column alone (`PER_SAMPLE_S`,
`PERSISTENT_WORKER_S`; how: docs/simulator.md). Of its ND column one number set a bound: the
fastest run.

Reference: AntDT section VII.
"""

import msgspec
import numpy as np

from paceline.policy.observation import RestartCost
from paceline_experiments.sim.costs import Compute, Traffic
from paceline_experiments.sim.patterns import AnyPattern, Persistent, Transient
from paceline_experiments.sim.scenarios import PlannedKill, Recovery, Scenario

WORKERS, SERVERS = 20, 8
EPOCH_SAMPLES, EPOCHS, LOCAL_BATCH = 45_000_000, 3, 4_096
STEPS = 1_650
INTENSITIES = (0.1, 0.3, 0.5, 0.8)

PER_SAMPLE_S = 2.0 / LOCAL_BATCH
"""Fitted: with messages, servers and noise an undisturbed step takes 2.16 s."""
NOISE = 0.02
"""Assumed."""
TRANSIENT_S = 1.5
"""SleepDuration, as published."""
PERSISTENT_WORKER_S = 3.2
"""Fitted; published is 4 s for both roles, which is far off the BSP column of workers."""
PERSISTENT_SERVER_S = 4.0
"""Seconds, as published."""
TRANSIENT_PERIOD_S, TRANSIENT_SHARE, TRANSIENT_PROBABILITY = 1_800.0, 0.5, 0.3
SLOW_NODE = 3
"""The persistent straggler."""

RESTART = RestartCost(start_s=60.0, rebuild_s=30.0, restore_s=30.0, stall_s=0.0)
"""Assumed: two minutes. The paper says "several minutes to dozens of minutes" for a restart from
checkpoints on a busy cluster, and nothing for its experiments."""
SWITCH_S = 0.5
"""Assumed: everybody waits so long for a fresh server to take over."""


class ScaleFactors(msgspec.Struct, frozen=True):
    """The paper's experiments made smaller, for real processes on one machine."""

    time: float = 1.0
    """A second of a step is so many seconds."""
    steps: float = 1.0
    """An iteration of the paper is so many iterations."""

    @property
    def job(self) -> float:
        """A second of the whole job, its windows and patterns."""
        return self.time * self.steps


PAPER_SCALE = ScaleFactors()


def paper_job(
    name: str, mode: str, patterns: tuple[AnyPattern, ...], scale: ScaleFactors
) -> Scenario:
    """Cluster-A's job of section VII-A."""
    steps = round(STEPS * scale.steps / EPOCHS)
    full = scale == PAPER_SCALE
    return Scenario(
        name=name,
        mode=mode,
        workers=WORKERS,
        servers=SERVERS,
        num_samples=EPOCH_SAMPLES if full else steps * WORKERS * LOCAL_BATCH,
        epochs=EPOCHS,
        batch_size=WORKERS * LOCAL_BATCH,
        staleness=3,
        compute=Compute(per_sample_s=PER_SAMPLE_S * scale.time, noise=NOISE),
        traffic=Traffic(
            message_s=0.05 * scale.time, part_s=0.0005 * scale.time, update_s=0.04 * scale.time
        ),
        recovery=recovery(scale),
        patterns=patterns,
        time_scale=scale.job,
    )


def recovery(scale: ScaleFactors = PAPER_SCALE) -> Recovery:
    """The recovery of a worker and of a server alike."""
    cost = RestartCost(
        start_s=RESTART.start_s * scale.job,
        rebuild_s=RESTART.rebuild_s * scale.job,
        restore_s=RESTART.restore_s * scale.job,
        stall_s=0.0,
    )
    server = msgspec.structs.replace(cost, stall_s=SWITCH_S * scale.job)
    return Recovery(worker=cost, server=server, switch_s=SWITCH_S * scale.job)


def worker_stragglers(intensity: float, mode: str, scale: ScaleFactors = PAPER_SCALE) -> Scenario:
    """Transient stragglers among all workers, and one persistent one."""
    patterns = (
        Transient(
            probability=TRANSIENT_PROBABILITY,
            period=TRANSIENT_PERIOD_S * scale.job,
            share=TRANSIENT_SHARE,
            delay_s=TRANSIENT_S * intensity * scale.time,
        ),
        Persistent(nodes=(SLOW_NODE,), delay_s=PERSISTENT_WORKER_S * intensity * scale.time),
    )
    return paper_job(f"worker {intensity:g}", mode, patterns, scale)


def server_straggler(intensity: float, mode: str, scale: ScaleFactors = PAPER_SCALE) -> Scenario:
    """Make a job with one persistent straggler among the servers."""
    delay_s = PERSISTENT_SERVER_S * intensity * scale.time
    patterns = (Persistent(role="server", nodes=(SLOW_NODE,), delay_s=delay_s),)
    return paper_job(f"server {intensity:g}", mode, patterns, scale)


# ---------------------------------------------------------------------------- all-reduce, DD

V100_SPEED, SATURATION, LIMIT = 3.0, 32, 128
"""Hardware of section VII-C: a V100 is three times as fast as a P100; batches from 32 to 128."""
DD_BATCH, DD_SAMPLES = 768, 1_280_000
RESNET_REDUCE, MOBILENET_REDUCE = 68.7, 106.0
"""Fitted to DDP / LB-BSP alone: the all-reduce takes as long as so many samples on a P100."""
RESNET_STEP_S = 1_266 / 1_667
"""Seconds of a step of DDP: 96 samples on a P100, and the all-reduce."""


def dedicated(name: str, reduce: float) -> Scenario:
    """Cluster-B: four V100 and four P100 in all-reduce."""
    per_sample_s = RESNET_STEP_S / (DD_BATCH / 8 + RESNET_REDUCE)
    return Scenario(
        name=name,
        mode="allreduce",
        workers=8,
        servers=0,
        num_samples=DD_SAMPLES,
        epochs=1,
        batch_size=DD_BATCH,
        speeds=(V100_SPEED,) * 4 + (1.0,) * 4,
        kinds=("V100",) * 4 + ("P100",) * 4,
        batch_limit=LIMIT,
        compute=Compute(per_sample_s=per_sample_s, saturation=SATURATION),
        traffic=Traffic(reduce_s=reduce * per_sample_s),
        recovery=recovery(),
    )


# ---------------------------------------------------------------------------- restarts, Fig. 17

CHECKPOINTS_MIN = (5, 10, 20, 30, 60)
CHECKPOINT_S = 80.0
"""Fitted to Fig. 17's 17 minutes at an interval of 5: what everybody waits for a checkpoint."""


def killed(every_min: int | None, seed: int) -> Scenario:
    """An undisturbed job that loses a worker on its way; None: it recovers by its ledger."""
    name = "restart, ledger" if every_min is None else f"restart, {every_min} min"
    how = recovery()
    if every_min is not None:
        how = msgspec.structs.replace(
            how, checkpoint_every_s=60.0 * every_min, checkpoint_s=CHECKPOINT_S
        )
    at_s = float(np.random.default_rng(seed).uniform(1_500.0, 2_500.0))
    return msgspec.structs.replace(
        undisturbed(), name=name, recovery=how, kills=(PlannedKill(at_s, f"worker-{SLOW_NODE}"),)
    )


def undisturbed() -> Scenario:
    """The paper's job without any straggler."""
    return paper_job("undisturbed", "bsp", (), PAPER_SCALE)


# ---------------------------------------------------------------------------- size

FIG18_SIZES = ((8, 3), (16, 6), (30, 12), (60, 24), (90, 36))
"""Workers and servers: those of section VII-E, and two that fit on one machine."""


def resized(scenario: Scenario, workers: int, servers: int, num_steps: int) -> Scenario:
    """Make the same job of other nodes, in one epoch; everybody's batch stays as it is."""
    return msgspec.structs.replace(
        scenario,
        workers=workers,
        servers=servers,
        num_samples=num_steps * workers * LOCAL_BATCH,
        epochs=1,
        batch_size=workers * LOCAL_BATCH,
    )


def managed(workers: int, servers: int) -> Scenario:
    """A job with transient and persistent stragglers, to count what managing it takes."""
    job = resized(worker_stragglers(0.8, "bsp"), workers, servers, STEPS)
    return msgspec.structs.replace(job, name=f"{workers} + {servers}")


def large() -> Scenario:
    """1,000 workers and 200 servers with the paper's stragglers, for the simulator's own speed."""
    return msgspec.structs.replace(managed(1_000, 200), report_every=10)
