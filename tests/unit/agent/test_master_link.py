"""What an agent sends at once, and what it lets wait for its next message."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.agent.master_link import MasterLink
from paceline.base.jobdir import JobDir
from paceline.wire.messages.agent import AgentUp, FromProcess, Heartbeat
from paceline.wire.messages.group import Progress
from paceline.wire.messages.node import Finished

NODE = "worker-0"


class Sent:
    """A stream that keeps what is sent."""

    num_queued = 0

    def __init__(self) -> None:
        self.messages: list[AgentUp] = []

    def send_nowait(self, message: AgentUp) -> None:
        self.messages.append(message)

    async def say_last_words(self, within_s: float) -> None:
        pass


@pytest.fixture
def link(tmp_path: Path) -> tuple[MasterLink, list[AgentUp]]:
    link = MasterLink(JobDir(tmp_path), NODE, lambda: None, lambda _: None)
    sent: Any = Sent()
    link._stream = sent
    return link, sent.messages


def progress(step: int, **other: int) -> FromProcess:
    body = Progress(epoch_no=1, inc=5, group=2, step=step)
    return FromProcess(node=NODE, body=msgspec.structs.replace(body, **other))


def test_further_progress_goes_with_the_next_report(
    link: tuple[MasterLink, list[AgentUp]],
) -> None:
    agent, sent = link
    agent.send(progress(1))
    agent.send(progress(2))
    agent.send(progress(3))
    assert sent == [progress(1)]
    agent.send(Heartbeat(node=NODE))
    agent.send(Heartbeat(node=NODE))
    assert sent == [progress(1), progress(3), Heartbeat(node=NODE), Heartbeat(node=NODE)]


def test_progress_comes_before_what_the_process_says_after_it(
    link: tuple[MasterLink, list[AgentUp]],
) -> None:
    agent, sent = link
    end = FromProcess(node=NODE, body=Finished(inc=5))
    for message in (progress(1), progress(2), end):
        agent.send(message)
    assert sent == [progress(1), progress(2), end]


@pytest.mark.parametrize("changed", [{"group": 3}, {"division": 1}, {"epoch_no": 2}, {"inc": 6}])
def test_a_word_that_tells_of_more_than_steps_does_not_wait(
    link: tuple[MasterLink, list[AgentUp]], changed: dict[str, int]
) -> None:
    agent, sent = link
    agent.send(progress(1))
    agent.send(progress(2))
    agent.send(progress(3, **changed))
    assert sent == [progress(1), progress(2), progress(3, **changed)]


def test_the_last_word_of_an_agent_takes_it_along(
    link: tuple[MasterLink, list[AgentUp]],
) -> None:
    agent, sent = link
    agent.send(progress(1))
    agent.send(progress(2))
    asyncio.run(agent.flush(0.0))
    assert sent == [progress(1), progress(2)]
