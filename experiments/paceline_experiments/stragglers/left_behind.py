"""Results of a scenario's real job, read from what it left behind."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from paceline.base.errors import InternalError
from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    AnyLine,
    Decided,
    TookEffect,
    log_of,
)
from paceline.features.stragglers.stories import read_log
from paceline.jobs.history import read_events, read_metrics
from paceline.jobs.outcome import read_outcome
from paceline.policy.actions import AdjustRate, AnyAction, KillRestart
from paceline.policy.observation import RestartCost
from paceline.wire.events.state import FeedCompleteEvent
from paceline_experiments.sim.costs import Floats
from paceline_experiments.sim.nodes import server_names, worker_names
from paceline_experiments.sim.outcome import Acted, Sight, SimOutcome
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.counts import check_samples
from paceline_experiments.stragglers.emulation import FIELDS, diaries, started_s


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a real job."""

    outcome: SimOutcome
    refused: tuple[str, ...]
    """Actions that the master did not carry out, with its reasons."""
    costs: dict[str, list[RestartCost]]
    """Costs of the restarts that took effect, by role."""
    expected: dict[str, RestartCost]
    """Cost of a restart that the master expected when it last decided, by role."""
    batches: dict[str, Floats]
    """Start and end (Unix time) and samples of each batch, by worker, over all its lives."""
    updates: dict[str, Floats]
    """Start and end (Unix time) of each update, by server; its injected delay is included."""


def read_ran(job: JobDir, directory: Path, scenario: Scenario, *, keep_trail: bool) -> Ran:
    """Read what a finished job came to, and check its samples.

    Raises:
        InternalError: a sample is not in the model once per epoch, or servers were not slowed.
    """
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
    lines = read_log(log_of(job)) if log_of(job).exists() else []
    adjusted = any(isinstance(action, AdjustRate) for _, action in _actions(lines))
    num_steps = check_samples(job, scenario, told.short_steps, adjusted=adjusted)
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
    """Return the diary entries of all lives of each node, by node."""
    none = np.empty((0, FIELDS))
    return {node: np.concatenate([none, *diaries(directory, node)]) for node in nodes}


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
    """Yield what the master measured once a second."""
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
