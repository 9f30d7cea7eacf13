"""A scenario as a real job: launched, followed to its end, and read from what it left behind."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from paceline.base.errors import InternalError, PacelineError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.jobs.decisions import read_log
from paceline.jobs.history import read_events, read_last_metrics, read_metrics
from paceline.jobs.launch import ask, launch
from paceline.jobs.outcome import read_outcome
from paceline.policy.straggler.actions import AdjustRate, AnyAction, KillRestart
from paceline.policy.straggler.decision_log import ActionRefused, AnyLine, Decided, TookEffect
from paceline.policy.straggler.observation import RestartCost
from paceline.sim.costs import Floats
from paceline.sim.nodes import server_names, worker_names
from paceline.sim.outcome import Acted, Sight, SimOutcome
from paceline.sim.scenarios import Scenario
from paceline.studies.stragglers.emulation import (
    DIRECTORY,
    FIELDS,
    ROWS,
    Emulated,
    diaries,
    started_s,
)
from paceline.studies.stragglers.methods import lengths_of
from paceline.studies.stragglers.results import Method
from paceline.wire.client import StopJob
from paceline.wire.events.state import FeedCompleteEvent
from paceline.wire.schema import NUM_BUCKETS
from paceline.wire.spec import JobSpec, NodeSpec, TimeoutSpec, WindowSpec

SCRIPT = Path(__file__).with_name("emulated") / "train.py"
POLL_S = 0.5
CLEAN_UP_S = 20.0
TOLERANCE = 1e-3
"""Of a count: sums of some thousand fractions."""
PATIENCE_S = 120.0
"""A job that takes in no sample for so long is ended, kept, and told of."""
LOST_AFTER_S = 60.0
"""Many processes that start on few cores are silent for long."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What a real job came to."""

    outcome: SimOutcome
    refused: tuple[str, ...]
    """Actions that the master did not carry out, with its reasons."""
    costs: dict[str, list[RestartCost]]
    """Of restarts that took effect, by role."""
    expected: dict[str, RestartCost]
    """By role: what the master took a restart to cost, when it last decided."""
    batches: dict[str, Floats]
    """By worker: start and end (Unix time) and samples of each batch, over all its lives."""
    updates: dict[str, Floats]
    """By server: start and end of each update, with what it is delayed by."""


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
        with _ending(job):
            _await_end(job)
        ran = _read(job, directory, scenario, keep_trail=keep_trail)
    shutil.rmtree(job.path)
    return ran


@contextlib.contextmanager
def _ending(job: JobDir) -> Iterator[None]:
    """Leave nothing of the job running, whatever happens."""
    try:
        yield
    finally:
        if not job.outcome.exists():
            with contextlib.suppress(PacelineError, OSError):
                ask(job, StopJob(now=True))
        deadline_s = time.monotonic() + CLEAN_UP_S
        while job.run_dir.exists() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


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


# ------------------------------------------------------------------------------ afterwards


def _read(job: JobDir, directory: Path, scenario: Scenario, *, keep_trail: bool) -> Ran:
    begun_s = started_s(directory, scenario.workers)
    completed = [e.t for e in read_events(job.events) if isinstance(e, FeedCompleteEvent)]
    if begun_s is None or not completed:
        raise InternalError(f"job {job.job_id} finished, but not its training; see {job.path}")
    told = read_outcome(job.outcome)
    assert told is not None
    batches = _entries(directory, worker_names(scenario.workers))
    # The first entry of a life is no batch.
    batches = {name: entries[entries[:, 2] > 0] for name, entries in batches.items()}
    updates = _entries(directory, server_names(scenario.servers))
    if not all(map(len, updates.values())):
        raise InternalError(f"job {job.job_id}: its servers could not be slowed; see {job.logs}")
    lines = read_log(job.decisions) if job.decisions.exists() else []
    adjusted = any(isinstance(action, AdjustRate) for _, action in _actions(lines))
    num_steps = _check_samples(job, scenario, told.short_steps, adjusted=adjusted)
    acted = _acted(lines, begun_s)
    computed = {name: int(entries[:, 2].sum()) for name, entries in batches.items()}
    total = scenario.num_samples * scenario.epochs
    outcome = SimOutcome(
        jct_s=float(completed[-1] - begun_s),
        samples=total,
        steps=num_steps if scenario.mode == "bsp" else sum(map(len, batches.values())),
        short_steps=told.short_steps,
        left_out=told.left_out,
        redone=sum(computed.values()) - total,
        restarts=sum(each.action == KillRestart.__name__ for each in acted),
        decisions=sum(isinstance(line, Decided) for line in lines),
        shares=computed,
        acted=tuple(acted),
        trail=tuple(_trail(job, begun_s, scenario)) if keep_trail else (),
    )
    return Ran(
        outcome=outcome,
        refused=tuple(line.reason for line in lines if isinstance(line, ActionRefused)),
        costs=_costs(lines),
        expected=_expected(lines),
        batches=batches,
        updates=updates,
    )


def _entries(directory: Path, nodes: Sequence[str]) -> dict[str, Floats]:
    """Of all lives of each node."""
    none = np.empty((0, FIELDS))
    return {node: np.concatenate([none, *diaries(directory, node)]) for node in nodes}


def _check_samples(job: JobDir, scenario: Scenario, short_steps: int, *, adjusted: bool) -> int:
    """Read the model's own counts from the last cut; returns its steps.

    A step applies the mean over what it has, so a short one counts each of its samples for more;
    under ADJUST_LR (``adjusted``) samples count for less, and only that none is missing is checked.

    Raises:
        InternalError: a sample is missing in it, or in it too often.
    """
    from paceline.runtime.checkpoint import cutfile
    from paceline.runtime.server.store import Store

    last = max(path.parent for path in job.cuts.glob("*/manifest.json"))
    manifest, files = cutfile.read_cut(last)
    whole = Store(manifest.schema, [0] * NUM_BUCKETS, 0)
    whole.load(files.values())
    rows, counts = whole.export(0)
    wanted = scenario.epochs * np.bincount(np.arange(scenario.num_samples) % ROWS, minlength=ROWS)
    more = counts[:, 0] - wanted[rows]
    missing = counts[:, 0] <= 0.0 if adjusted else more < -TOLERANCE
    wrong = np.flatnonzero(missing | ((more > TOLERANCE) & (short_steps == 0)))
    if len(rows) != ROWS or wrong.size:
        raise InternalError(
            f"job {job.job_id}: {len(rows)} of {ROWS} rows count samples, {wrong.size} wrongly; "
            f"see {job.path}"
        )
    return manifest.step


def _actions(lines: Sequence[AnyLine]) -> Iterator[tuple[TookEffect, AnyAction]]:
    decided = {line.no: line.actions for line in lines if isinstance(line, Decided)}
    for line in lines:
        if isinstance(line, TookEffect):
            yield line, decided[line.no][line.index]


def _acted(lines: Sequence[AnyLine], begun_s: float) -> list[Acted]:
    steps = {line.no: line.observation.step for line in lines if isinstance(line, Decided)}
    return [
        Acted(
            at_s=line.t - begun_s,
            step=steps[line.no],
            action=type(action).__name__,
            node=action.node if isinstance(action, KillRestart) else "",
            reason=action.reason,
        )
        for line, action in _actions(lines)
    ]


def _costs(lines: Sequence[AnyLine]) -> dict[str, list[RestartCost]]:
    found: dict[str, list[RestartCost]] = {"worker": [], "server": []}
    for line, action in _actions(lines):
        if isinstance(action, KillRestart) and line.cost is not None:
            found[action.node.rpartition("-")[0]].append(line.cost)
    return found


def _expected(lines: Sequence[AnyLine]) -> dict[str, RestartCost]:
    seen = [line.observation for line in lines if isinstance(line, Decided)]
    if not seen:
        return {}
    return {"worker": seen[-1].worker_restart, "server": seen[-1].server_restart}


def _trail(job: JobDir, begun_s: float, scenario: Scenario) -> Iterator[Sight]:
    """What the master measured once a second."""
    before: dict[str, tuple[int, int]] = {}
    for point in read_metrics(job.metrics):
        for node, now in point.nodes.items():
            steps, samples = before.get(node, (0, 0))
            before[node] = (now.step, now.samples)
            if now.step > steps and point.t >= begun_s:
                yield Sight(
                    at_s=point.t - begun_s,
                    node=node,
                    steps=now.step - steps,
                    batch_size=(now.samples - samples) / (now.step - steps),
                    compute_s=now.compute_s,
                    server_s=now.server_s,
                    bpt_s=now.bpt_s,
                )
