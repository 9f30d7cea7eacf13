"""Servers come and go while training goes on: nothing is lost, nothing counts twice."""

from pathlib import Path

import pytest

from paceline.wire.client import Scale
from paceline.wire.events.nodes import ServersChangedEvent
from tests.integration.running import RunningJob, running, until

N = 4096
SLOW = ("--num-samples", str(2 * N), "--slow-until-told")
"""However long a server takes to come, training is not over before."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def servers_of(job: RunningJob) -> set[str]:
    return {node.node for node in job.status().nodes if node.role == "server"}


def scale(job: RunningJob, count: int) -> ServersChangedEvent:
    """Order it, and wait until it is done."""
    done = len(job.told(ServersChangedEvent))
    job.tell(Scale(servers=count))
    changed: list[ServersChangedEvent] = until(
        lambda: job.told(ServersChangedEvent)[done:], f"{count} servers"
    )
    until(lambda: len(servers_of(job)) == count, "the end of those that leave")
    return changed[0]


@pytest.mark.parametrize("mode", ["bsp", pytest.param("asp", marks=pytest.mark.soak)])
def test_servers_join_and_leave_without_a_new_epoch(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, *SLOW, mode=mode) as job:
        job.until_committed(N // 16)
        leaver = job.node("server-1")
        gone = scale(job, 1)
        assert (gone.count, gone.joined, gone.left) == (1, (), ("server-1",))
        until(lambda: not Path(f"/proc/{leaver.pid}").exists(), "the leaver's end")
        come = scale(job, 3)
        assert (come.count, come.joined) == (3, ("server-1", "server-2"))
        assert job.status().committed < 2 * N, "it happened while training went on"
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert len(job.events("epoch")) == 1
        assert not job.deaths()
        assert job.cuts()
