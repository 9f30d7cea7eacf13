"""A server is replaced by a fresh one while training goes on: nothing is lost, nothing counts twice."""

import os
import signal
from pathlib import Path

import pytest

from paceline.wire.client import Replace
from tests.integration.running import running, until

N = 4096
SLOW = ("--num-samples", str(2 * N), "--slow-until-told")
"""However long a server takes to come, training is not over before."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "server"),
    [
        ("bsp", "server-1"),
        ("asp", "server-0"),
        ("asp", "server-1"),
        ("bsp", "server-0"),
    ],
)
def test_a_server_is_replaced_without_a_new_epoch(tmp_path: Path, mode: str, server: str) -> None:
    with running(tmp_path, *SLOW, mode=mode) as job:
        job.until_committed(N // 16)
        old = job.node(server)
        job.tell(Replace(node=server))
        until(lambda: job.events("replaced"), "the replacement")
        at = job.status()
        assert {n.node for n in at.nodes if n.role == "server"} == {"server-0", "server-1"} - {
            server
        } | {"server-2"}
        assert at.committed < 2 * N, "it happened while training went on"
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert len(job.events("epoch")) == 1
        assert not job.deaths()
        with pytest.raises(ProcessLookupError):
            os.kill(old.pid, 0)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["asp", "bsp"])
def test_a_joining_server_that_dies_changes_nothing(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, *SLOW, mode=mode) as job:
        job.until_committed(N // 16)
        job.tell(Replace(node="server-0"))
        joiner = until(
            lambda: next((n for n in job.status().nodes if n.node == "server-2" and n.pid), None),
            "the joining server",
        )
        os.kill(joiner.pid, signal.SIGKILL)
        until(lambda: job.events("replaced") or job.events("not_replaced"), "the end of the move")
        (tmp_path / "hurry").touch()
        job.check_finished()
