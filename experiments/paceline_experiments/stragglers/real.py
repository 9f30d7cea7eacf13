"""A scenario as a real job: launched, followed to its end, and read from what it left behind."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.jobs.history import read_last_metrics
from paceline.jobs.launch import launch
from paceline.jobs.outcome import read_outcome
from paceline.wire.spec import JobSpec, NodeSpec, TimeoutSpec, WindowSpec
from paceline_experiments.harness import ending
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.emulation import DIRECTORY, Emulated
from paceline_experiments.stragglers.left_behind import Ran, read_ran
from paceline_experiments.stragglers.methods import lengths_of
from paceline_experiments.stragglers.results import Method

SCRIPT = Path(__file__).with_name("emulated") / "train.py"
POLL_S = 0.5
PATIENCE_S = 120.0
"""A job that takes in no sample for so long is ended, kept, and told of."""
LOST_AFTER_S = 60.0
"""Seconds of silence after which a node is lost: many processes that start are silent for long."""


def spec_of(scenario: Scenario, method: Method, seed: int, directory: Path) -> JobSpec:
    """The job of a scenario."""
    lengths = lengths_of(method, scenario)
    path = [str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]
    return JobSpec(
        script=str(SCRIPT),
        name="stragglers",
        seed=seed,
        mode=scenario.mode,  # type: ignore[arg-type]
        staleness=scenario.staleness,
        solution=method.solution,
        solution_args={key: str(value) for key, value in method.parameters.items()},
        windows=WindowSpec(
            short_steps=lengths.short_iterations,
            short_s=lengths.short_s,
            long_steps=lengths.long_iterations,
            long_s=lengths.long_s,
        ),
        workers=NodeSpec(count=scenario.workers),
        servers=NodeSpec(count=scenario.servers),
        torch_threads=1,
        env={DIRECTORY: str(directory), "PYTHONPATH": os.pathsep.join(filter(None, path))},
        pending_s=scenario.recovery.worker.pending_s,
        timeouts=TimeoutSpec(lost_after_s=LOST_AFTER_S),
    )


def run_real(scenario: Scenario, method: Method, seed: int, *, keep_trail: bool = False) -> Ran:
    """Run a scenario with real processes, to the end.

    Raises:
        PermanentError: the job failed, or stood still; its directory is kept, and named.
        InternalError: a sample is not in the model once per epoch, or servers were not slowed.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-emulated-") as name:
        directory = Path(name)
        Emulated(scenario=scenario, seed=seed).write(directory)
        job = launch(spec_of(scenario, method, seed, directory))
        with ending(job):
            _await_end(job)
        ran = read_ran(job, directory, scenario, keep_trail=keep_trail)
    shutil.rmtree(job.path)
    return ran


def _await_end(job: JobDir) -> None:
    committed, changed_s = -1, time.monotonic()
    while (outcome := read_outcome(job.outcome)) is None:
        point = read_last_metrics(job.metrics)
        if point is not None and point.committed != committed:
            committed, changed_s = point.committed, time.monotonic()
        if time.monotonic() > changed_s + PATIENCE_S:
            raise PermanentError(
                f"job {job.job_id} has stood still at {committed} samples for {PATIENCE_S:.0f} s; "
                f"see {job.path}"
            )
        time.sleep(POLL_S)
    if outcome.state != "finished":
        raise PermanentError(f"job {job.job_id}: {outcome.state}: {outcome.error}; see {job.path}")
