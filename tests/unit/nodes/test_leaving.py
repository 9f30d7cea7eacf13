"""Nodes leave places that drain when another one does their work: by cases, and from end to end."""

import pytest
from msgspec.structs import replace

from paceline.protocol.nodes.leaving import (
    LEAVE_MARGIN_S,
    QUIET_S,
    AskStandIn,
    DismissStandIns,
    LeavePlace,
    Leaver,
    LeavingSeen,
    LeavingStep,
    next_step,
)


def leaver(node: str, left_s: float | None = 60.0) -> Leaver:
    return Leaver(node=node, role=node.partition("-")[0], why="spot", left_s=left_s)


ONE, TWO = leaver("worker-1"), leaver("worker-2")
LATE = leaver("worker-2", LEAVE_MARGIN_S)
SERVER = leaver("server-0")


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        (LeavingSeen(), None),
        (LeavingSeen(leavers=(ONE,)), AskStandIn("worker-1")),
        (LeavingSeen(leavers=(ONE,), stand_ins=1), None),
        (LeavingSeen(leavers=(ONE,), stand_ins=1, trains=1), LeavePlace(ONE)),
        # It trains for another worker, which has left and is not back.
        (LeavingSeen(leavers=(ONE,), stand_ins=1, trains=1, away=1), AskStandIn("worker-1")),
        (LeavingSeen(leavers=(ONE,), stand_ins=2, trains=1, away=1), None),
        (LeavingSeen(leavers=(ONE, TWO), stand_ins=1), AskStandIn("worker-2")),
        (LeavingSeen(leavers=(ONE, LATE), stand_ins=2), LeavePlace(LATE)),
        (LeavingSeen(leavers=(leaver("worker-1", None),), stand_ins=1), None),
        # No worker can be added: it leaves while there is time.
        (LeavingSeen(leavers=(ONE,), may_add=False), LeavePlace(ONE)),
        (LeavingSeen(leavers=(ONE, TWO), stand_ins=1, may_add=False), None),
        (LeavingSeen(leavers=(ONE, SERVER)), LeavePlace(SERVER)),
        (LeavingSeen(leavers=(ONE, SERVER), buckets_move=True), AskStandIn("worker-1")),
        (LeavingSeen(leavers=(SERVER,), buckets_move=True), None),
        (LeavingSeen(stand_ins=1, trains=1, quiet_s=QUIET_S), DismissStandIns()),
        (LeavingSeen(stand_ins=1, trains=1), None),
        (LeavingSeen(stand_ins=1, trains=1, away=1, quiet_s=QUIET_S), None),
        (LeavingSeen(leavers=(ONE,), stand_ins=1, ends=True), DismissStandIns()),
        (LeavingSeen(leavers=(ONE,), ends=True), None),
    ],
)
def test_what_comes_next(seen: LeavingSeen, step: LeavingStep | None) -> None:
    assert next_step(seen) == step


class Drain:
    """A machine with some workers drains; others have room for so many more, each a second away."""

    def __init__(self, drained: int, staying: int, room: int, notice_s: float) -> None:
        self.there = [f"worker-{number}" for number in range(drained)]
        self.away = list[str]()
        self.stand_ins, self.coming = 0, 0
        self.num_wanted, self.room, self.notice_s = drained + staying, room, notice_s
        self.now_s, self.fewest = 0.0, drained + staying
        self.left_s = dict[str, float]()

    def run(self) -> None:
        while self.now_s < self.notice_s + 2 * QUIET_S:
            leavers = tuple(leaver(one, self.notice_s - self.now_s) for one in self.there)
            seen = LeavingSeen(
                leavers=leavers if self.now_s < self.notice_s else (),
                stand_ins=self.stand_ins,
                trains=self.stand_ins - self.coming,
                away=len(self.away),
                quiet_s=self.now_s - (max(self.left_s.values(), default=0.0)),
            )
            match next_step(seen):
                case AskStandIn():
                    self.stand_ins, self.coming = self.stand_ins + 1, self.coming + 1
                case LeavePlace(leaver=one):
                    self.there.remove(one.node)
                    self.away.append(one.node)
                    self.left_s[one.node] = self.now_s
                case DismissStandIns():
                    self.stand_ins = self.coming = 0
                case None:
                    self.second()
            absent = len(self.away) + self.coming - self.stand_ins
            self.fewest = min(self.fewest, self.num_wanted - absent)

    def second(self) -> None:
        """Who waits has a place if there is one: those that stand in came first."""
        self.now_s += 1.0
        if self.room and self.coming:
            self.room, self.coming = self.room - 1, self.coming - 1
        elif self.room and self.away:
            self.room -= 1
            self.away.pop()


@pytest.mark.parametrize("drained", [1, 2, 3])
def test_with_room_no_moment_has_fewer_workers(drained: int) -> None:
    drain = Drain(drained, 2, room=2 * drained, notice_s=60.0)
    drain.run()
    assert drain.fewest == drain.num_wanted
    assert not drain.there and not drain.away and not drain.stand_ins


def test_without_room_all_leave_in_order_before_the_end() -> None:
    drain = Drain(2, 1, room=0, notice_s=60.0)
    drain.run()
    assert list(drain.left_s.values()) == [60.0 - LEAVE_MARGIN_S] * 2


def test_room_for_one_is_enough_for_one_after_the_other() -> None:
    drain = Drain(2, 1, room=3, notice_s=60.0)
    drain.run()
    assert drain.fewest == drain.num_wanted and not drain.there


def test_a_notice_shorter_than_the_margin_is_used_at_once() -> None:
    late = replace(ONE, left_s=2.0)
    assert next_step(LeavingSeen(leavers=(late,))) == LeavePlace(late)
