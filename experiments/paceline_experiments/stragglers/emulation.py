"""Knowledge of a real job's process about the stragglers it plays: the scenario, and who it is.

Written by the command into a directory, read by the training script and by what slows servers
(``emulated/``). Nothing that looks for stragglers reads it. Every life of a node keeps a diary
there, from which the command learns afterwards when the job trained and who computed what.
"""

import os
import time
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline_experiments.sim.nodes import Noise
from paceline_experiments.sim.patterns import Course, Placement, Role, spells_of
from paceline_experiments.sim.scenarios import Scenario

DIRECTORY = "PACELINE_EMULATED"
"""Environment variable that names the directory."""
ROWS = 1_024
"""Rows of the model, which counts: sample i has added 1 to row i % ROWS."""
WAIT_S = 0.02
FIELDS = 3
"""Numbers in a diary's entry: its begin and end (Unix time), and its samples."""


class Emulated(msgspec.Struct, frozen=True, kw_only=True):
    """Emulation of one run."""

    scenario: Scenario
    seed: int

    def write(self, directory: Path) -> None:
        """Begin a directory with it; not in JSON, which has no infinity."""
        (directory / "scenario.msgpack").write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, directory: Path) -> "Emulated":
        """Read what `write` wrote."""
        return msgspec.msgpack.decode((directory / "scenario.msgpack").read_bytes(), type=cls)


def diary(directory: Path, node: str, life: int) -> NDArray[np.float64]:
    """The whole entries of one life; the first has no samples: it was ready to train."""
    path = directory / f"{node}.{life}"
    if not path.exists():
        return np.empty((0, FIELDS))
    values = np.frombuffer(path.read_bytes()[: path.stat().st_size // 8 * 8])
    return values[: values.size // FIELDS * FIELDS].reshape(-1, FIELDS)


def diaries(directory: Path, node: str) -> list[NDArray[np.float64]]:
    """The diaries of all lives of a node."""
    lives = len(list(directory.glob(f"{node}.*")))
    return [diary(directory, node, life) for life in range(lives)]


def started_s(directory: Path, workers: int) -> float | None:
    """Unix time at which the last worker was ready to train; None: not all are."""
    ready_s = [_ready_s(directory, f"worker-{i}") for i in range(workers)]
    known_s = [each for each in ready_s if each is not None]
    return max(known_s) if len(known_s) == workers else None


def _ready_s(directory: Path, node: str) -> float | None:
    """Return the Unix time at which a node's first life was ready; None: none was yet."""
    return next((float(each[0, 0]) for each in diaries(directory, node) if len(each)), None)


class EmulatedLife:
    """This process, as one life of a node: what it meets, and its diary."""

    def __init__(self, node: str, directory: Path) -> None:
        """Begin a life; who has lived before under this name is known by the diaries."""
        emulated = Emulated.read(directory)
        self.scenario, self._directory = emulated.scenario, directory
        role, _, number = node.rpartition("-")
        self.place = Placement(_role(role), int(number), len(list(directory.glob(f"{node}.*"))))
        self._courses = [
            (pattern, Course(spells_of(self.scenario.patterns, i, self.place, emulated.seed)))
            for i, pattern in enumerate(self.scenario.patterns)
            if pattern.role == self.place.role
        ]
        self._noise = Noise(self.scenario.compute.noise, self.scenario.workers, emulated.seed)
        self._diary = os.open(
            directory / f"{node}.{self.place.life}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        self._started_s: float | None = None

    @classmethod
    def of_this_process(cls) -> "EmulatedLife":
        """Return the life of this training process, by its environment."""
        return cls(os.environ["PACELINE_NODE"], Path(os.environ[DIRECTORY]))

    def note(self, start_s: float, stop_s: float, samples: int) -> None:
        """Write an entry; in one piece, so that a reader sees whole ones."""
        os.write(self._diary, np.array([start_s, stop_s, samples]).tobytes())

    def await_all(self) -> None:
        """Wait until every worker is ready to train."""
        now_s = time.time()
        self.note(now_s, now_s, 0)
        while self.started_s() is None:
            time.sleep(WAIT_S)

    def started_s(self) -> float | None:
        """Return when the job began to train; None: it has not."""
        if self._started_s is None:
            self._started_s = started_s(self._directory, self.scenario.workers)
        return self._started_s

    def delay_s(self, iteration: int) -> float:
        """Return what is added to a batch, or an update, that begins now."""
        return self._disturbed(iteration)[0]

    def batch_s(self, samples: int, iteration: int) -> float:
        """Return what a worker's batch that begins now takes."""
        delay_s, slowdown = self._disturbed(iteration)
        speed = (self.scenario.speeds or (1.0,) * self.scenario.workers)[self.place.index]
        busy_s = float(self.scenario.compute.batch_s(samples, speed))
        return busy_s * slowdown * self._noise.of(self.place.index, iteration) + delay_s

    def _disturbed(self, iteration: int) -> tuple[float, float]:
        delay_s, slowdown = 0.0, 1.0
        begun_s = self.started_s()
        if begun_s is None:
            return delay_s, slowdown
        for pattern, course in self._courses:
            moment = time.time() - begun_s if pattern.clock == "seconds" else iteration
            spell = course.at(moment)
            delay_s, slowdown = delay_s + spell.delay_s, slowdown * spell.slowdown
        return delay_s, slowdown


def _role(name: str) -> Role:
    return "server" if name == "server" else "worker"
