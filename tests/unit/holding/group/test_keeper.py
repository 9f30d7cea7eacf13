"""Members that hold shards copy a cut after the same step, whenever each of them hears of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.base.samples import Span
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.group import cut_session as keeper_module
from paceline.runtime.group.cut_session import Keeper
from paceline.wire.messages.group import Member, RunGroup
from paceline.wire.messages.node import Copied, TakeCut

MEMBERS = (Member(1, "worker-0", ""), Member(2, "worker-1", ""))


class Writer:
    """Notes what it is to copy."""

    def __init__(self, process: Any, on_news: Callable[[], None]) -> None:
        self.copied: list[Copied] = []

    def set_holders(self, nodes: Any, elsewhere: str) -> None:
        pass

    def make_room(self, cut_no: int, num_bytes: int) -> None:
        pass

    def copy(self, copied: Copied, saved: Any) -> None:
        self.copied.append(copied)

    def finished(self) -> None:
        return None


class One:
    """A member, its keeper and what the keeper copied."""

    def __init__(self, inc: int) -> None:
        process: Any = type("Process", (), {"inc": inc})
        self.inc, self.num_values = inc, 4
        self.keeper = Keeper(process, lambda: None, together=True)
        self.keeper.set_members(MEMBERS)
        self.state = MemberState(inc)
        self.state.step = 0
        self.state.running = RunGroup(epoch_no=0, inc=inc, group=1, step=0, members=MEMBERS)

    def save(self) -> dict[str, Any]:
        return {"value": np.zeros(self.num_values)}

    def ask(self, cut_no: int, step: int = 0) -> None:
        self.keeper.ask(TakeCut(epoch_no=0, inc=self.inc, cut_no=cut_no, step=step))

    def rest(self, *, for_good: bool = False) -> None:
        replica: Any = self
        self.keeper.copy_if_asked(self.state, replica, for_good=for_good)
        while self.keeper._is_making_room:
            pass
        self.keeper.wait()

    @property
    def copied(self) -> list[tuple[int, int]]:
        writer: Any = self.keeper._writer
        return [(one.cut_no, one.step) for one in writer.copied]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[One]:
    monkeypatch.setattr(keeper_module, "CutWriter", Writer)
    return [One(1), One(2)]


def step(both: list[One]) -> None:
    """All complete the next step together."""
    for one in both:
        one.rest()
    told = [one.keeper.ready_for for one in both]
    for one in both:
        one.keeper.agree(told)
        one.state.updated([Span(0, one.state.step, one.state.step + 1)], last=False)


def test_a_cut_is_copied_after_the_step_at_which_all_were_ready(both: list[One]) -> None:
    first, second = both
    first.ask(1)
    step(both)
    step(both)
    assert first.copied == [], "the other has not heard of it"
    second.ask(1)
    for _ in range(3):
        step(both)
    assert first.copied == second.copied == [(1, 4)]
    copied = first.keeper._writer.copied[0]  # type: ignore[attr-defined]
    assert copied.sharers == (1, 2) and copied.committed == (Span(0, 0, 4),)


def test_it_is_not_of_a_step_before_the_one_that_is_to_be_in_it(both: list[One]) -> None:
    first, second = both
    first.ask(1, step=5)
    second.ask(1, step=3)
    for _ in range(7):
        step(both)
    assert first.copied == second.copied
    assert first.copied[0][1] >= 5


def test_a_state_that_has_grown_meanwhile_is_copied_at_the_same_step(both: list[One]) -> None:
    first, second = both
    first.ask(1)
    second.ask(1)
    step(both)
    step(both)
    second.num_values = 1000
    step(both)
    assert first.copied == second.copied == [(1, 2)]


def test_where_nobody_goes_on_a_cut_is_copied_at_once(both: list[One]) -> None:
    first, second = both
    step(both)
    first.ask(1)
    for _ in range(2):
        first.rest(for_good=True)
    second.ask(1)
    for _ in range(2):
        second.rest(for_good=True)
    assert first.copied == second.copied == [(1, 1)]
    assert first.keeper.copied_step == 1
