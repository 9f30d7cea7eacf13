"""Stops of nodes of this machine of which a process does not even end when it is killed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paceline.backends.local import backend as backends
from paceline.backends.local.backend import LOOK_S, LocalBackend
from paceline.base.jobdir import JobDir
from paceline.base.processes import FoundProcess
from paceline.protocol.nodes.platform import AnyWord, NodeStopped
from paceline.wire.places import AskedPlace

NODE, OLD, NEW = "worker-0", 4711, 4712
TERM, KILL = signal.SIGTERM, signal.SIGKILL


class Machine:
    """Processes that ignore every signal, and what they were sent."""

    def __init__(self, folder: Path) -> None:
        self.pids = [OLD]
        self.sent: list[tuple[int, int]] = []
        self.backend = LocalBackend(JobDir(folder), pending_s=lambda: 60.0)

    def find(self, _: Path) -> list[FoundProcess]:
        agent = ("python", "-m", "paceline.agent", "--node", NODE)
        return [FoundProcess(pid, agent, "") for pid in self.pids]

    def kill(self, pid: int, number: int = KILL) -> None:
        self.sent.append((pid, number))

    def launch(self) -> str:
        self.backend.launch(NODE, AskedPlace(), "token")
        return "token"

    def words(self) -> list[AnyWord]:
        words = self.backend._words
        return [words.get_nowait() for _ in range(words.qsize())]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def play(scenario: Callable[[Machine], Awaitable[None]]) -> None:
        async def body() -> None:
            machine = Machine(tmp_path)
            monkeypatch.setattr(backends, "find_job_processes", machine.find)
            monkeypatch.setattr(backends, "kill_quietly", machine.kill)
            await scenario(machine)

        asyncio.run(body())

    return play


def test_a_stop_that_is_not_over_kills_nothing_of_a_later_launch(
    play: Callable[..., None],
) -> None:
    async def scenario(machine: Machine) -> None:
        machine.backend.stop(NODE)
        await asyncio.sleep(3 * LOOK_S)
        assert {*machine.sent} == {(OLD, KILL)}
        machine.launch()  # the master has waited long enough
        machine.pids.append(NEW)
        machine.sent.clear()
        await asyncio.sleep(3 * LOOK_S)
        assert not machine.sent
        machine.pids.clear()
        await asyncio.sleep(3 * LOOK_S)
        assert not machine.words(), "it would be taken for the answer to a later stop"

    play(scenario)


def test_two_stops_of_a_node_are_over_together(play: Callable[..., None]) -> None:
    async def scenario(machine: Machine) -> None:
        token = machine.launch()
        machine.backend.stop(NODE, 60.0)
        assert machine.sent == [(OLD, TERM)]
        machine.backend.stop(NODE)
        machine.backend.stop(NODE, 60.0)
        await asyncio.sleep(3 * LOOK_S)
        assert (OLD, KILL) in machine.sent[-2:], "force was asked for at once"
        machine.pids = []
        await asyncio.sleep(3 * LOOK_S)
        assert machine.words() == [NodeStopped(node=NODE, launch=token)]

    play(scenario)
