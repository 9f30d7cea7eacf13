"""Every order of what can happen to three workers between loops, with the machine of the master.

Workers come to their next loop again and again, die and come again; worker 0 may be away for too
long, or for good. The facts are those of the edge (`paceline.master.awaited_chief`).
"""

import copy
from collections.abc import Callable

import pytest

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_INC, Inc
from paceline.protocol.samples.awaited_chief import (
    LONGEST_S,
    AdmitWorker,
    AtLoop,
    AwaitedChief,
    AwaitLife,
    ChiefSeen,
    KeepLeftLoop,
    MissChief,
)
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import OpenFeed

NODES = (CHIEF, "worker-1", "worker-2")


class Broken(Exception):
    """An invariant does not hold."""


def loop(number: int) -> Feed:
    return Feed(
        feed=number,
        place=(0, number),
        purpose="train",
        num_samples=8,
        epochs=1,
        batch_size=8,
        shard_size=8,
        shuffle=False,
        seed=0,
    )


class Job:
    """Three workers that have come to loop 0, in which all samples are done."""

    def __init__(self, machine: AwaitedChief) -> None:
        self.machine, self.now_s = machine, 0.0
        self.lives = {name: Inc(number + 1) for number, name in enumerate(NODES)}
        self.up = set(NODES)
        self.at = dict.fromkeys(NODES, 0)
        """The loop that each life is in; -1: in none so far."""
        self.newest = 0
        self.trains = True
        """This life of worker 0 has come to where the others are."""
        self.lives_on = True
        self.missed = False
        """Worker 0 was given up since it last trained."""
        self.awaited = NO_INC

    def key(self) -> tuple[object, ...]:
        own = self.machine
        rest = (own._life, self.now_s - own._since_s if own.held else 0.0, own._is_missed)
        held = tuple(sorted((name, one.inc) for name, one in own.held.items()))
        world = (*self.lives.values(), *sorted(self.up), *self.at.values(), self.newest)
        return (*rest, held, *world, self.trains, self.lives_on, self.missed, self.awaited)

    def events(self) -> list[tuple[Callable[..., None], str]]:
        found = [(Job.comes, name) for name in NODES if name in self.up and self.at[name] < 2]
        found += [(Job.dies, name) for name in NODES if name in self.up]
        if self.lives_on or CHIEF in self.up:
            found += [(Job.lives_again, name) for name in NODES if name not in self.up]
            found += [(Job.ends, CHIEF)] if CHIEF not in self.up else []
        return [*found, (Job.waits, "all")]

    def dies(self, name: str) -> None:
        self.up.discard(name)

    def lives_again(self, name: str) -> None:
        self.up.add(name)
        self.lives[name] = Inc(self.lives[name] + len(NODES))
        self.at[name] = -1 if name == CHIEF else self.newest - 1
        self.trains &= name != CHIEF

    def ends(self, _: str) -> None:
        self.lives_on = False

    def waits(self, _: str) -> None:
        self.now_s += LONGEST_S / 2 + 1.0

    def comes(self, name: str) -> None:
        """A worker comes to its next loop; a new life of worker 0 begins with the newest one."""
        if name == CHIEF and self.at[name] < 0:
            number = self.newest
        else:
            number = self.at[name] + 1
        message = OpenFeed(inc=self.lives[name], feed=loop(number), step=8)
        chief = ChiefSeen(inc=self.lives[CHIEF], lives_on=self.lives_on, trains=self.trains)
        at = AtLoop(
            node=name,
            message=message,
            is_new=number > self.newest,
            newest=self.newest,
            is_left=False,
            chief=chief,
            lives=dict(self.lives) if name == CHIEF else {},
        )
        for act in self.machine.came(at, self.now_s):
            match act:
                case AdmitWorker(node=node, message=asked):
                    self._admitted(node, asked)
                case AwaitLife(inc=inc):
                    self.awaited = inc
                case MissChief(waited_s=waited_s):
                    if self.missed or waited_s <= LONGEST_S:
                        raise Broken("it is given up twice, or too early")
                    self.missed = True
                case KeepLeftLoop():
                    raise Broken("no loop was left")
        if (self.awaited == NO_INC) != (not self.machine.held):
            raise Broken("a life is awaited, and nobody waits; or the other way round")

    def _admitted(self, node: str, asked: OpenFeed) -> None:
        number = asked.feed.feed
        if asked.inc != self.lives[node]:
            raise Broken("a life that is gone is told that its loop is open")
        if node != CHIEF and number > self.newest and self.lives_on and not self.missed:
            raise Broken("a worker is in a loop before worker 0")
        self.at[node], self.newest = number, max(self.newest, number)
        if node == CHIEF:
            self.trains, self.missed = True, False

    def check_goes_on(self) -> None:
        """Nobody waits for ever for a worker 0 that does not come."""
        if self.trains or not self.machine.held:
            return
        for name in [*self.machine.held]:
            later = copy.deepcopy(self)
            if name not in later.up or later.at[name] >= 2:
                continue
            for _ in range(3):
                later.comes(name)
                if name not in later.machine.held:
                    break
                later.waits(name)
            else:
                raise Broken("a worker waits for ever")


def explore(machine: AwaitedChief, depth: int) -> int:
    """Number of states; each is reached by every order of events that leads to it."""
    first = Job(machine)
    seen, states = {first.key()}, [first]
    for _ in range(depth):
        following = []
        for state in states:
            for event, name in state.events():
                after = copy.deepcopy(state)
                event(after, name)
                if (key := after.key()) not in seen:
                    seen.add(key)
                    after.check_goes_on()
                    following.append(after)
        states = following
    return len(seen)


def test_workers_follow_worker_0_and_none_waits_for_ever() -> None:
    assert explore(AwaitedChief(waits=True), depth=7) > 3000


class NeverMissed(AwaitedChief):
    def _look(self, chief, now_s):  # type: ignore[no-untyped-def]
        super()._look(chief, now_s)
        self._is_missed = False
        return []


class ForAnybody(AwaitedChief):
    def _free(self, lives):  # type: ignore[no-untyped-def]
        return super()._free({name: one.inc for name, one in self.held.items()})


class StillAwaited(AwaitedChief):
    def came(self, at, now_s):  # type: ignore[no-untyped-def]
        acts = super().came(at, now_s)
        return [act for act in acts if act != AwaitLife(NO_INC)]


@pytest.mark.parametrize(
    ("flawed", "found"),
    [
        (AwaitedChief(waits=False), "before worker 0"),
        (NeverMissed(waits=True), "waits for ever"),
        (ForAnybody(waits=True), "a life that is gone"),
        (StillAwaited(waits=True), "nobody waits"),
    ],
)
def test_a_flaw_is_found(flawed: AwaitedChief, found: str) -> None:
    with pytest.raises(Broken, match=found):
        explore(flawed, depth=6)
