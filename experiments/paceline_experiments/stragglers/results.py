"""Results of experiments on stragglers, as files hold them: of the simulator, or of real processes.

Nothing here says how they came about but `Results.clock`, which everything made of them repeats.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from paceline_experiments.sim.outcome import SimOutcome
from paceline_experiments.sim.scenarios import Scenario

Clock = Literal["virtual", "emulated"]
CLOCKS: dict[Clock, str] = {
    "virtual": "Virtual time: simulated jobs, nothing was computed.",
    "emulated": "Real processes and messages; computation is emulated by calibrated sleeps.",
}


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A solution with its parameters, under the name that it has in tables."""

    label: str
    solution: str
    parameters: dict[str, bool | int | float | str] = {}
    windows: Literal["own", "paper"] = "own"
    """The monitor's: the default ones, or those of the paper scaled to the scenario's time."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One job, run once."""

    scenario: str
    mode: str
    method: str
    seed: int
    outcome: SimOutcome
    clairvoyant_s: float
    """JCT of the clairvoyant scheduler for the same scenario and seed."""
    took_s: float = 0.0
    """Wall time of the run."""


class CallCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of management, as measured on real jobs."""

    ledger_call_s: float
    """A grant, a return, or a commit, at the master."""
    action_s: float
    """Seconds that all workers wait when a global action takes effect."""

    def mean_share(self, runs: Sequence[Run]) -> tuple[float, float]:
        """The mean share of the JCT over runs: ledger and actions."""
        ledger, actions = zip(*map(self.share, runs), strict=True)
        return statistics.mean(ledger), statistics.mean(actions)

    def share(self, run: Run) -> tuple[float, float]:
        """The share of the JCT, if nothing overlapped with training: ledger and actions."""
        outcome = run.outcome
        actions = sum(acted.action != "KillRestart" for acted in outcome.acted)
        return (
            outcome.ledger_calls * self.ledger_call_s / outcome.jct_s,
            actions * self.action_s / outcome.jct_s,
        )


class Results(msgspec.Struct, kw_only=True):
    """All runs of one command."""

    clock: Clock
    preset: str
    version: str
    commit: str
    command: str
    started: str
    """Date and time, ISO 8601."""
    notes: tuple[str, ...] = ()
    """Notes that a reader of the numbers must know."""
    call_costs: CallCosts | None = None
    """Costs of calls; None: not measured."""
    methods: dict[str, Method] = {}
    """Methods, by label."""
    scenarios: dict[str, Scenario] = {}
    """Scenarios by name, as drawn by the first seed."""
    runs: list[Run] = []

    def of(self, scenario: str, mode: str, method: str) -> list[Run]:
        """The runs of one row, by seed."""
        key = (scenario, mode, method)
        found = [run for run in self.runs if (run.scenario, run.mode, run.method) == key]
        return sorted(found, key=lambda run: run.seed)

    def rows(self) -> list[tuple[str, str, str]]:
        """Scenario, mode and method of each row, in the order of the runs."""
        return list(dict.fromkeys((run.scenario, run.mode, run.method) for run in self.runs))


def encode(results: Results) -> bytes:
    """Encode as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def decode(text: bytes) -> Results:
    """Decode what `encode` wrote.

    Raises:
        msgspec.ValidationError: it is something else.
    """
    return msgspec.json.decode(text, type=Results)


def mean_s(runs: Iterable[Run]) -> float:
    """Mean JCT, s."""
    times_s = [run.outcome.jct_s for run in runs]
    return sum(times_s) / len(times_s)
