"""Faults of `paceline bench failslow`: drawn from a seed, made by files, groups and shapers.

Nothing that detects knows of them: a rank sleeps because its script finds a file, is short of a
processor because of its group's quota, or sends slowly because of a token bucket in the kernel.
"""

import contextlib
import os
import random
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, assert_never

import msgspec

from paceline.base.cgroups import NodeGroup, find_node_group, find_trees
from paceline.base.jobdir import JobDir
from paceline.features.failslow.events import DiagnosedEvent
from paceline_experiments.failslow.networks import Networks

SIZE = 8
"""Ranks of the script, as 2 x 2 x 2."""
FORWARDS = 2
"""Forward passes of a step."""
STRIDES = {4: 32 << 10, 2: 129 << 10, 1: 64 << 10}
"""Least bytes that two ranks of a group send each other in a step, by their distance. The distances
are those in a pipeline, of replicas, and in a tensor-parallel group. Half of a pipeline's 64 KiB
passes while ranks compute."""
FACTORS = (1.4, 2.6)
"""Multiples of its usual time that a step should take."""
_TRIES = 5
_STILL = 4.0
"""Ranks that take so many times as long for a step as usual stand still."""
_TICKS = os.sysconf("SC_CLK_TCK")

Way = Literal["sleep", "quota", "cable", "link"]


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """Fault: what becomes slow, and by how much."""

    way: Way
    ranks: tuple[int, ...]
    """Rank that becomes slow; of a link: its two ends."""
    factor: float
    """Times a healthy step, as far as the fault alone can make it so."""

    def is_named_by(self, event: DiagnosedEvent) -> bool:
        """Tell whether a verdict names it. Of a slow cable all links are slow, so each is right."""
        named = {int(node.rpartition("-")[2]) for node in event.nodes}
        if self.way in ("sleep", "quota"):
            return event.culprit == "computation" and named == set(self.ranks)
        if event.culprit != "link":
            return False
        return named == set(self.ranks) or (self.way == "cable" and set(self.ranks) < named)


class HealthyPace(msgspec.Struct, frozen=True, kw_only=True):
    """A healthy job's: seconds of a step, and cores that one rank uses."""

    step_s: float
    cores: float


def draw_rank(rng: random.Random, ways: tuple[Way, ...] = ("sleep", "quota")) -> InjectedFault:
    """Draw a slow rank."""
    return InjectedFault(
        way=rng.choice(ways), ranks=(rng.randrange(SIZE),), factor=rng.uniform(*FACTORS)
    )


def draw_link(rng: random.Random) -> InjectedFault:
    """Draw a slow cable, or a slow link between two ranks of a group."""
    rank, factor = rng.randrange(SIZE), rng.uniform(*FACTORS)
    if rng.random() < 0.5:
        return InjectedFault(way="cable", ranks=(rank,), factor=factor)
    other = rank ^ rng.choice([*STRIDES])
    return InjectedFault(way="link", ranks=(min(rank, other), max(rank, other)), factor=factor)


class Injector:
    """Makes faults of one job, and takes them back.

    Args:
        job: the job.
        slow: the file that its script looks into.
        networks: of its ranks; None: there are none, and no link can be slow.
    """

    def __init__(self, job: JobDir, slow: Path, networks: Networks | None) -> None:
        self._job, self._slow, self._networks = job, slow, networks
        self._limited: list[int] = []

    def inject(self, faults: tuple[InjectedFault, ...], pace: HealthyPace) -> None:
        """Make them all at once."""
        sleeps = []
        for fault in faults:
            added_s = (fault.factor - 1) * pace.step_s
            match fault.way:
                case "sleep":
                    sleeps.append(f"{fault.ranks[0]} {added_s / FORWARDS:.6f}\n")
                case "quota":
                    self._group(fault.ranks[0]).set_cpu(pace.cores / fault.factor)
                    self._limited.append(fault.ranks[0])
                case "cable":
                    self._links.slow_cable(fault.ranks[0], sum(STRIDES.values()) / added_s)
                case "link":
                    one, other = fault.ranks
                    self._links.slow_link(one, other, STRIDES[other - one] / added_s)
                case _:
                    assert_never(fault.way)
        fresh = self._slow.with_suffix(".fresh")
        fresh.write_text("".join(sleeps))
        fresh.replace(self._slow)

    def relieve(self) -> None:
        """Take all back."""
        self._slow.unlink(missing_ok=True)
        for rank in self._limited:
            with contextlib.suppress(OSError):
                self._group(rank).set_cpu(None)
        self._limited.clear()
        if self._networks is not None:
            self._networks.mend()

    @property
    def _links(self) -> Networks:
        assert self._networks is not None
        return self._networks

    def _group(self, rank: int) -> NodeGroup:
        return find_node_group(self._job.job_id, f"worker-{rank}")

    def cpu_s(self, rank: int) -> float:
        """Time that the processes of a rank's control group have run."""
        base = find_trees()["cpu"].base / "paceline" / self._job.job_id / f"worker-{rank}"
        found = 0
        for pid in (base / "cgroup.procs").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found += int(fields[11]) + int(fields[12])
        return found / _TICKS

    def pace(self, log: Path, for_s: float) -> HealthyPace:
        """Watch for a while what a healthy step takes; again if ranks stood still meanwhile."""
        for _ in range(_TRIES):
            begun_s, used_s = time.time(), self._used_s()
            time.sleep(for_s)
            took_s = time.time() - begun_s
            cores = (self._used_s() - used_s) / SIZE / took_s
            over_s = begun_s + took_s
            ends_s = [begun_s, *(each for each in times_of(log) if begun_s < each < over_s)]
            steps_s = [after - before for before, after in pairwise([*ends_s, over_s])]
            if max(steps_s) < _STILL * median(steps_s):
                break
        return HealthyPace(step_s=took_s / max(len(ends_s) - 1, 1), cores=cores)

    def _used_s(self) -> float:
        return sum(self.cpu_s(rank) for rank in range(SIZE))


def lives_of(log: Path) -> list[list[float]]:
    """Return when the steps of each life of the script ended (Unix time)."""
    lives: list[list[float]] = []
    for line in log.read_text().split("\n")[:-1] if log.exists() else ():
        if line == "0":
            lives.append([])
        else:
            lives[-1].append(float(line))
    return lives


def times_of(log: Path) -> list[float]:
    """Return when the steps of the newest life ended."""
    return (lives_of(log) or [[]])[-1]
