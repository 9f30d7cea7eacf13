"""Running experiments: scenarios, methods and seeds to results."""

import time
from collections.abc import Callable, Iterator

import msgspec

from paceline.sim.asynchronous import Asynchronous
from paceline.sim.job import Control, Job
from paceline.sim.methods import lengths_of, solution_of
from paceline.sim.oracle import oracle_s
from paceline.sim.results import Method, Run
from paceline.sim.scenarios import Scenario
from paceline.sim.steering import Steering
from paceline.sim.synchronous import Synchronous


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Methods that are compared on the same jobs."""

    draw: Callable[[int], Scenario]
    """The scenario of a seed."""
    methods: tuple[Method, ...]
    keep_trail: bool = False
    """Keep what the nodes reported in the first run of each method, for drawing."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Experiments under one name."""

    name: str
    about: str
    experiments: tuple[Experiment, ...]
    repeat: int = 1
    """Seeds of each experiment, if nobody says otherwise."""
    first_seed: int = 0
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know."""

    def runs(self, seeds: range, labels: frozenset[str] = frozenset()) -> list["Planned"]:
        """What is to be run; ``labels``: of these methods only."""
        return [
            Planned(experiment, method, seed)
            for experiment in self.experiments
            for seed in seeds
            for method in experiment.methods
            if not labels or method.label in labels or method.solution in labels
        ]


class Planned(msgspec.Struct, frozen=True):
    """A run to be."""

    experiment: Experiment
    method: Method
    seed: int


def job_of(scenario: Scenario, seed: int, control: Control, *, keep_trail: bool = False) -> Job:
    """The simulated job of a scenario."""
    kind = Synchronous if scenario.mode in {"bsp", "allreduce"} else Asynchronous
    return kind(scenario, seed, control, keep_trail=keep_trail)


def simulate(scenario: Scenario, method: Method, seed: int, *, keep_trail: bool = False) -> Run:
    """Run one job in virtual time, without its oracle.

    Raises:
        ConfigError: the method's solution is not there, or refuses its parameters.
    """
    start_s = time.perf_counter()
    control = Steering(scenario, solution_of(method, scenario), lengths_of(method, scenario))
    outcome = job_of(scenario, seed, control, keep_trail=keep_trail).run()
    return Run(
        scenario=scenario.name,
        mode=scenario.mode,
        method=method.label,
        seed=seed,
        outcome=outcome,
        oracle_s=0.0,
        took_s=time.perf_counter() - start_s,
    )


def run_all(planned: list[Planned], first_seed: int) -> Iterator[tuple[Planned, Scenario, Run]]:
    """Run one after the other; the oracle once per scenario and seed.

    Yields:
        What was planned, the scenario that it was, and its run, whenever one is over.
    """
    known_s: dict[tuple[str, str, int], float] = {}
    for one in planned:
        scenario = one.experiment.draw(one.seed)
        key = (scenario.name, scenario.mode, one.seed)
        if key not in known_s:
            known_s[key] = oracle_s(scenario, one.seed)
        keep_trail = one.experiment.keep_trail and one.seed == first_seed
        run = simulate(scenario, one.method, one.seed, keep_trail=keep_trail)
        run = msgspec.structs.replace(run, oracle_s=known_s[key])
        yield one, scenario, run
