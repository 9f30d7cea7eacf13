"""A job changes its own size as a policy plans it: workers, servers, cores; whatever dies meanwhile."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.cgroups import create_node_group, remove_job
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.features.history.book import PastJobs
from paceline.features.history.place import history_place
from paceline.features.sizes.events import SizeChangedEvent, SizeKeptEvent, SizePlannedEvent
from paceline.features.sizes.log import log_of, read_sizing
from paceline.features.sizes.policy.plan import NodeTarget
from paceline.features.sizes.policy.steering_state import AnySteeringAct, ApplyPlan, JudgePlan
from paceline.policy.job_size import JobSize
from paceline.wire.client import ResizeNodes
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    ServersChangedEvent,
    ServersNotChangedEvent,
)
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec
from tests.integration.running import SCRIPT, RunningJob, install, running, until

N = 4096
SLOW = ("--num-samples", str(6 * N), "--slow-until-told")
"""However slow the machine is, the job does not end so soon that no plan is worth it."""
POLICY = """
from msgspec.structs import replace
from paceline.features.sizes.policy.plan import Hold, ResourcePlan
from paceline.features.sizes.policy.planner import ResourcePolicy


class Moves(ResourcePolicy):
    workers: int = 3
    servers: int = 2
    worker_cpu: float = 1.5

    def decide(self, seen, history):
        target = replace(
            seen.size, workers=self.workers, servers=self.servers, worker_cpu=self.worker_cpu
        )
        if not target.differing(seen.size):
            return Hold(cause="no_gain")
        rate = history.measured[-1].rate.per_s
        return ResourcePlan(target=target, present_per_s=rate, expected_per_s=2 * rate, aim="safe")
"""


@pytest.fixture(autouse=True)
def _policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, note = create_node_group("probe", "worker-0", 1.0, None)
    remove_job("probe")
    if note:
        pytest.skip(note)
    site = install(tmp_path / "site", "moving", POLICY, "paceline.resources", "moves=moving:Moves")
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_HISTORY", raising=False)


def resources(**more: float) -> ResourcesSpec:
    spec = {"cores": 32.0, "window_s": 0.5, "settle_s": 0.5, "between_s": 0.5, **more}
    return ResourcesSpec(policy="moves", **spec)


def size(job: RunningJob) -> dict[str, int]:
    nodes = [node for node in job.status().nodes if node.state == "running"]
    return {role: sum(node.role == role for node in nodes) for role in ("worker", "server")}


def acts(job: RunningJob) -> list[AnySteeringAct]:
    return [act for line in read_sizing(log_of(job.job)) for act in line.acts]


def test_auto_finds_another_size_and_each_sample_counts_once(tmp_path: Path) -> None:
    """Begun as a person begins it, with one worker and one server that have a part of a core."""
    times = ("resources.window_s=0.5s", "resources.settle_s=0.5s", "resources.between_s=1s")
    bounds = ("resources.cores=1.5", "resources.workers=3", "resources.servers=1")
    quotas = ("workers.cpu=0.4", "servers.cpu=0.4", "preflight=false", "history=off")
    settings = [f"--set={setting}" for setting in (*times, *bounds, *quotas)]
    flags = ["--auto", "--detach", "--workers=1", "--servers=1", "--mode=asp", *settings]
    script = [f"--out={tmp_path}", "--num-samples=4096", "--batch-size=4", "--step-s=0"]
    slow = ["--slow-until-told", "--slow-s=0.05"]
    told = CliRunner().invoke(app, ["run", str(SCRIPT), *flags, "--", *script, *slow])
    assert told.exit_code == 0, told.output
    (spec,) = (tmp_path / "jobs").glob("*/job.json")
    with contextlib.closing(RunningJob(JobDir(spec.parent), tmp_path)) as job:
        until(lambda: job.told(SizeChangedEvent), "another size")
        now = [node for node in job.status().nodes if node.state == "running"]
        assert sum(node.cores or 0.0 for node in now) <= 1.5 + 1e-6
        assert [node.cores for node in now] != [0.4, 0.4]
        explained = CliRunner().invoke(app, ["explain", job.job.job_id]).output
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert not job.deaths()
    planned = job.told(SizePlannedEvent)[0].plan
    assert "relieves" in planned and "samples/s" in planned
    assert f"planned: {planned}" in explained
    assert "in effect: " in explained


@pytest.mark.soak
def test_a_server_with_less_than_its_peers_gets_as_much(tmp_path: Path) -> None:
    """Hot, since its quota is a tenth of theirs: `rm` gives cores to it alone, and that helps."""
    spec = {"workers": NodeSpec(count=2, cpu=(0.5,)), "servers": NodeSpec(count=3, cpu=(0.5,))}
    bounds = ResourcesSpec(
        policy="rm",
        cores=4.0,
        workers=2,
        servers=3,
        window_s=0.5,
        settle_s=0.5,
        between_s=1.0,
    )
    flags = ("--num-samples", str(32 * N), "--step-s", "0.002")
    with running(tmp_path, *flags, mode="asp", resources=bounds, **spec) as job:
        job.until_committed(1)
        job.tell(ResizeNodes(role="server", cpu=(0.05, 0.5, 0.5)))
        until(lambda: job.told(SizeChangedEvent), "another size", 120.0)
        (plan,) = [act.plan for act in acts(job) if isinstance(act, ApplyPlan)][:1]
        assert plan.relieves == "hot_server"
        assert plan.nodes == (NodeTarget(node="server-0", cpu=0.5),)
        assert "server-0 to 0.5 cores: relieves a server with more load than its peers" in (
            job.told(SizePlannedEvent)[0].plan
        )
        until(lambda: job.node("server-0").cores == 0.5, "its cores")
        judged = until(
            lambda: [act for act in acts(job) if isinstance(act, JudgePlan)],
            "what it brought",
            120.0,
        )
        assert judged[0].verdict == "better"
        assert judged[0].after.per_s > 1.5 * judged[0].before.per_s
        job.check_finished()


@pytest.mark.soak
def test_cores_that_a_server_leaves_idle_go_to_the_worker(tmp_path: Path) -> None:
    """All cores are granted, most of them to a server that has little to do."""
    spec = {"workers": NodeSpec(count=1, cpu=(0.15,)), "servers": NodeSpec(count=1, cpu=(1.05,))}
    bounds = ResourcesSpec(
        policy="rm", cores=1.2, workers=1, servers=1, window_s=0.5, settle_s=0.5, between_s=1.0
    )
    flags = ("--num-samples", str(6 * N), "--batch-size", "4", "--step-s", "0")
    with running(tmp_path, *flags, mode="asp", resources=bounds, **spec) as job:
        judged = until(
            lambda: [act for act in acts(job) if isinstance(act, JudgePlan)],
            "what the first plan brought",
            120.0,
        )
        assert judged[0].verdict == "better"
        assert judged[0].after.per_s > 1.5 * judged[0].before.per_s
        worker, server = job.node("worker-0").cores, job.node("server-0").cores
        assert worker >= 0.3
        assert server <= 0.9
        assert worker + server <= 1.2 + 1e-6
        job.check_finished()


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["nobody", "master"])
def test_a_plan_is_carried_out_and_each_sample_counts_once(tmp_path: Path, killed: str) -> None:
    spec = {"workers": NodeSpec(count=1, cpu=(2.0,)), "servers": NodeSpec(count=1, cpu=(2.0,))}
    with running(tmp_path, *SLOW, mode="asp", resources=resources(), **spec) as job:
        until(lambda: job.events("size_planned"), "a plan")
        if killed == "master":
            os.kill(job.status().master_pid, signal.SIGKILL)
        until(lambda: job.told(SizeChangedEvent), "another size")
        assert size(job) == {"worker": 3, "server": 2}
        assert job.node("worker-2").cores == 1.5
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert not job.deaths()
        assert sum(isinstance(act, ApplyPlan) for act in acts(job)) == 1
    place = history_place(JobSpec(script="t.py"))
    assert place is not None
    past = PastJobs(place).find(job.job.job_id)
    assert past.first == JobSize(workers=1, servers=1, worker_cpu=2.0, server_cpu=2.0)
    assert (past.final.workers, past.final.servers, past.final.worker_cpu) == (3, 2, 1.5)


@pytest.mark.soak
def test_a_node_that_does_not_come_is_given_up_and_training_goes_on(tmp_path: Path) -> None:
    spec = {"workers": NodeSpec(count=1, cpu=(2.0,)), "servers": NodeSpec(count=2, cpu=(2.0,))}
    patient = resources(patience_s=2.0)
    with running(tmp_path, *SLOW, mode="asp", resources=patient, pending_s=30.0, **spec) as job:
        until(lambda: job.told(SizeKeptEvent), "it is given up", 120)
        assert size(job) == {"worker": 1, "server": 2}
        # The plan had made the worker smaller first.
        until(lambda: job.node("worker-0").cores == 2.0, "its cores")
        changes = [event.cores for event in job.told(NodeResizedEvent)]
        assert changes == [1.5, 2.0]
        assert "for 2 s" in job.told(SizeKeptEvent)[0].cause
        (tmp_path / "hurry").touch()
        job.check_finished()


@pytest.mark.soak
def test_a_server_that_does_not_come_in_time_does_not_come_later(tmp_path: Path) -> None:
    spec = {"workers": NodeSpec(count=1, cpu=(2.0,)), "servers": NodeSpec(count=2, cpu=(2.0,))}
    patient = resources(patience_s=2.0, between_s=6.0)
    plan = {"workers": "1", "servers": "3", "worker_cpu": "2.0"}
    more = {"resources": patient, "resources_args": plan, "pending_s": 6.0}
    with running(tmp_path, *SLOW, mode="asp", **more, **spec) as job:
        until(lambda: job.told(SizeKeptEvent), "it is given up", 120)
        assert job.told(ServersNotChangedEvent)[-1].withdrawn
        assert [node.node for node in job.status().nodes if node.role == "server"] == [
            "server-0",
            "server-1",
        ]
        time.sleep(8.0)  # by when the server that was asked for would have come
        assert size(job) == {"worker": 1, "server": 2}
        assert not job.told(ServersChangedEvent)
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert not job.deaths()
