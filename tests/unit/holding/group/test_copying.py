"""Copying what a peer holds: which memory is read when, and into what."""

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from paceline.base.processes import this_machine
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.holding.replicas import copying
from paceline.runtime.holding.replicas.copying import Copier, Photographs, beyond
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.group import STILL, AskState, CatchUp, Member, StatePart

ORDER = CatchUp(epoch_no=1, inc=9, group=2, step=5, source=Member(1, "worker-0", ""))
OTHER = msgspec.structs.replace(ORDER, group=3, source=Member(2, "worker-1", ""))


class Joiner:
    """A member that copies; what it reads is done when `finish` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            copying, "find_job_process", lambda pid, path: SimpleNamespace(node=self.source.node)
        )
        self.net = nn.Linear(3, 2)
        self.replica = Replica([self.net], [], [])
        self.state = MemberState(9)
        self.asked: list[tuple[int, int]] = []
        self.reads: list[tuple[Callable[[], None], Future[None]]] = []
        self.within = 3
        process: Any = SimpleNamespace(job=SimpleNamespace(path=Path("a job")))
        self.copier = Copier(process, self._ask, self._aside)

    def _ask(self, order: CatchUp, part: int) -> None:
        self.asked.append((order.source.inc, part))

    def _aside(self, read: Callable[[], None]) -> Future[None]:
        self.reads.append((read, Future()))
        return self.reads[-1][1]

    def follow(self, order: CatchUp) -> None:
        self.source = order.source
        self.state.copying = order
        self.copier.follow(order)

    def told(
        self, peer: nn.Module, *, pid: int = 0, part: int = 0, machine: str = "", within: int = 3
    ) -> None:
        """The peer answers; its memory is that of this process."""
        photograph = Replica([peer], [], []).photograph()
        frame, digest = (b"", 0) if part == STILL else photograph.part(part)
        answer = StatePart(
            epoch_no=1,
            inc=self.source.inc,
            step=5,
            part=part,
            within=within,
            num_parts=photograph.num_parts,
            digest=digest,
            machine=machine or this_machine(),
            pid=pid or os.getpid(),
            addresses=photograph.addresses if part == 0 else (),
        )
        self.copier.take(self.source.inc, answer, memoryview(bytearray(frame)), self.within)

    def read(self, order: CatchUp, peer: nn.Module) -> None:
        """Read the peer's memory to the end."""
        self.follow(order)
        self.told(peer)
        self.go_on()
        self.finish()
        self.go_on()

    def go_on(self, *, stays: bool = True) -> bool:
        return self.copier.go_on(self.state, self.replica, stays=stays)

    def finish(self) -> None:
        """What is being read is read, or refused."""
        read, done = self.reads[-1]
        try:
            read()
            done.set_result(None)
        except OSError as error:
            done.set_exception(error)

    def load(self) -> bool:
        found = self.copier.arrived(self.state)
        if found is not None:
            self.replica.load(found[1])
        return found is not None

    def holds(self, peer: nn.Linear) -> bool:
        return torch.equal(self.net.weight, peer.weight) and torch.equal(self.net.bias, peer.bias)


@pytest.fixture
def joiner(monkeypatch: pytest.MonkeyPatch) -> Joiner:
    return Joiner(monkeypatch)


def test_what_comes_from_another_place_of_the_script_does_not_count(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.follow(ORDER)
    joiner.told(peer, machine="another")
    joiner.within = 4  # our script enters its next loop
    joiner.copier.restart()
    joiner.told(peer, machine="another", part=1)
    joiner.told(peer, machine="another", within=4)
    assert not joiner.load()
    joiner.told(peer, machine="another", part=1, within=4)
    assert joiner.load()
    assert joiner.holds(peer)
    assert [part for _, part in joiner.asked].count(0) == 2


def test_who_is_in_a_loop_that_its_peers_have_left_hears_of_it(joiner: Joiner) -> None:
    joiner.follow(ORDER)
    asked = AskState(epoch_no=1, inc=9, step=5, part=0, within=3, loop_edge=6)
    answer, frame = beyond(asked, joiner.source.inc)
    joiner.copier.take(joiner.source.inc, answer, memoryview(frame), 3)
    assert joiner.copier.is_left_behind
    joiner.copier.restart()
    assert not joiner.copier.is_left_behind


def test_memory_is_read_in_place_and_counts_once_it_is_confirmed(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.follow(ORDER)
    joiner.told(peer)
    assert joiner.go_on()
    joiner.finish()
    assert not joiner.go_on()
    assert joiner.asked == [(1, 0), (1, STILL)]
    assert joiner.holds(peer)
    assert not joiner.load()
    joiner.told(peer, part=STILL)
    assert joiner.load()
    assert joiner.holds(peer)


def test_who_may_go_on_with_its_tensors_meanwhile_keeps_them(joiner: Joiner) -> None:
    peer, before = nn.Linear(3, 2), joiner.net.weight.clone()
    joiner.follow(ORDER)
    joiner.told(peer)
    assert joiner.go_on(stays=False)
    joiner.finish()
    joiner.go_on()
    torch.testing.assert_close(joiner.net.weight, before)
    joiner.told(peer, part=STILL)
    assert joiner.load()
    assert joiner.holds(peer)


def test_another_peer_is_not_read_before_the_first_read_is_over(joiner: Joiner) -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    joiner.follow(ORDER)
    joiner.told(first)
    joiner.go_on()
    joiner.follow(OTHER)
    joiner.told(second)
    assert joiner.go_on()
    assert len(joiner.reads) == 1
    joiner.finish()
    assert joiner.go_on()
    assert len(joiner.reads) == 2
    joiner.finish()
    joiner.go_on()
    joiner.told(second, part=STILL)
    assert joiner.load()
    assert joiner.holds(second)


def test_what_was_read_for_a_former_group_counts_for_the_same_state(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.read(ORDER, peer)
    joiner.follow(msgspec.structs.replace(ORDER, group=3))
    joiner.told(peer, part=STILL)
    assert joiner.load()
    assert len(joiner.reads) == 1


def test_what_was_overwritten_meanwhile_is_read_again(joiner: Joiner) -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    for order, peer in ((ORDER, first), (OTHER, second)):
        joiner.read(order, peer)
    joiner.follow(ORDER)
    joiner.told(first, part=STILL)
    assert not joiner.load()
    joiner.told(first)
    joiner.go_on()
    joiner.finish()
    joiner.go_on()
    joiner.told(first, part=STILL)
    assert joiner.load()
    assert joiner.holds(first)


def test_a_process_of_that_number_on_another_machine_is_not_read(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.follow(ORDER)
    joiner.told(peer, machine="another")
    assert not joiner.go_on()
    joiner.told(peer, part=1)
    assert joiner.load()
    assert joiner.holds(peer)


def test_what_may_not_be_read_comes_in_parts(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.follow(ORDER)
    joiner.told(peer, pid=2**22 + 1)  # no process has this number
    joiner.go_on()
    joiner.finish()
    assert not joiner.go_on()
    assert joiner.asked == [(1, 0), (1, 1)]
    joiner.told(peer, part=1)
    assert joiner.load()
    assert joiner.holds(peer)


def test_what_is_not_wanted_any_more_is_not_loaded(joiner: Joiner) -> None:
    peer = nn.Linear(3, 2)
    joiner.read(ORDER, peer)
    joiner.told(peer, part=STILL)
    joiner.state.copying = None
    assert not joiner.load()


def test_what_may_be_torn_is_read_again_though_its_step_is_the_same(joiner: Joiner) -> None:
    """An update was begun while we read, and taken back before we asked about it."""
    peer, photographs = nn.Linear(3, 2), Photographs()
    held = Replica([peer], [], [])

    def answer(part: int) -> StatePart:
        asked = AskState(epoch_no=1, inc=9, step=5, part=part, within=3, loop_edge=6)
        found = photographs.part(held, asked, joiner.source.inc)
        assert found is not None
        answer, frame = found
        joiner.copier.take(joiner.source.inc, answer, memoryview(bytearray(frame)), 3)
        return answer

    joiner.follow(ORDER)
    answer(0)
    joiner.go_on()
    with torch.no_grad():
        joiner.finish()
        joiner.net.weight[0, 0] += 1.0  # the update, of which we have read some
    joiner.go_on()
    photographs.clear()
    assert answer(STILL).part == 0
    assert not joiner.load()
    joiner.go_on()
    joiner.finish()
    joiner.go_on()
    assert answer(STILL).part == STILL
    assert joiner.load()
    assert joiner.holds(peer)
