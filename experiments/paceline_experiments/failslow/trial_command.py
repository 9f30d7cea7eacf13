"""The command ``paceline bench failslow``: what it runs, prints and keeps."""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from paceline.base.cgroups import find_trees
from paceline.base.errors import ConfigError, PacelineError
from paceline.base.files import write_file
from paceline_experiments.failslow.faults import SIZE
from paceline_experiments.failslow.networks import Networks, can_make_networks, connected
from paceline_experiments.failslow.trials import (
    CASES,
    PACE_S,
    WEAK,
    Case,
    FaultTrial,
    run_healthy,
    run_trial,
    running,
)
from paceline_experiments.outputs import circumstances, goal_table, table

FLOOR, LONGEST_S, GOAL_S = 0.95, 10.56, 3.0
"""Part of the trials that must be right; seconds to a verdict (FALCON's mean), and the goal."""


class TrialResults(msgspec.Struct, kw_only=True):
    """All trials of a command, as they are written to JSON."""

    command: str
    commit: str
    version: str
    started: str
    notes: list[str] = []
    trials: list[FaultTrial] = []


def run_trials(
    cases: Sequence[str], seeds: range, *, healthy_s: float, json: Path | None
) -> TrialResults:
    """Run the trials of some cases, or all; the file has those so far whenever one is over.

    Raises:
        ConfigError: there is no such case.
    """
    if unknown := set(cases) - CASES.keys():
        known = ", ".join(CASES)
        raise ConfigError(f"there is no case {min(unknown)}; there are {known}")
    results = TrialResults(**circumstances())
    with _networks(results.notes) as networks:
        chosen = [case for case in CASES.values() if case.name in cases or not cases]
        for case in _possible(chosen, networks, results.notes):
            for trial in _of_case(case, [*seeds], networks, results.notes):
                _keep(trial, results, json)
        if healthy_s:
            _keep(run_healthy(healthy_s, networks), results, json)
    return results


def _of_case(
    case: Case, seeds: list[int], networks: Networks | None, notes: list[str]
) -> Iterator[FaultTrial]:
    """Run the trials of a case in one job; in another one, those after a trial that broke it.

    A fault that turned out weak is followed by one more.
    """
    spare = iter(range(seeds[-1] + 1, seeds[-1] + 1 + len(seeds)))
    while seeds:
        with _noted(notes, case.name), running(networks, case.name) as watched:
            usual = watched.injector.pace(watched.log, PACE_S)
            while seeds:
                trial = run_trial(case, seeds.pop(0), watched, usual)
                if trial.is_weak:
                    seeds += itertools.islice(spare, 1)
                yield trial


@contextlib.contextmanager
def _networks(notes: list[str]) -> Iterator[Networks | None]:
    if not can_make_networks():
        notes.append("all ranks in one network: this needs root, ip, tc and unshare otherwise")
        yield None
        return
    with connected(SIZE) as networks:
        yield networks


def _possible(cases: Sequence[Case], networks: Networks | None, notes: list[str]) -> Iterator[Case]:
    tree = find_trees().get("cpu")
    has_quotas = tree is not None and os.access(tree.base, os.W_OK)
    for case in cases:
        if case.links and networks is None:
            notes.append(f"{case.name}: not measured, since links cannot be made slow here")
        elif case.quotas and not has_quotas:
            notes.append(f"{case.name}: not measured, since quotas cannot be set here")
        else:
            yield case


@contextlib.contextmanager
def _noted(notes: list[str], which: str) -> Iterator[None]:
    """Let a trial that could not be run be a note, and the others follow."""
    try:
        yield
    except PacelineError as error:
        notes.append(f"{which}: a trial without a result: {error}")
        print(notes[-1], file=sys.stderr, flush=True)


def _keep(trial: FaultTrial, results: TrialResults, json: Path | None) -> None:
    results.trials.append(trial)
    verdict = "-" if trial.verdict_s is None else f"{trial.verdict_s:.2f} s"
    faults = ", ".join(f"{one.way} {one.ranks} x {one.factor:.2f}" for one in trial.faults)
    print(
        f"{trial.case} seed {trial.seed}: {_judged(trial)} after {verdict}; "
        f"{faults}; {trial.step_s * 1e3:.0f} ms x {trial.factor:.2f}; false alarms "
        f"{trial.false_alarms}, verdicts {trial.false_verdicts}",
        file=sys.stderr,
        flush=True,
    )
    if not trial.right or trial.false_alarms + trial.false_verdicts:
        print(*(f"    {line}" for line in trial.told), sep="\n", file=sys.stderr, flush=True)
    if json is not None:
        write_file(json, msgspec.json.format(msgspec.json.encode(results)))


def _judged(trial: FaultTrial) -> str:
    if trial.is_weak:
        return "TOO WEAK, not counted,"
    return "right" if trial.right else "WRONG"


def _counted(results: TrialResults, case: str) -> list[FaultTrial]:
    return [one for one in results.trials if one.case == case and not one.is_weak]


def markdown_trials(results: TrialResults) -> str:
    """Make a row of each case, and what was to be reached."""
    head = (
        *("case", "", "named rightly", "fault to verdict: median, worst", "a step takes"),
        "healthy: time, false alarms, false verdicts",
    )
    names = dict.fromkeys(trial.case for trial in results.trials)
    rows = table(head, [[*_cells(name, _counted(results, name))] for name in names])
    weak = [f"{one.case} {one.seed}" for one in results.trials if one.is_weak]
    told = f"Not counted, since steps became less than {WEAK} times as long: {', '.join(weak)}"
    return "\n".join([rows, "", *results.notes, *([told] if weak else [])])


def _cells(name: str, trials: Sequence[FaultTrial]) -> Iterator[str]:
    yield name
    yield CASES[name].about if name in CASES else "nothing happens"
    if name in CASES:
        waits_s = [trial.verdict_s for trial in trials if trial.right and trial.verdict_s]
        factors = [trial.factor for trial in trials]
        yield f"{sum(trial.right for trial in trials)} of {len(trials)}"
        yield f"{median(waits_s):.1f} s, {max(waits_s):.1f} s" if waits_s else "-"
        yield f"{min(factors):.1f} to {max(factors):.1f} times as long" if factors else "-"
    else:
        yield from ("-", "-", "-")
    healthy_s = sum(trial.healthy_s for trial in trials)
    alarms = sum(trial.false_alarms for trial in trials)
    verdicts = sum(trial.false_verdicts for trial in trials)
    yield f"{healthy_s / 60:.1f} min, {alarms}, {verdicts}" if healthy_s else "-"


def markdown_trial_goals(results: TrialResults) -> str:
    """Say what was to be reached, and whether it was."""
    lines = list[tuple[str, str, bool]]()
    cases = {trial.case for trial in results.trials}
    for name in (name for name in CASES if name in cases):
        trials = _counted(results, name)
        right = sum(trial.right for trial in trials)
        waits_s = [trial.verdict_s for trial in trials if trial.right and trial.verdict_s]
        middle_s = median(waits_s) if waits_s else float("inf")
        measured = f"{middle_s:.1f} s (median)"
        lines += [
            (f"{name}: 19 of 20 right", f"{right} of {len(trials)}", right >= FLOOR * len(trials)),
            (f"{name}: a verdict within {LONGEST_S} s", measured, middle_s <= LONGEST_S),
            (f"{name}: a verdict within {GOAL_S:g} s, the goal", measured, middle_s <= GOAL_S),
        ]
    verdicts = sum(trial.false_verdicts for trial in results.trials)
    lines.append(("no verdict on a healthy job", str(verdicts), not verdicts))
    for trial in results.trials:
        if trial.case not in CASES:
            told = f"{trial.advised} in {trial.healthy_s / 60:.0f} min"
            lines.append(("no restart advised of a healthy job", told, not trial.advised))
    return goal_table(lines)
