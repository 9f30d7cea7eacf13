"""What is unanswered is said again: at once where it is little, with time to answer where much."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.base.numbering import Inc
from paceline.master.training import EACH_S, MANY, Training
from paceline.protocol.acts import FeedDone, Instruction, Send
from paceline.wire.messages.node import Stop
from paceline.wire.spec import JobSpec, NodeSpec, TimeoutSpec


class Unanswered:
    """A training in which so many messages are unanswered, and something else is due."""

    def __init__(self) -> None:
        self.num = 0
        none = SimpleNamespace(resend=list)
        self.training: Any = SimpleNamespace(state=self, profiling=none, _many_since_s=None)

    def resend(self) -> list[Instruction]:
        sends = [Send(Inc(inc), Stop(inc=Inc(inc))) for inc in range(1, self.num + 1)]
        return [*sends, FeedDone(0)]

    def at(self, now_s: float, num: int) -> int:
        """Return how many are said again."""
        self.num = num
        again = Training._unanswered(self.training, now_s)
        assert again[-1] == FeedDone(0), "what is no message is done each time"
        return len(again) - 1


@pytest.fixture
def job() -> Unanswered:
    return Unanswered()


def test_few_are_said_again_each_time(job: Unanswered) -> None:
    assert [job.at(float(now), MANY) for now in range(3)] == [MANY] * 3


def test_many_have_time_to_answer(job: Unanswered) -> None:
    wait_s = 1_000 * EACH_S
    said = {now: job.at(float(now), 1_000) for now in range(13)}
    assert [now for now, num in said.items() if num] == [wait_s, 2 * wait_s]


def test_the_few_that_are_left_of_many_do_not_wait(job: Unanswered) -> None:
    assert job.at(0.0, 1_000) == 0
    assert job.at(1.0, 3) == 3
    assert job.at(2.0, 1_000) == 0, "many anew have their time anew"


def test_agents_of_many_nodes_report_less_often_but_in_time() -> None:
    def report_s(count: int, **timeouts: float) -> float:
        times = TimeoutSpec(**timeouts)  # type: ignore[arg-type]
        job = JobSpec(
            script="/train.py",
            strategy="allreduce",
            workers=NodeSpec(count=count),
            timeouts=times,
        )
        assert job.report_s <= (times.derived(0.0).lost_after_s or 0.0) / 3
        return job.report_s

    assert report_s(2) == report_s(325) == 0.5
    assert report_s(650) == 1.0
    assert report_s(10_000) == pytest.approx(5.0 / 3)
    assert report_s(2, heartbeat_s=0.05) == 0.05
    assert report_s(10_000, lost_after_s=3.0) == 1.0
