"""Running experiments: scenarios, methods and seeds to results."""

import functools
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy.registry import kind_of, names, solution
from paceline_experiments.sim.asynchronous import Asynchronous
from paceline_experiments.sim.control import Control
from paceline_experiments.sim.job import SimJob
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.sim.steering import Steering
from paceline_experiments.sim.synchronous import Synchronous
from paceline_experiments.stragglers.clairvoyant import clairvoyant_s
from paceline_experiments.stragglers.methods import BLIND, lengths_of, solution_of
from paceline_experiments.stragglers.results import Method, Run

FIRST_EVALUATION_SEED = 6_000
"""Solutions are judged on seeds from here on. Those before are of development: on some of them
parameters were chosen, or looked at."""


def _as_it_is(method: Method) -> Method:
    return method


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Methods that are compared on the same jobs."""

    draw: Callable[[int], Scenario]
    """The scenario of a seed."""
    methods: tuple[Method, ...]
    trails: tuple[str, ...] = ()
    """Labels of methods whose first run keeps what the nodes reported, for figures over time."""
    fit: Callable[[Method], Method] = _as_it_is
    """A method from outside, as these jobs ask for it."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Experiments under one name."""

    name: str
    about: str
    experiments: tuple[Experiment, ...]
    repeat: int = 1
    """Seeds of each experiment, if nobody says otherwise."""
    first_seed: int = 0
    notes: tuple[str, ...] = ()
    """Notes that a reader of the numbers must know."""

    def runs(self, seeds: range, labels: frozenset[str] = frozenset()) -> list["PlannedRun"]:
        """Return what must be run.

        Args:
            seeds: of each experiment.
            labels: of these methods only, by label or solution. A solution that the preset does not
                have is run in those of its experiments that it is made for, with its default
                parameters.

        Raises:
            ConfigError: neither a method nor a solution is called so, or it cannot be loaded, or it
                is made for none of these jobs.
        """
        methods = [method for each in self.experiments for method in each.methods]
        known = {name for each in methods for name in (each.label, each.solution)}
        extra = [self._outside(name) for name in sorted(labels - known)]
        return [
            PlannedRun(experiment, method, seed)
            for experiment in self.experiments
            for seed in seeds
            for method in (
                *(m for m in experiment.methods if not labels or {m.label, m.solution} & labels),
                *(experiment.fit(m) for m in extra if _is_for(m, experiment.draw(seed).mode)),
            )
        ]

    def _outside(self, name: str) -> Method:
        """Return a solution that the preset does not run on its own."""
        if name in names():
            solution(name)
            found = Method(label=name, solution=name)
            modes = [each.draw(self.first_seed).mode for each in self.experiments]
            if not any(_is_for(found, mode) for mode in modes):
                raise ConfigError(
                    f"preset {self.name} has jobs in mode {', '.join(dict.fromkeys(modes))} only, "
                    f"and {name} is made for mode {', '.join(kind_of(name).modes)}; "
                    "choose a preset with such jobs"
                )
            return found
        own = dict.fromkeys(method.label for each in self.experiments for method in each.methods)
        raise ConfigError(
            f"preset {self.name} has no method {name!r}; it has {', '.join(sorted(own))}; "
            f"and any solution can be run: {', '.join(names())}"
        )


def _is_for(method: Method, mode: str) -> bool:
    return mode in kind_of(method.solution).modes


class PlannedRun(msgspec.Struct, frozen=True):
    """A run to be."""

    experiment: Experiment
    method: Method
    seed: int


def job_of(scenario: Scenario, seed: int, control: Control, *, keep_trail: bool = False) -> SimJob:
    """The simulated job of a scenario."""
    kind = Synchronous if scenario.mode in {"bsp", "allreduce"} else Asynchronous
    return kind(scenario, seed, control, keep_trail=keep_trail)


def simulate(scenario: Scenario, method: Method, seed: int, *, keep_trail: bool = False) -> Run:
    """Run one job in virtual time, without its clairvoyant schedule.

    Raises:
        ConfigError: the method's solution is not there, or refuses its parameters.
    """
    start_s = time.perf_counter()
    if method.solution in BLIND and not keep_trail:
        # Nobody would read the reports, and to take them in is most of the work.
        scenario = msgspec.structs.replace(scenario, report_every=scenario.num_steps)
    control = Steering(scenario, solution_of(method, scenario), lengths_of(method, scenario))
    outcome = job_of(scenario, seed, control, keep_trail=keep_trail).run()
    return Run(
        scenario=scenario.name,
        mode=scenario.mode,
        method=method.label,
        seed=seed,
        outcome=outcome,
        clairvoyant_s=0.0,
        took_s=time.perf_counter() - start_s,
    )


def run_all(
    planned: list[PlannedRun], first_seed: int, processes: int = 1
) -> Iterator[tuple[PlannedRun, Scenario, Run]]:
    """Run everything; the clairvoyant schedule once per scenario and seed.

    Args:
        planned: what is to be run.
        first_seed: whose runs keep their trail.
        processes: runs of other experiments or seeds go on at the same time, in so many processes.

    Yields:
        What was planned, the scenario that it was, and its run, in the order of the plan.

    Raises:
        concurrent.futures.process.BrokenProcessPool: one of the processes was killed.
    """
    groups = [list(group) for _, group in itertools.groupby(planned, _job)]
    run_group = functools.partial(_run_group, first_seed=first_seed)
    if processes == 1:
        yield from itertools.chain.from_iterable(map(run_group, groups))
        return
    # Unlike a `multiprocessing.Pool`, it does not wait for a process that has died.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        yield from itertools.chain.from_iterable(pool.map(run_group, groups))
    finally:
        pool.shutdown(cancel_futures=True)


def _job(one: PlannedRun) -> tuple[int, int]:
    """Return what runs of the same job have in common."""
    return id(one.experiment), one.seed


def _run_group(group: list[PlannedRun], first_seed: int) -> list[tuple[PlannedRun, Scenario, Run]]:
    """Run one job under several methods."""
    experiment, seed = group[0].experiment, group[0].seed
    scenario = experiment.draw(seed)
    least_s = clairvoyant_s(scenario, seed)
    done = []
    for one in group:
        keep_trail = seed == first_seed and one.method.label in experiment.trails
        run = simulate(scenario, one.method, seed, keep_trail=keep_trail)
        done.append((one, scenario, msgspec.structs.replace(run, clairvoyant_s=least_s)))
    return done
