"""What members of a group say to each other while they connect."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.group.peers import GroupPeers
from paceline.runtime.group.store import GroupOver
from paceline.wire.messages.data import Data
from paceline.wire.messages.group import GroupStopped, Meet, Member, RunGroup, StopGroup

MEMBERS = (Member(1, "worker-0", "a", False, ""), Member(2, "worker-1", "b", False, ""))


class Sent:
    """Exchange, and its data plane, that keep what is to be sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Data, Sequence[bytes]]] = []
        self.data = self

    def leave(self, act: Callable[[], Any]) -> None:
        act()

    def send(self, inc: int, message: Data, frames: Sequence[bytes] = ()) -> None:
        self.messages.append((inc, message, frames))


@pytest.fixture
def run() -> RunGroup:
    return RunGroup(epoch_no=1, inc=1, group=1, step=0, members=MEMBERS)


def state_in(run: RunGroup) -> MemberState:
    state = MemberState(1)
    state.stop_group(StopGroup(epoch_no=1, inc=1, group=1))
    state.step = 0
    state.run_group(run)
    return state


def test_a_member_that_leaves_before_it_is_connected_says_so_to_all_others(run: RunGroup) -> None:
    sent = Sent()
    peers = GroupPeers(sent, state_in(run))  # type: ignore[arg-type]
    peers.store(1)
    peers.leave(run)
    ((to, told, frames),) = sent.messages
    assert to == 2
    assert len(frames) == 1, "a door takes no other words"
    other = GroupPeers(Sent(), state_in(run))  # type: ignore[arg-type]
    assert isinstance(told, Meet)
    other.met(told, b"")
    assert other.store(1).left == (1,)
    with pytest.raises(GroupOver):
        other.store(1).get("0/1")


def test_who_fails_since_another_has_left_adds_no_words(run: RunGroup) -> None:
    sent = Sent()
    peers = GroupPeers(sent, state_in(run))  # type: ignore[arg-type]
    peers.store(1).leave(2)
    peers.leave(run)
    assert sent.messages == []


def test_a_word_from_a_former_group_ends_no_later_one(run: RunGroup) -> None:
    state = state_in(run)
    peers = GroupPeers(Sent(), state)  # type: ignore[arg-type]
    (stopped,) = [
        one.message
        for one in state.stop_group(StopGroup(epoch_no=1, inc=1, group=2))
        if hasattr(one, "message")
    ]
    assert isinstance(stopped, GroupStopped)
    state.run_group(RunGroup(epoch_no=1, inc=1, group=2, step=0, members=MEMBERS))
    peers.met(Meet(epoch_no=1, inc=2, group=1, key="left"), b"")
    assert peers.store(2).left == ()
