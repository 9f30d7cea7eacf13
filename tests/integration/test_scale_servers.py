"""Servers come and go while training goes on: nothing is lost, nothing counts twice."""

import os
import signal
from pathlib import Path

import pytest

from paceline.jobs.launch import ask
from paceline.runtime.checkpoint.cutfile import read_cut
from paceline.wire.client import Done, Replace, Scale, StopJob
from paceline.wire.events.nodes import ServersChangedEvent, ServersNotChangedEvent
from paceline.wire.schema import NUM_BUCKETS
from tests.integration.running import RunningJob, running, until

UNEVEN = Path(__file__).with_name("jobs") / "uneven.py"
HOT = 5
"""The bucket of a table that `UNEVEN` asks for most."""
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


@pytest.mark.soak  # CI has a server that is replaced
@pytest.mark.parametrize("mode", ["bsp", "asp"])
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


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["joiner", "owner", "master"])
def test_a_death_while_servers_come_ends_in_the_old_map_or_the_new_one(
    tmp_path: Path, victim: str
) -> None:
    with running(tmp_path, *SLOW, mode="asp") as job:
        job.until_committed(N // 16)
        job.tell(Scale(servers=4))
        until(lambda: servers_of(job) >= {"server-2", "server-3"}, "servers that join")
        name = {"joiner": "server-3", "owner": "server-1"}.get(victim, "")
        pid = until(lambda: job.node(name).pid if name else job.status().master_pid, "its process")
        os.kill(pid, signal.SIGKILL)
        over = (ServersChangedEvent, ServersNotChangedEvent)
        until(lambda: any(job.told(kind) for kind in over), "the end of the change")
        settled = until(lambda: len(servers_of(job)) in (2, 4), "the servers of before, or all")
        assert settled
        (tmp_path / "hurry").touch()
        job.check_finished()


@pytest.mark.soak
def test_a_change_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, *SLOW, mode="asp") as job:
        job.until_committed(1)
        job.tell(Scale(servers=3))
        refused = {
            text: answer.error
            for text, call in (
                ("under way", Scale(servers=4)),
                ("being replaced", Replace(node="server-0")),
                ("expected 1 to 64", Scale(servers=65)),
            )
            if isinstance(answer := ask(job.job, call), Done)
        }
        assert "a change of the servers is under way" in refused["under way"]
        assert "a change of the servers is under way" in refused["being replaced"]
        assert "expected 1 to 64" in refused["expected 1 to 64"]
        until(lambda: job.told(ServersChangedEvent), "3 servers")


@pytest.mark.soak
def test_a_hot_bucket_comes_to_lie_on_a_server_with_less_else(tmp_path: Path) -> None:
    with running(tmp_path, mode="asp", script=str(UNEVEN), args=()) as job:
        job.until_committed(64 * 300)
        scale(job, 3)
        job.tell(StopJob())
        assert job.end().state == "stopped"

        _, files = read_cut(job.cuts()[-1])

    held = {name: arrays["buckets"].tolist() for name, arrays in files.items() if arrays}
    assert sorted(one for buckets in held.values() for one in buckets) == list(range(NUM_BUCKETS))
    (hot,) = (buckets for buckets in held.values() if HOT in buckets)
    assert len(held) == 3
    others = [len(buckets) for buckets in held.values() if HOT not in buckets]
    assert len(hot) < 0.6 * min(others), held
