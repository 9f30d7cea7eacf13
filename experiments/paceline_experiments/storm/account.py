"""What a storm cost, from the stamps of its workers and the diary of its faults.

The *capacity present* is the number of members that could train: a worker counts from when its
script is ready until it dies. One that is frozen, cut off or slow counts as much less, meanwhile.
What it takes until work goes on with what is left, or with what has come, is the loss.

What so many members would train follows from how a step is made: its waits, which they divide, and
the processor's work for its sums, which each of them adds to. The calm tells how much that is.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TICK_S = 0.05
"""Seconds of a slice of time in which capacity is summed up."""


class Stamp(NamedTuple):
    """A moment of a worker, and what is in its model then."""

    at_s: float
    steps: int
    samples: int


class Life(NamedTuple):
    """One life of a worker, by its own stamps."""

    node: str
    host: str
    pid: int
    ready_s: float
    batches: tuple["Stamp", ...]
    """When each batch began, and the end of the loop."""
    end_s: float
    """It returned from its loop; infinite: it did not."""


class Work(NamedTuple):
    """The work of one step.

    Attributes:
        samples: of it.
        alone_s: seconds that one member alone would wait in it.
        each_s: seconds by which each member makes it longer, since all share the processors.
    """

    samples: int
    alone_s: float
    each_s: float = 0.0

    def step_s(self, members: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a step takes with so many members; without any, for ever."""
        with np.errstate(divide="ignore"):
            return self.alone_s / members + self.each_s * members

    def calmed(self, members: float, took_s: float) -> "Work":
        """Return the same where a step of so many members took so long."""
        return self._replace(each_s=max(0.0, took_s - self.alone_s / members) / members)


class Done(NamedTuple):
    """A fault that happened.

    Attributes:
        kind: of `faults.KINDS`.
        whom: a machine, or a node.
        at_s: when it began.
        until_s: when it was taken back.
        pids: processes of workers that it ended; they are not there from ``at_s`` on.
        away: processes of workers that could do ``left`` of their work until ``until_s``.
        left: that part.
    """

    kind: str
    whom: str
    at_s: float
    until_s: float
    pids: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    left: float = 0.0


class Account(NamedTuple):
    """A storm in figures.

    Attributes:
        rate: samples a second of one member, before the first fault.
        share: of the samples that the capacity present would have trained, those in the model.
        present: members, in the mean.
        steps: in the model in the time of the storm.
        times: of the picture, seconds since its beginning.
        capacity: members present at these times.
        trained: members' worth of samples that went into the model at these times.
        costs: for each fault, seconds of all members that were lost until the next one.
        pauses: for each fault, the longest time between two steps until the next one, in seconds.
    """

    rate: float
    share: float
    present: float
    steps: int
    times: NDArray[np.float64]
    capacity: NDArray[np.float64]
    trained: NDArray[np.float64]
    costs: tuple[float, ...]
    pauses: tuple[float, ...]


def read_lives(folder: Path) -> list[Life]:
    """Read all stamps of a folder."""
    found = []
    for path in sorted(folder.glob("*.stamps")):
        lines = [line.split() for line in path.read_text().splitlines()]
        ready = [line for line in lines if line[0] == "ready" and len(line) == 4]
        if not ready:
            continue
        batches = tuple(
            Stamp(float(line[1]), int(line[2]), int(line[3]))
            for line in lines
            if line[0] in ("batch", "end") and len(line) > 3
        )
        ends = [float(line[1]) for line in lines if line[0] == "end" and len(line) > 3]
        _, ready_s, host, pid = ready[0]
        end_s = ends[0] if ends else np.inf
        node = path.name.partition(".")[0]
        found.append(Life(node, host, int(pid), float(ready_s), batches, end_s))
    return found


def end_of(life: Life, lives: Iterable[Life], faults: Iterable[Done]) -> float:
    """Return when a life ended: by a fault, by itself, or as its node's next one was ready.

    One that is asked to leave takes part in the steps that it still begins.
    """
    last_s = life.batches[-1].at_s if life.batches else 0.0
    died = [
        max(one.at_s, last_s) for one in faults if life.pid in one.pids and one.at_s >= life.ready_s
    ]
    later = [
        other.ready_s for other in lives if other.node == life.node and other.ready_s > life.ready_s
    ]
    return min([life.end_s, *died, *later])


def capacity(
    times: NDArray[np.float64], lives: Sequence[Life], faults: Sequence[Done]
) -> NDArray[np.float64]:
    """Return the members present at each of these times, which are equally far apart."""
    total = np.zeros(len(times))
    for life in lives:
        end_s = end_of(life, lives, faults)
        present = ((times >= life.ready_s) & (times < end_s)).astype(float)
        for one in faults:
            if life.pid in one.away:
                # Of two faults at once the worse one counts.
                meanwhile = (times >= one.at_s) & (times < one.until_s)
                present[meanwhile] = np.minimum(present[meanwhile], one.left)
            if life.pid in one.away and end_s > one.until_s and not came_back(life, one):
                # Given up meanwhile: there as long as its next life is on its way.
                present[times >= one.until_s] = 0
        total += present
    return total


def came_back(life: Life, fault: Done) -> bool:
    """Tell whether a life did anything after a fault that was taken back."""
    return any(stamp.at_s >= fault.until_s for stamp in life.batches)


def steps_of(lives: Iterable[Life]) -> list[Stamp]:
    """Return when each number of steps was in the model first, and the samples of it.

    A worker that has just joined has stamps of a model that it has yet to copy.
    """
    first: dict[int, Stamp] = {}
    for life in lives:
        for stamp in life.batches:
            known = first.get(stamp.steps, stamp)
            at_s, samples = min(known.at_s, stamp.at_s), max(known.samples, stamp.samples)
            first[stamp.steps] = Stamp(at_s, stamp.steps, samples)
    return [first[steps] for steps in sorted(first)]


def account(
    lives: Sequence[Life], faults: Sequence[Done], calm_s: float, end_s: float, work: Work
) -> Account:
    """Sum up a storm.

    Args:
        lives: of all workers.
        faults: in the order of time; at least one.
        calm_s: from when to the first fault all was in order: gives the rate of a member.
        end_s: of the storm.
        work: of a step, without what sums take.
    """
    stamps = steps_of(lives)
    at_s = np.array([stamp.at_s for stamp in stamps])
    start_s = faults[0].at_s
    times = np.arange(calm_s, end_s, TICK_S)
    present = capacity(times, lives, faults)
    done = np.interp(times, at_s, np.array([stamp.samples for stamp in stamps]))
    # Whole steps: in the first one many members join, and in the last one the first fault falls.
    calm = (times >= at_s[at_s >= calm_s][0]) & (times < at_s[at_s <= start_s][-1])
    members = float(present[calm].mean())
    took_s = work.samples * np.ptp(times[calm]) / np.ptp(done[calm])
    could = work.samples / work.calmed(members, took_s).step_s(present)
    storm = times >= start_s
    bounds = [one.at_s for one in faults] + [end_s]
    costs, pauses = [], []
    for begin_s, stop_s in itertools.pairwise(bounds):
        within = (times >= begin_s) & (times < stop_s)
        if not within.any():
            costs.append(0.0)
            pauses.append(0.0)
            continue
        lost = could[within].sum() * TICK_S - (done[within][-1] - done[within][0])
        costs.append(lost / max(TICK_S, could[within].mean()))
        near = at_s[(at_s >= begin_s - 5) & (at_s < stop_s)]
        pauses.append(float(np.diff(near).max()) if len(near) > 1 else stop_s - begin_s)
    return Account(
        rate=work.samples / took_s / members,
        share=float((done[-1] - done[storm][0]) / (could[storm].sum() * TICK_S)),
        present=float(present[storm].mean()),
        steps=sum(start_s <= stamp.at_s < end_s for stamp in stamps),
        times=times - start_s,
        capacity=present,
        trained=np.gradient(done, TICK_S) / np.maximum(could, TICK_S) * present,
        costs=tuple(costs),
        pauses=tuple(pauses),
    )
