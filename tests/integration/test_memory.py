"""Tables that grow under a limit of the kernel: more memory comes before it runs out, or after."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.base.cgroups import create_node_group, remove_job
from paceline.features.sizes.events import (
    MemoryRaisedEvent,
    MemoryShortEvent,
    SizePlannedEvent,
)
from paceline.jobs.launch import launch
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    ProcessExitedEvent,
    ServersChangedEvent,
    Verdict,
)
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, ResourcesSpec, RestartSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, install, until

ONE = NodeSpec()
SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "jobs" / "growing.py"
MIB = 1 << 20
SAMPLES = 250_000
"""Rows of 256 bytes, and their keys."""
LIMIT = 200 * MIB
"""A server without rows takes 122 MiB of it, with all of them 277 MiB."""
SPREAD_LIMIT = 320 * MIB
"""Room for what moving rows takes as well."""
POLICY = """
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.planner import ResourcePolicy


class Keeps(ResourcePolicy):
    def decide(self, seen, history):
        return Hold(cause="not_asked")
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    _, note = create_node_group("probe", "server-0", None, 1 << 30)
    remove_job("probe")
    if note:
        pytest.skip(note)


@contextlib.contextmanager
def growing(
    out: Path,
    servers: NodeSpec,
    samples: int = SAMPLES,
    *args: str,
    workers: NodeSpec = ONE,
    **spec: Any,
) -> Iterator[RunningJob]:
    started = launch(
        JobSpec(
            script=str(SCRIPT),
            args=("--samples", str(samples), *args),
            workers=workers,
            mode="asp",
            servers=servers,
            checkpoint=CheckpointSpec(every_s=2.0),
            restart=RestartSpec(backoff_s=0.1, budget=4),
            solution="none",
            preflight=False,
            **spec,
        )
    )
    with contextlib.closing(RunningJob(started, out)) as job:
        yield job


def ends_out_of_memory(job: RunningJob) -> list[ProcessExitedEvent]:
    return [one for one in job.told(ProcessExitedEvent) if one.verdict is Verdict.OOM]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_table_that_grows_has_more_memory_before_it_runs_out(tmp_path: Path) -> None:
    servers = NodeSpec(count=1, memory_bytes=LIMIT, max_memory_bytes=1 << 30)
    # Looks are a second apart: a table that takes all within the first few of them is not foreseen.
    with growing(tmp_path, servers, SAMPLES, "--pause-s", "0.04") as job:
        until(job.job.outcome.exists, "the end", 120.0)
        outcome = job.end()
        assert (outcome.state, outcome.committed) == ("finished", SAMPLES)
        assert ends_out_of_memory(job) == []
        raised = job.told(MemoryRaisedEvent)
        assert raised
        assert not any(one.after_oom for one in raised)
        assert raised[0].limit_bytes == LIMIT
        resized = job.told(NodeResizedEvent)
        assert [one.memory_bytes for one in resized] == [one.given_bytes for one in raised]
        until(lambda: not leftovers(job.job), "a clean machine")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_where_the_limit_may_not_be_raised_a_server_comes_before_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install(
        tmp_path / "site", "keeping", POLICY, "paceline.resources", "keeps=keeping:Keeps"
    )
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    servers = NodeSpec(count=1, memory_bytes=SPREAD_LIMIT, max_memory_bytes=SPREAD_LIMIT)
    more = {"resources": ResourcesSpec(policy="keeps", cores=8.0, window_s=1.0)}
    with growing(tmp_path, servers, SAMPLES, "--pause-s", "0.06", **more) as job:
        until(job.job.outcome.exists, "the end", 200.0)
        outcome = job.end()
        assert (outcome.state, outcome.committed) == ("finished", SAMPLES)
        assert ends_out_of_memory(job) == []
        planned = [plan.plan for plan in job.told(SizePlannedEvent) if "memory" in plan.plan]
        assert "servers 1 -> 2" in planned[0]
        assert job.told(ServersChangedEvent)[0].joined == ("server-1",)
        assert not job.told(MemoryRaisedEvent)
        until(lambda: not leftovers(job.job), "a clean machine")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_without_the_leave_to_raise_it_the_kernel_kills_the_server(tmp_path: Path) -> None:
    servers = NodeSpec(count=1, memory_bytes=LIMIT)
    with growing(tmp_path, servers, SAMPLES, "--pause-s", "0.04") as job:
        until(job.job.outcome.exists, "the end", 120.0)
        outcome = job.end()
        assert outcome.state == "failed"
        assert "ran out of memory, as was foreseen: server-0 uses " in outcome.error
        assert "is expected to need " in outcome.error
        (end,) = ends_out_of_memory(job)
        assert end.signal == 9
        short = job.told(MemoryShortEvent)
        assert not short[0].after_oom
        assert "set servers.max_memory" in short[0].sentence()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_node_that_ran_out_of_memory_has_twice_as_much_in_its_next_life(tmp_path: Path) -> None:
    workers = NodeSpec(count=1, memory_bytes=320 * MIB, max_memory_bytes=1 << 30)
    with growing(tmp_path, NodeSpec(), 20_000, "--balloon", "250", workers=workers) as job:
        until(job.job.outcome.exists, "the end", 120.0)
        outcome = job.end()
        assert (outcome.state, outcome.committed) == ("finished", 20_000)
        (end,) = ends_out_of_memory(job)
        assert (end.node, end.signal) == ("worker-0", 9)
        (raised,) = job.told(MemoryRaisedEvent)
        assert (raised.after_oom, raised.limit_bytes, raised.given_bytes) == (
            True,
            320 * MIB,
            640 * MIB,
        )
        assert raised.sentence() == "worker-0 ran out of 320 MiB; each worker gets 640 MiB"
