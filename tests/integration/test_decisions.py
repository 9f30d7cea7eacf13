"""A worker that is slow is seen, decided about, restarted elsewhere, and the log tells it all."""

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from paceline.cli.replay import replay_logs
from paceline.features.stragglers.policy.decision_log import Begun, Decided, TookEffect, log_of
from paceline.features.stragglers.stories import read_log, stories
from paceline.policy.actions import KillRestart
from paceline.wire.spec import RestartSpec, WindowSpec
from tests.integration.running import running, until

pytestmark = pytest.mark.soak

STOPPED_S, RUNNING_S = 0.3, 0.03
PENDING_S = 1.5


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process gets to run a tenth of the time, until it is gone."""
    over = threading.Event()

    def hold() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNNING_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def restarts(decided: Decided) -> list[KillRestart]:
    return [action for action in decided.actions if isinstance(action, KillRestart)]


@pytest.mark.parametrize("mode", ["asp", "bsp"])
def test_nd_restarts_a_slow_worker_elsewhere_and_the_log_replays(tmp_path: Path, mode: str) -> None:
    with running(
        tmp_path,
        "--num-samples",
        "24576",
        "--step-s",
        "0.03",
        mode=mode,
        workers=3,
        solution="nd",
        decide_every_s=1.0,
        windows=WindowSpec(short_steps=10, long_steps=20),
        restart=RestartSpec(budget=0),
        pending_trace=((0.0, 0.0), (5.0, PENDING_S)),
    ) as job:
        job.until_committed(1500)
        victim = job.living("worker-1")
        with slowed(victim.pid):
            until(lambda: job.events("kill_restart"), "a decision to restart it")
            until(lambda: job.node("worker-1").agent_pid not in (0, victim.agent_pid), "its place")
        until(lambda: len([e for e in job.events("works") if e["node"] == "worker-1"]) == 2, "work")
        job.check_finished()

        assert {event["node"] for event in job.events("kill_restart")} == {"worker-1"}
        assert job.deaths() == []  # in order
        lines = read_log(log_of(job.job))
        first = next(line for line in lines if isinstance(line, Decided) and restarts(line))
        (action,) = restarts(first)
        assert action.node == "worker-1"
        assert first.observation.pending_s == PENDING_S
        paces = {worker.node: worker.long for worker in first.observation.workers}
        assert all(paces.values())
        slow, *others = (paces[f"worker-{i}"].compute_s for i in (1, 0, 2))  # type: ignore[union-attr]
        assert slow > 1.5 * max(others)
        servers = first.observation.servers
        assert servers
        assert all(server.short is not None for server in servers)
        which = (first.no, first.actions.index(action))  # shares may have been adjusted before it
        effects = [line for line in lines if isinstance(line, TookEffect)]
        effect = next(effect for effect in effects if (effect.no, effect.index) == which)
        assert effect.cost is not None
        assert 0.0 < effect.cost.total_s < effect.t - first.t + 1.0
        assert PENDING_S <= effect.cost.pending_s < PENDING_S + 1.0
        assert effect.cost.start_s > 0
        assert effect.cost.rebuild_s > 0
        assert sum(isinstance(line, Begun) for line in lines) == 1
        told = next(story for story in stories(lines) if story.what == "KILL_RESTART worker-1")
        assert told.became.startswith("in effect after")

        shown = io.StringIO()
        console = Console(file=shown, width=200)
        assert replay_logs(str(log_of(job.job)), None, {}, console)
        assert replay_logs(job.job.job_id, "nd", {"slowness": "100"}, console)
        assert "nd: reproduces all" in shown.getvalue()
        assert "nd: acts in 0 of" in shown.getvalue()
