"""Trials of `paceline bench failslow`: a script's life each, which becomes slow as its seed says.

All ranks begin again between two trials, so that nothing is known of the one before. The verdict is
read from the job's events.
"""

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.features.failslow.events import (
    DiagnosedEvent,
    RelievedEvent,
    RestartAdvisedEvent,
    SlowedEvent,
    read,
)
from paceline.jobs.history import read_events
from paceline.jobs.launch import ask, launch
from paceline.wire.client import Kill
from paceline.wire.spec import JobSpec, NodeSpec
from paceline_experiments.failslow.faults import (
    SIZE,
    HealthyPace,
    InjectedFault,
    Injector,
    Way,
    draw_link,
    draw_rank,
    lives_of,
    times_of,
)
from paceline_experiments.failslow.networks import Networks
from paceline_experiments.harness import ending

SCRIPTS = Path(__file__).with_name("watched")
HEALTHY_S = (7.0, 11.0)
"""Range of the seconds from a job's first step to its fault."""
PACE_S = 3.0
WEAK = 1.15
"""A fault that makes a step less than so many times as long is none that counts: 1.10 is what the
paper calls slow."""
PATIENCE_S = 30.0
"""Seconds that a trial waits for a verdict."""
START_S = 120.0
POLL_S = 0.05

Told = SlowedEvent | DiagnosedEvent | RelievedEvent | RestartAdvisedEvent
_Kind = TypeVar("_Kind", SlowedEvent, DiagnosedEvent, RelievedEvent, RestartAdvisedEvent)


class Case(NamedTuple):
    """Case: what happens in a job."""

    name: str
    about: str
    draw: Callable[[random.Random], tuple[InjectedFault, ...]]
    at_start: bool = False
    """The fault is there from the first step on."""
    passes: bool = False
    """The fault is over as soon as the job is said to be slow."""
    links: bool = False
    """Faults are, or may be, of links."""
    quotas: bool = False
    """Faults are, or may be, quotas of processors."""


def _any(rng: random.Random) -> InjectedFault:
    return draw_rank(rng) if rng.random() < 0.5 else draw_link(rng)


def _slow(
    *draws: Callable[[random.Random], InjectedFault],
) -> Callable[[random.Random], tuple[InjectedFault, ...]]:
    return lambda rng: tuple(draw(rng) for draw in draws)


def _both(rng: random.Random) -> tuple[InjectedFault, ...]:
    """Apart: a rank that is short of a processor sends slowly, so its links cannot be judged."""
    rank, link = draw_rank(rng), draw_link(rng)
    while set(rank.ranks) & set(link.ranks):
        link = draw_link(rng)
    return rank, link


def _rank(way: Way) -> Callable[[random.Random], InjectedFault]:
    return lambda rng: draw_rank(rng, (way,))


CASES = {
    case.name: case
    for case in (
        Case("sleep", "a rank sleeps in each forward pass", _slow(_rank("sleep"))),
        Case("quota", "a rank is short of a processor", _slow(_rank("quota")), quotas=True),
        Case("link", "a cable, or a link, is slow", _slow(draw_link), links=True),
        Case(
            "both",
            "a rank, and a cable or a link of others",
            _both,
            links=True,
            quotas=True,
        ),
        Case(
            "passing",
            "any of these, over before it can be measured",
            _slow(_any),
            passes=True,
            links=True,
            quotas=True,
        ),
        Case(
            "start",
            "any of these, from the first step on",
            _slow(_any),
            at_start=True,
            links=True,
            quotas=True,
        ),
    )
}


class FaultTrial(msgspec.Struct, kw_only=True):
    """Outcome of one life of the script."""

    case: str
    seed: int
    faults: tuple[InjectedFault, ...] = ()
    right: bool = False
    verdict_s: float | None = None
    """Seconds from the fault to the verdict that names it, the last one if there are several."""
    factor: float = 1.0
    """Times a healthy step that a step took with the fault."""
    step_s: float = 0.0
    """Seconds of a healthy step."""
    healthy_s: float = 0.0
    false_alarms: int = 0
    """Times that the job was said to be slow while it was healthy."""
    false_verdicts: int = 0
    """Ranks and links that were blamed then."""
    advised: int = 0
    """Restarts that were advised of a healthy job: all that is ever done about a script."""
    told: list[str] = []
    """Words of the job, with the time from the fault."""

    @property
    def is_weak(self) -> bool:
        """Whether the fault does not count, whatever the job says of it."""
        return self.case in CASES and self.factor < WEAK


class Watched:
    """A job of the script, and what it says.

    Args:
        job: it runs.
        folder: of its files.
        networks: of its ranks.
    """

    def __init__(self, job: JobDir, folder: Path, networks: Networks | None) -> None:
        self.job, self.log = job, folder / "log"
        self.injector = Injector(job, folder / "slow", networks)
        self.begun_s = 0.0
        """Unix time of the first step of the present life."""

    def told(self, from_s: float = 0.0, to_s: float = float("inf")) -> list[Told]:
        """Return its words about its pace between two times (Unix) of its present life."""
        return [
            event
            for event in read(read_events(self.job.events))
            if isinstance(event, Told) and max(from_s, self.begun_s) <= event.t < to_s
        ]

    def begin_again(self) -> None:
        """Have all ranks end and begin again: a life of which nothing is known."""
        past = len(lives_of(self.log))
        ask(self.job, Kill(node="worker-0"), START_S)
        self.await_step(past)

    def await_step(self, past: int = 0) -> None:
        """Wait for the first step of a life, after some past ones.

        Raises:
            PermanentError: there is none.
        """

        def steps() -> bool:
            return len(lives_of(self.log)) > past and bool(times_of(self.log))

        if not self.until(steps, START_S):
            raise PermanentError(f"job {self.job.job_id} makes no step; see {self.job.path}")
        self.begun_s = times_of(self.log)[0]

    def until(self, over: Callable[[], object], for_s: float) -> bool:
        """Wait until something is so; False: it was not, for so long.

        Raises:
            PermanentError: the job has ended; its directory is kept, and named.
        """
        deadline_s = time.monotonic() + for_s
        while not over():
            if self.job.outcome.exists():
                raise PermanentError(f"job {self.job.job_id} has ended early; see {self.job.path}")
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
        return True

    def mean_step_s(self, from_s: float, to_s: float) -> float:
        """Return the mean time of the steps between two moments; 0: there are none."""
        times = [each for each in times_of(self.log) if from_s <= each <= to_s]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


@contextlib.contextmanager
def running(networks: Networks | None, name: str) -> Iterator[Watched]:
    """Start the script, in networks if there are any; the job and its files go with the context.

    Args:
        networks: of its ranks.
        name: of the job.

    Raises:
        PermanentError: it makes no step.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-slow-") as place:
        folder = Path(place)
        job = launch(spec_of(folder, networks, name))
        with ending(job):
            watched = Watched(job, folder, networks)
            watched.await_step()
            yield watched
    shutil.rmtree(job.path)


def spec_of(folder: Path, networks: Networks | None, name: str) -> JobSpec:
    """The job: started like any script for torchrun."""
    arguments: tuple[str, ...] = ("--slow", str(folder / "slow"), "--log", str(folder / "log"))
    script, env = SCRIPTS / "mesh.py", {}
    if networks is not None:
        arguments = (",".join(map(str, networks.pids)), str(script), *arguments)
        script, env = SCRIPTS / "in_network.py", networks.env()
    return JobSpec(
        script=str(script),
        args=arguments,
        name=f"failslow-{name}",
        strategy="script",
        workers=NodeSpec(count=SIZE),
        torch_threads=1,
        env=env,
        cwd=str(folder),
    )


def run_trial(case: Case, seed: int, watched: Watched, usual: HealthyPace) -> FaultTrial:
    """Have a script begin again, make it slow, and see what its job says.

    Args:
        case: what happens.
        seed: of what is drawn.
        watched: the job.
        usual: pace of an earlier life, for faults that are there from the start.
    """
    rng = random.Random(f"{case.name} {seed}")
    trial = FaultTrial(case=case.name, seed=seed, faults=case.draw(rng))
    try:
        # A quota waits for the first step: it would make the start of a process very long.
        if case.at_start and trial.faults[0].way != "quota":
            watched.injector.inject(trial.faults, usual)
        watched.begin_again()
        _run(case, trial, watched, rng.uniform(*HEALTHY_S), usual)
    finally:
        watched.injector.relieve()
    return trial


def _run(
    case: Case, trial: FaultTrial, watched: Watched, healthy_s: float, usual: HealthyPace
) -> None:
    first_s, pace = watched.begun_s, usual
    if not case.at_start:
        time.sleep(max(0.0, first_s + healthy_s - PACE_S - time.time()))
        pace = watched.injector.pace(watched.log, PACE_S)
    onset_s = first_s if case.at_start else time.time()
    if not case.at_start or trial.faults[0].way == "quota":
        watched.injector.inject(trial.faults, pace)
    if not case.at_start:
        trial.healthy_s = onset_s - first_s
        healthy = watched.told(to_s=onset_s)
        trial.false_alarms, trial.false_verdicts = count_false(healthy)
    trial.step_s = pace.step_s
    if case.passes:
        watched.until(lambda: _of(SlowedEvent, watched.told(onset_s)), PATIENCE_S)
        trial.factor = watched.mean_step_s(onset_s, time.time()) / pace.step_s
        watched.injector.relieve()
        _await_well(trial, watched, onset_s)
    else:
        watched.until(lambda: _is_decided(trial, watched.told(onset_s)), PATIENCE_S)
        trial.factor = watched.mean_step_s(onset_s, time.time()) / pace.step_s
        judge(trial, watched.told(onset_s), onset_s)
    trial.told = [f"{each.t - onset_s:.2f} s: {each.sentence()}" for each in watched.told()]


def _await_well(trial: FaultTrial, watched: Watched, onset_s: float) -> None:
    """Wait for the verdict on a fault that is over, and for the word that the job is well."""

    def is_well() -> bool:
        told = watched.told(onset_s)
        return bool(_of(DiagnosedEvent, told)) and any(
            not each.still_slow for each in _of(RelievedEvent, told)
        )

    is_over = watched.until(is_well, PATIENCE_S)
    found = _of(DiagnosedEvent, watched.told(onset_s))
    trial.right = is_over and all(
        each.culprit == "nothing" or any(fault.is_named_by(each) for fault in trial.faults)
        for each in found
    )
    if trial.right:
        trial.verdict_s = found[0].t - onset_s


def _is_decided(trial: FaultTrial, told: list[Told]) -> bool:
    """Tell whether all faults are named, or something that is none is."""
    found = _of(DiagnosedEvent, told)
    wrong = [each for each in found if not any(one.is_named_by(each) for one in trial.faults)]
    return bool(wrong) or all(any(map(one.is_named_by, found)) for one in trial.faults)


def judge(trial: FaultTrial, told: list[Told], onset_s: float) -> None:
    """Say whether the verdict names all faults and nothing else, and how soon."""
    found = _of(DiagnosedEvent, told)
    named = [[each.t for each in found if one.is_named_by(each)] for one in trial.faults]
    strays = [each for each in found if not any(one.is_named_by(each) for one in trial.faults)]
    trial.right = all(named) and not strays
    if all(named):
        trial.verdict_s = max(min(times) for times in named) - onset_s


def count_false(told: list[Told]) -> tuple[int, int]:
    """Count the alarms, and the ranks and links that are blamed."""
    blamed = [each for each in _of(DiagnosedEvent, told) if each.culprit != "nothing"]
    return len(_of(SlowedEvent, told)), len(blamed)


def _of(kind: type[_Kind], told: list[Told]) -> list[_Kind]:
    return [each for each in told if isinstance(each, kind)]


def run_healthy(for_s: float, networks: Networks | None) -> FaultTrial:
    """Leave a job alone, and count what it says."""
    trial = FaultTrial(case="healthy", seed=0)
    with running(networks, trial.case) as watched:
        begun_s = time.time()
        watched.until(lambda: False, for_s)
        told = watched.told()
        trial.healthy_s = time.time() - begun_s
        trial.false_alarms, trial.false_verdicts = count_false(told)
        trial.advised = len(_of(RestartAdvisedEvent, told))
        trial.right = not trial.advised
        trial.step_s = watched.mean_step_s(begun_s, time.time())
        trial.told = [f"{each.t - begun_s:.2f} s: {each.sentence()}" for each in told]
    return trial
