"""Jobs of planted counts on a Ray cluster, whose pieces die; `tests.ray.cluster` runs this file."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equality
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from paceline.base.jobdir import JobDir
from paceline.base.processes import kill_quietly
from paceline.cli.watch import JobWatcher
from paceline.jobs.launch import ask
from paceline.wire.client import Done, ResizeNodes, Scale
from paceline.wire.spec import CheckpointSpec, NodeSpec, ResourcesSpec, TimeoutSpec, load
from tests.integration.running import RunningJob, running, until
from tests.integration.test_allreduce import BATCH, N, check_finished, finals, group, trains
from tests.integration.test_deterministic import check_same_bits
from tests.integration.test_equality import check_close
from tests.integration.test_node_plane import needs_limits
from tests.ray.cluster import HOST, STORE_BYTES
from tests.ray.platform import (
    GATEWAY,
    PATIENCE_S,
    agent_of,
    ended,
    folders,
    launcher_of,
    left,
    left_in_ray,
    nodes_processes,
    on_ray,
    processes,
    pull_the_plug,
    raylet_of,
)

pytestmark = pytest.mark.timeout(240)
SPEC: dict[str, Any] = {
    "timeouts": TimeoutSpec(lost_after_s=3.0),
    "checkpoint": CheckpointSpec(every_s=0.5, share=1.0),
    "deterministic": True,
}
EQUAL_STEPS = 120
"""Of more, rounding alone would take the models apart."""
PAUSE_S = 5.0
"""Slack for a loaded machine: between two steps are 0.2 s."""
Model = dict[str, np.ndarray]  # type: ignore[type-arg]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def raylets() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Raylets that were added to the cluster, see `add_machine`."""
    added: list[subprocess.Popen[bytes]] = []
    try:
        yield added
    finally:
        for one in added:
            # The first could start others.
            for process in (one, *psutil.Process(one.pid).children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            one.wait()


@pytest.fixture(scope="module")
def machines() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Nodes that were added to the cluster."""
    with raylets() as added:
        yield added


def add_machine(
    machines: list[subprocess.Popen[bytes]],
    cores: int = 2,
    enter: Sequence[str] = (),
    host: str = HOST,
    home: str = "",
) -> None:
    """Start one more raylet.

    Args:
        machines: ends it.
        cores: that it has.
        enter: what comes before a command that runs there.
        host: its address.
        home: of its agents, in that of the cluster.
    """
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    options = [f"--address={os.environ['RAY_ADDRESS']}", f"--num-cpus={cores}"]
    options += [f"--node-ip-address={host}", f"--object-store-memory={STORE_BYTES}"]
    quiet = subprocess.DEVNULL
    env = {**os.environ, "PACELINE_HOME": str(Path(os.environ["PACELINE_TEST_RAY"], home))}
    machines.append(subprocess.Popen([*enter, *ray, *options], stdout=quiet, stderr=quiet, env=env))


@contextlib.contextmanager
def grouped(
    tmp_path: Path, *flags: str, workers: int = 3, has_head: bool = True, **spec: Any
) -> Iterator[RunningJob]:
    """A group on the cluster, slow until `check`."""
    slow = ("--slow-until-told", *flags)
    fields = {**SPEC, **on_ray(), **spec}
    tmp_path.mkdir(exist_ok=True)
    with (
        group(tmp_path / "out", *slow, workers=workers, **fields) as job,
        ended(job.job, has_head=has_head),
    ):
        yield job


def all_train(job: RunningJob, workers: int) -> None:
    names = ", ".join(f"worker-{rank}" for rank in range(workers))
    until(lambda: trains(job) and trains(job)[-1].startswith(names), f"{names}", PATIENCE_S)


def hurry(job: RunningJob) -> None:
    (job.out / "hurry").touch()


@functools.cache
def undisturbed(epochs: int) -> Model:
    """What one worker on this machine ends with, to which nothing happens."""
    flags = ("--epochs", str(epochs), "--step-s", "0")
    with (
        tempfile.TemporaryDirectory() as out,
        group(Path(out), *flags, workers=1, deterministic=True) as job,
    ):
        check_finished(job, epochs=epochs, lives=1)
        (model,) = finals(job).values()
    return model


def check(job: RunningJob, *, epochs: int, lives: int) -> None:
    """Let it end: all counts are exact, and the model has the bits that it has on a laptop."""
    hurry(job)
    until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
    check_finished(job, epochs=epochs, lives=lives)
    for model in finals(job).values():
        check_same_bits(undisturbed(epochs), model)


def trains_until(job: RunningJob, condition: Callable[[], object]) -> None:
    """Wait for something while the master answers, and steps come into the model."""
    committed, begun_s = -1, time.monotonic()
    grew_s = begun_s
    while not condition():
        asked_s = time.monotonic()
        assert asked_s - begun_s < 2 * PATIENCE_S
        now = job.status().committed
        assert time.monotonic() - asked_s < 1.0
        if now > committed:
            committed, grew_s = now, asked_s
        assert asked_s - grew_s < PAUSE_S, "it pauses"
        time.sleep(0.1)


def test_a_machine_that_is_gone_costs_its_own_work_and_a_dead_raylet_costs_nothing(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    with grouped(tmp_path, "--epochs", "3") as job:
        all_train(job, 3)
        launcher_of(job.job, "worker-0").kill()  # Ray's actor alone: its agent works on
        until(lambda: job.node("worker-0").state == "unbacked", "a word of that")
        assert not job.deaths()
        pull_the_plug(job.job, "worker-2")
        until(lambda: job.events("node_lost"), "the loss")
        add_machine(machines)
        all_train(job, 3)
        lost = [event["node"] for event in job.events("node_lost")]
        assert lost == ["worker-2"], "and of no other"
        assert len(job.events("epoch")) == 1, "nothing was taken from a cut"
        check(job, epochs=3, lives=3)


def test_a_raylet_that_is_killed_alone_costs_no_pause_and_no_sample(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    with grouped(tmp_path, "--epochs", "4", workers=2) as job:
        all_train(job, 2)
        began = len(trains(job))
        raylet_of(job.job, "worker-1").kill()
        trains_until(job, lambda: job.node("worker-1").state == "unbacked")
        add_machine(machines)
        job.until_committed(job.status().committed + 10 * BATCH)
        assert len(trains(job)) == began
        assert not job.deaths()
        check(job, epochs=4, lives=2)
        assert sum(map(len, job.samples().values())) == 4 * N, "none was computed twice"


def test_neither_the_gateway_nor_the_master_is_missed(tmp_path: Path) -> None:
    with grouped(tmp_path, "--epochs", "3", "--evaluate", preflight=True) as job:
        all_train(job, 3)
        began = len(trains(job))
        for one in processes(GATEWAY):
            one.kill()
        job.until_committed(job.status().committed + 200)
        checked = {event["node"]: event["speed"]["links"] for event in job.events("checked")}
        assert len(checked) == 3
        assert all(checked.values()), "links between machines are measured"
        kill_quietly(job.status().master_pid)
        until(lambda: len(job.events("master_started")) == 2, "another master")
        job.until_committed(job.status().committed + 200)
        assert len(trains(job)) == began
        assert not job.deaths()
        assert not job.events("agent_lost")
        check(job, epochs=3, lives=3)
        evaluated = [load_file(path) for path in job.out.glob("*.evaluated")]
        assert len(evaluated) == 3
        assert all(np.all(np.abs(one["seen"] - 3) < 1e-9) for one in evaluated)


def test_what_workers_print_is_in_the_logs_and_in_the_output_of_the_run(tmp_path: Path) -> None:
    def lines(job: JobDir, node: str) -> list[str]:
        log = job.logs / f"{node}.log"
        found = log.read_text().splitlines() if log.exists() else []
        return [line for line in found if line.startswith("batch ")]

    nodes = ("worker-0", "worker-1")
    with grouped(tmp_path, "--epochs", "3", "--say", workers=2) as job:
        watcher = JobWatcher(job.job, from_now=False, shown=set())

        def until_they_say(more: int) -> None:
            for node in nodes:
                count = len(lines(job.job, node)) + more
                until(lambda n=node, c=count: len(lines(job.job, n)) >= c, f"lines of {node}")

        until_they_say(10)
        kill_quietly(agent_of(job.job, "worker-0"))
        until_they_say(10)
        kill_quietly(job.status().master_pid)
        until_they_say(10)
        said = list(watcher.look().said)
        assert len(said) > 10, "the run's own output, while it runs"
        assert not job.deaths()
        check(job, epochs=3, lives=2)
        said += watcher.look().said
        for node in nodes:
            (there,) = folders(job.job, node)
            assert lines(job.job, node) == lines(JobDir(there), node)
            batches = (len(t) for life, t in job.times().items() if life.startswith(f"{node}."))
            assert len(lines(job.job, node)) == sum(batches)
        assert [line for line in said if line.startswith("batch ")] == lines(job.job, nodes[0])


def test_a_server_on_a_machine_that_is_gone_comes_back_from_a_cut(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "out").mkdir()
    one = {"servers": NodeSpec(count=1), **on_ray()}
    with running(tmp_path / "out", mode="bsp", **one) as job, ended(job.job):
        job.until_committed(500, cuts=1)
        pull_the_plug(job.job, "server-0")
        add_machine(machines)
        until(lambda: len(job.events("epoch")) == 2, "an epoch from a cut", PATIENCE_S)
        job.check_finished()


@needs_limits
def test_a_worker_beyond_its_memory_limit_is_known_as_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    small = {"workers": NodeSpec(count=1, memory_bytes=2 << 30), "servers": NodeSpec(count=1)}
    with running(tmp_path / "out", "--hog", **small, **on_ray()) as job, ended(job.job):
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
        job.check_finished()
        (death,) = job.deaths()
        assert death["node"] == "worker-0"
        assert "out of memory" in death["reason"]


def test_servers_of_which_one_is_lost_with_its_machine_compute_what_a_laptop_does(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    """By the rule of ``experiments/benchmarks/equality.py``: the loss of each step, and the model."""
    alone = equality.run_alone(tmp_path / "alone", EQUAL_STEPS)
    lost = list[JobDir]()

    def lose() -> None:
        def trained() -> JobDir | None:
            for path in (tmp_path / "jobs").glob("*/job.json"):
                job = RunningJob(JobDir(path.parent), tmp_path)
                if job.events("works") and job.status().committed > EQUAL_STEPS:
                    return job.job
            return None

        job: JobDir = until(trained, "training", 2 * PATIENCE_S)
        pull_the_plug(job, "server-0")
        add_machine(machines)
        lost.append(job)

    losing = threading.Thread(target=lose)
    losing.start()
    slow = {"workers": NodeSpec(count=2, cpu=(0.3,)), "checkpoint": SPEC["checkpoint"]}
    run = equality.run_job(tmp_path / "ray", EQUAL_STEPS, equality.Job(2), **slow, **on_ray())
    losing.join()
    (job,) = lost
    assert len(RunningJob(job, tmp_path).events("epoch")) == 2, "an epoch from a cut"
    check_close(alone, run)
    until(lambda: not left(job) + left_in_ray(), "a clean cluster", PATIENCE_S)


def test_nodes_get_other_sizes_one_by_one_at_other_places_also_by_another_master(
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    half, slow = (0.5,), ("--slow-until-told", "--num-samples", "16384", "--step-s", "0.005")
    sizes = {"workers": NodeSpec(count=2, cpu=half), "servers": NodeSpec(count=1, cpu=half)}
    with running(tmp_path / "out", *slow, **sizes, **on_ray()) as job, ended(job.job):
        job.until_committed(1, cuts=1)
        for role in ("worker", "server"):
            job.tell(ResizeNodes(role=role, cpu=(1.0,)))
        reply = ask(job.job, Scale(workers=3))
        assert isinstance(reply, Done) and "cannot scale yet" in reply.error
        until(lambda: job.events("kill_restart"), "the first worker that moves", PATIENCE_S)
        kill_quietly(job.status().master_pid)
        # In the end all places are of one core. What was reserved together, half cores, is free.
        until(lambda: job.status().room.get("worker") == 3, "three free places", PATIENCE_S)
        nodes = {node.node: node for node in job.status().nodes}
        assert nodes.keys() == {"server-1", "worker-0", "worker-1"}
        assert all(node.cores in (1.0, None) for node in nodes.values())
        moved = {event["node"] for event in job.events("node_resized")}
        assert moved == {"server-1", "worker-0", "worker-1", "worker-2"}
        assert not job.deaths() and not job.events("not_resized")
        hurry(job)
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
        job.check_finished()


def test_a_size_that_has_no_place_is_given_up_and_the_nodes_train_on(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    sizes = {"workers": NodeSpec(count=2), "servers": NodeSpec(count=1)}
    short = {"resources": ResourcesSpec(patience_s=3.0)}
    with (
        running(tmp_path / "out", "--slow-until-told", **sizes, **short, **on_ray()) as job,
        ended(job.job),
    ):
        job.until_committed(1)
        for number, role in enumerate(("worker", "server"), start=1):
            job.tell(ResizeNodes(role=role, cpu=(50.0,)))
            until(lambda n=number: len(job.events("not_resized")) == n, "it", PATIENCE_S)
            job.until_committed(job.status().committed + 20)
            names = {node.node for node in job.status().nodes}
            assert names == {"server-0", "worker-0", "worker-1"}
            assert load(job.job.spec).of_role(role).cpu is None
        assert not job.deaths() and not job.events("kill_restart")
        hurry(job)
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
        job.check_finished()


def test_a_gang_that_does_not_fit_waits_and_says_so(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "out").mkdir()
    big = NodeSpec(count=1, cpu=(5.0,))
    spec = {"workers": big, "servers": big, **on_ray()}
    with running(tmp_path / "out", **spec) as job, ended(job.job):
        until(lambda: len(job.events("place_pending")) >= 2, "a word about each")
        node = job.node("worker-0")
        assert node.state == "pending"
        assert "5 CPU" in node.note and "reserved together with 1 more" in node.note
        add_machine(machines, cores=5)
        until(lambda: "11 CPU" in job.node("worker-0").note, "the first machine", PATIENCE_S)
        add_machine(machines, cores=5)
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
        job.check_finished()


def test_a_machine_without_the_data_is_named_before_anything_is_trained(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "ids.txt").write_text("".join(f"{number}\n" for number in range(4096)))
    np.save(data / "ids.npy", np.arange(4096))
    mount = f'mount -t tmpfs none {data}; exec "$@"'
    add_machine(machines, cores=10, enter=["unshare", "--mount", "sh", "-ec", mount, "sh"])
    cores = (2.0, 7.0)  # the second worker has room on that machine alone
    in_group = partial(group, workers=2, cpu=cores)
    with_server = partial(running, workers=NodeSpec(count=2, cpu=cores), servers=NodeSpec(count=1))
    for kind, name in ((in_group, "ids.txt"), (with_server, "ids.npy")):
        out = tmp_path / f"{name}.out"
        out.mkdir()
        with kind(out, "--data", str(data / name), **on_ray()) as job, ended(job.job):
            until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
            outcome = job.end()
        assert outcome.state == "failed"
        assert outcome.committed == 0
        assert outcome.error.startswith("worker-")
        assert f"cannot read {data / name} (" in outcome.error
        assert "put it at the same path there, or on storage" in outcome.error


def test_both_planes_are_encrypted_and_the_secret_is_in_no_environment_and_no_log(
    tmp_path: Path,
) -> None:
    began_s = time.time()
    (tmp_path / "out").mkdir()
    small = {"workers": NodeSpec(count=1), "servers": NodeSpec(count=1)}
    with running(tmp_path / "out", "--slow-until-told", **small, **on_ray()) as job, ended(job.job):
        until(lambda: job.status().committed, "a first step", 2 * PATIENCE_S)
        (server,) = [one for one in job.events("process_up") if one["node"] == "server-0"]
        assert server["address"].startswith("curve://")
        secret = job.job.secret()
        members = [psutil.Process(one.pid) for one in nodes_processes(job.job, "*")]
        joined = [JobDir(path) for path in folders(job.job, "*")]
        assert len(joined) == 2
        for node in joined:
            assert node.authority_pem().split() == job.job.authority_pem().split() != []
            assert not node.authority_key.exists()
        members += [launcher_of(job.job, "worker-0"), *processes(GATEWAY)]
        assert len(members) > 5
        for one in members:
            told = f"{one.cmdline()} {one.environ()}".encode()
            assert secret not in told, one.cmdline()
        hurry(job)
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
    logs = Path("/tmp/ray").glob("session_*/logs/**/*")
    said = [path for path in logs if path.is_file() and path.stat().st_mtime > began_s]
    said += [path for path in job.job.logs.rglob("*") if path.is_file()]
    assert len(said) > 10
    assert [path for path in said if secret in path.read_bytes()] == []


def test_a_worker_that_is_added_while_there_is_no_room_waits_and_then_joins(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    add_machine(machines, cores=12)
    with grouped(tmp_path, "--epochs", "4", workers=2, cpu=(4.0,)) as job:
        all_train(job, 2)
        free = job.status().room["worker"]
        assert 0 < free < 14
        job.tell(Scale(workers=16))
        until(lambda: job.events("place_pending"), "a word of the platform")
        job.tell(Scale(workers=3))
        all_train(job, 3)
        check(job, epochs=4, lives=3)


def test_a_raylet_that_stands_still_stops_nothing(tmp_path: Path) -> None:
    with grouped(tmp_path, "--epochs", "3", workers=2) as job:
        all_train(job, 2)
        raylet, began = raylet_of(job.job, "worker-1"), len(trains(job))
        raylet.send_signal(signal.SIGSTOP)
        try:
            job.until_committed(job.status().committed + 300)
            assert len(trains(job)) == began
            check(job, epochs=3, lives=2)
            assert sum(map(len, job.samples().values())) == 3 * N, "none was computed twice"
        finally:
            raylet.send_signal(signal.SIGCONT)


def test_a_head_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    """The last of this file: the cluster does not outlive it."""
    with grouped(tmp_path, "--epochs", "9", workers=2, has_head=False) as job:
        all_train(job, 2)
        began = len(trains(job))
        for one in processes("gcs_server"):
            one.kill()
        gone_s = time.monotonic()
        # By then Ray has ended its own processes.
        trains_until(job, lambda: time.monotonic() > gone_s + 70.0)
        assert len(trains(job)) == began
        assert not job.deaths()
        check(job, epochs=9, lives=2)
