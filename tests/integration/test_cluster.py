"""The scheduler of a cluster with real jobs: places, upgrades, and what a killed one leaves."""

import contextlib
import itertools
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from paceline.base.errors import PacelineError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, is_locked, kill_quietly, start_detached
from paceline.base.record_log import RecordLog
from paceline.features.cluster.book import AnyClusterRecord, ClusterBook, JobDecided, JobLaunched
from paceline.features.cluster.client import (
    ask_scheduler,
    expect,
    start_scheduler,
    stop_scheduler,
)
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.policy.facts import StartJob, Tenant, UpgradeJob
from paceline.features.cluster.wire import (
    CancelJob,
    DeviceRows,
    ExplainJob,
    GetDevices,
    GetQueue,
    JobExplained,
    QueueRow,
    QueueRows,
    StopScheduler,
    SubmitJob,
)
from paceline.features.sharing.log import log_of, read_sharing
from paceline.features.sharing.pages import pages_of_jobs
from paceline.features.sharing.wire import GateMode
from paceline.jobs.launch import is_supervised
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, load
from tests.integration.running import RunningJob, devices, planted, until

SCRIPT = Path(__file__).with_name("jobs") / "queued.py"
KEPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "jobs" / "shared.py"
CONFIG = ClusterConfig(
    devices=("cpu:0", "cpu:1"),
    tenants=(Tenant("a", 1), Tenant("b", 1)),
    parameters={"busy": "1.1", "wait_s": "5"},
)
NOTE = """
import os, sys, time
name, log, wait_s = sys.argv[1:]
granted = os.environ["PACELINE_DEVICES"] + " " + os.environ["PACELINE_SHARE"]
for word in ("begin", "end"):
    with open(log, "a") as file:
        file.write(f"{word} {name} {granted} {time.time()}\\n")
    time.sleep(float(wait_s) if word == "begin" else 0.0)
"""


class Cluster:
    """A scheduler in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, ClusterDir()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the scheduler, and do not wait for it."""
        folder = self.folder
        process = start_detached(
            "paceline.features.cluster", [str(folder.path)], folder.path, folder.log
        )
        self.started.append(process)

    def kill(self) -> None:
        """Kill the scheduler, and see that its lock is free."""
        for process in find_job_processes(self.folder.path):
            assert process.runs("paceline.features.cluster")
            kill_quietly(process.pid, signal.SIGKILL)
        for started in self.started:
            started.wait(5.0)
        until(lambda: not is_locked(self.folder.lock), "the lock of a killed scheduler")

    def submit(self, name: str, spec: JobSpec, tenant: str, asked: str) -> None:
        """Queue a job, again and again until the scheduler has taken it."""
        call = SubmitJob(
            job_id=name, tenant=tenant, asked=asked, one_node=False, expected_s=None, spec=spec
        )

        def taken() -> bool:
            with contextlib.suppress(PacelineError):
                ask_scheduler(self.folder, call)
                return True
            return False

        until(taken, f"{name} is queued")

    def rows(self) -> dict[str, QueueRow]:
        """The queue, as soon as a scheduler answers."""

        def answer() -> tuple[QueueRow, ...] | None:
            with contextlib.suppress(PacelineError):
                return expect(QueueRows, self.folder, GetQueue()).rows
            return None

        return {row.job_id: row for row in until(answer, "an answer of the scheduler")}

    def devices(self) -> DeviceRows:
        """The devices."""
        return expect(DeviceRows, self.folder, GetDevices())

    def runs(self, name: str, kind: str) -> bool:
        """Whether a job runs, and how."""
        row = self.rows()[name]
        return (row.state, row.kind) == ("running", kind)

    def records(self) -> list[AnyClusterRecord]:
        """The journal, each state of it checked: no device is granted twice."""
        decode = msgspec.msgpack.Decoder(AnyClusterRecord).decode
        log = RecordLog[AnyClusterRecord](self.folder.journal, decode, "a cluster", "")
        found, book = list(log.replay()), ClusterBook(CONFIG)
        log.close()
        for record in found:
            book.apply(record)
            counts = book.facts(0.0, {}).on_devices("guaranteed")
            assert max(counts.values(), default=0) <= 1
        return found


def classes() -> dict[str, str]:
    """The class of each job that shares a device, as its device coordinator sees it."""
    return {page.job_id: page.share for page in pages_of_jobs()}


def is_held(job: JobDir) -> bool:
    """Whether any worker of the job is held back; a duty begins small, and may grow later."""
    told = [line.decision for line in read_sharing(log_of(job)) if line.decision.memory is None]
    held = [decision for decision in told if decision.mode is not GateMode.OFF]
    assert all(decision.duty < 0.5 for decision in held[:1])
    orders = [page.newest for page in pages_of_jobs() if page.job_id == job.job_id]
    return bool(held) and any(order.mode is not GateMode.OFF for order in orders)


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    with devices(every=True):
        yield


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    made = Cluster(tmp_path)
    made.folder.make()
    made.folder.want(CONFIG)
    yield made
    made.kill()
    for job in JobDir.all():
        for process in find_job_processes(job.path):
            if process.runs("paceline.supervisor"):
                kill_quietly(process.pid, signal.SIGTERM)
                kill_quietly(process.pid, signal.SIGTERM)
    until(lambda: not any(map(is_supervised, JobDir.all())), "the end of all jobs")
    made.folder.remove_run_dir()


def test_a_start_that_fails_leaves_the_settings(cluster: Cluster) -> None:
    folder, good = cluster.folder, CONFIG
    start_scheduler(folder, good)
    assert folder.load() == good
    stop_scheduler(folder)
    folder.journal.rename(folder.path / "kept")
    folder.journal.write_bytes(b"no journal")
    other = ClusterConfig(devices=("cpu:0",), tenants=(Tenant("other", 1),))
    with pytest.raises(PermanentError, match="the scheduler did not start"):
        start_scheduler(folder, other)
    assert folder.load() == good
    assert not folder.wanted.exists()
    (folder.path / "kept").rename(folder.journal)
    start_scheduler(folder, other)
    assert folder.load() == other


@pytest.mark.soak  # CI has one job of the queue
def test_a_guaranteed_job_arrives_and_an_auto_job_is_upgraded(cluster: Cluster) -> None:
    home, out = cluster.home, cluster.home / "out"
    out.mkdir()
    start_scheduler(cluster.folder, CONFIG)

    def submit(name: str, asked: str) -> None:
        spec = JobSpec(script=str(SCRIPT), strategy="script", args=(str(out), name), cwd=str(home))
        cluster.submit(name, spec, name[0], asked)

    def begun(name: str) -> list[str]:
        path = out / f"{name}.begun"
        return path.read_text().splitlines() if path.exists() else []

    submit("a0", "guaranteed")
    until(lambda: cluster.runs("a0", "guaranteed"), "a0 runs")
    submit("a1", "auto")  # the quota of a is used up, for long as far as anybody knows
    submit("b2", "opportunistic")
    submit("b3", "guaranteed")
    submit("a4", "guaranteed")
    for name, kind in (("a1", "opportunistic"), ("b2", "opportunistic"), ("b3", "guaranteed")):
        until(lambda name=name, kind=kind: cluster.runs(name, kind), f"{name} runs")
    rows = cluster.rows()
    assert {*rows["a0"].devices, *rows["b3"].devices} == {"cpu:0", "cpu:1"}
    assert rows["a4"].state == "waiting"
    assert rows["a4"].why == "needs 1 of the quota of a, which uses 1 of 1"
    for name in ("a0", "a1", "b2", "b3"):
        until(lambda name=name: begun(name), f"the script of {name}")
    assert [tenant.used for tenant in cluster.devices().tenants] == [1, 1]
    until(lambda: classes() == {name: rows[name].kind for name in rows if name != "a4"}, "pages")
    for name in ("a1", "b2"):
        until(lambda name=name: is_held(JobDir(home / "jobs" / name)), f"{name} is held back")

    cluster.kill()  # jobs do not notice, and the next scheduler finds them
    cluster.start()
    assert {name: row.state for name, row in cluster.rows().items()} == {
        **dict.fromkeys(("a0", "a1", "b2", "b3"), "running"),
        "a4": "waiting",
    }
    (out / "b3.go").touch()  # first, for it may be on the device of a1
    until(lambda: cluster.rows()["b3"].state == "over", "the end of b3")
    # a1 was submitted before a4, so the quota is for its upgrade.
    (out / "a0.go").touch()
    until(lambda: cluster.runs("a1", "guaranteed"), "the upgrade of a1")
    assert cluster.rows()["a4"].state == "waiting"
    until(lambda: classes()["a1"] == "guaranteed", "its gate")
    assert load(JobDir(home / "jobs" / "a1").spec).share.kind == "guaranteed"
    (out / "a1.go").touch()
    until(lambda: cluster.runs("a4", "guaranteed"), "a4 runs")
    until(lambda: begun("a4"), "the script of a4")
    ask_scheduler(cluster.folder, CancelJob(job="b2"))
    (out / "a4.go").touch()
    until(lambda: all(row.state == "over" for row in cluster.rows().values()), "all are over")
    ends = {name: row.why for name, row in cluster.rows().items()}
    assert ends == {**dict.fromkeys(("a0", "a1", "b3", "a4"), "finished"), "b2": "stopped"}
    assert all(len(begun(name)) == 1 for name in ends)
    assert begun("a4")[0].endswith(" guaranteed")
    told = [line.text for line in expect(JobExplained, cluster.folder, ExplainJob(job="a1")).lines]
    assert any(text.startswith("upgraded to guaranteed: a has quota left") for text in told)
    acts = [one.act for one in cluster.records() if isinstance(one, JobDecided)]
    assert [act.job_id for act in acts if isinstance(act, UpgradeJob)] == ["a1"]
    ask_scheduler(cluster.folder, StopScheduler())
    until(lambda: not is_locked(cluster.folder.lock), "the end of the scheduler")


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_a_grant_holds_on_its_device_and_an_upgrade_survives_deaths(cluster: Cluster) -> None:
    home, config = cluster.home, replace(CONFIG, parameters={"busy": "1.1", "wait_s": "0"})
    start_scheduler(cluster.folder, config)
    jobs = {}
    for name in ("a0", "a1", "b2", "b3"):
        (home / name).mkdir()
        jobs[name] = RunningJob(JobDir(home / "jobs" / name), home / name)

    def submit(name: str, spec: JobSpec, asked: str) -> None:
        cluster.submit(name, spec, name[0], asked)
        until(lambda: cluster.rows()[name].state == "running", f"{name} runs")

    def kept(name: str) -> JobSpec:
        args = (str(home / name / "losses"), "1000000", "0.01", "64", "96")
        return JobSpec(script=str(KEPT), strategy="script", solution="none", args=args)

    def counted(name: str, workers: int) -> JobSpec:
        many = ("--num-samples", "8192", "--step-s", "0.01", "--slow-until-told")
        return planted(home / name, *many, workers=workers)

    submit("a0", kept("a0"), "guaranteed")
    submit("a1", counted("a1", 1), "auto")  # beyond the quota of a
    assert cluster.rows()["a1"].kind == "opportunistic"
    jobs["a1"].until_committed(200)
    assert not is_held(jobs["a1"].job), "it is alone on its device"
    submit("b2", kept("b2"), "guaranteed")
    submit("b3", counted("b3", 2), "opportunistic")  # a gang: beside either guaranteed job
    assert cluster.rows()["b2"].devices == cluster.rows()["a1"].devices
    until(lambda: is_held(jobs["a1"].job), "a1 is squeezed")
    until(lambda: read_sharing(log_of(jobs["b2"].job)), "what is decided for b2")

    def devices_of(name: str) -> dict[str, str]:
        return {page.node: page.device for page in pages_of_jobs() if page.job_id == name}

    each = dict(zip(("worker-0", "worker-1"), cluster.rows()["b3"].devices, strict=True))
    until(lambda: devices_of("b3") == each, "a device for each worker of b3")
    assert sorted(each.values()) == ["cpu:0", "cpu:1"]

    cluster.kill()
    for name in ("a0", "b2"):
        jobs[name].tell(StopJob())
        jobs[name].end()
    kill_quietly(jobs["a1"].status().master_pid, signal.SIGKILL)
    cluster.start()
    until(lambda: classes()["a1"] == "guaranteed", "the upgrade")
    until(lambda: is_held(jobs["b3"].job), "b3 is held back for a1")
    until(lambda: jobs["a1"].node("worker-0").agent_pid, "the agent of a1")
    status = jobs["a1"].status()
    agent_pid = next(node.agent_pid for node in status.nodes if node.node == "worker-0")
    for pid in (status.master_pid, agent_pid):
        kill_quietly(pid, signal.SIGKILL)
    until(lambda: jobs["a1"].node("worker-0").state == "running", "a1 goes on")
    until(lambda: classes().get("a1") == "guaranteed", "its class")
    spec, (table,) = load(jobs["a1"].job.spec), jobs["a1"].status().tables
    assert [row[2] for row in table.rows] == ["guaranteed"]
    on = {row.device: row.guaranteed for row in cluster.devices().devices}
    assert [device for device, name in on.items() if name] == [*spec.share.devices]
    for name in ("a1", "b3"):
        (home / name / "hurry").touch()
        jobs[name].check_finished()
        assert not jobs[name].events("hung")


def survive(cluster: Cluster, num_kills: int, seed: int) -> None:
    """Kill the scheduler so often, at random moments, while jobs come, start and end."""
    draw, log = random.Random(seed), cluster.home / "log"
    script = cluster.home / "note.py"
    script.write_text(NOTE)
    log.touch()
    names = [f"j{at:03}" for at in range(max(6, num_kills))]
    for at, name in enumerate(names):
        cluster.start()
        spec = JobSpec(
            script=str(script),
            strategy="script",
            args=(name, str(log), str(draw.choice((0, 1, 2)))),
        )
        asked = draw.choice(("guaranteed", "auto", "opportunistic"))
        cluster.submit(name, spec, draw.choice("ab"), asked)
        if at < num_kills:
            time.sleep(draw.uniform(0.0, 2.0))
            cluster.kill()
    cluster.start()

    def rest() -> bool:
        return all(row.state == "over" for row in cluster.rows().values())

    until(rest, "all jobs are over", patience_s=90.0)
    rows = cluster.rows()
    assert {name: row.why for name, row in rows.items()} == dict.fromkeys(names, "finished")
    lines = [line.split() for line in log.read_text().splitlines()]
    assert Counter((line[0], line[1]) for line in lines) == Counter(
        (word, name) for name in names for word in ("begin", "end")
    )
    begun = {line[1]: line for line in lines if line[0] == "begin"}
    ended = {line[1]: float(line[-1]) for line in lines if line[0] == "end"}
    for device in CONFIG.devices:
        times = sorted(
            (float(line[-1]), ended[name])
            for name, line in begun.items()
            if line[2:4] == [device, "guaranteed"]
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))
    records = cluster.records()
    starts = Counter(
        one.job_id
        for one in records
        if isinstance(one, JobDecided) and isinstance(one.act, StartJob)
    )
    assert starts == Counter(names)
    assert Counter(one.job_id for one in records if isinstance(one, JobLaunched)) == Counter(names)


@pytest.mark.soak
def test_a_scheduler_is_killed_at_random_moments(cluster: Cluster) -> None:
    survive(cluster, 5, seed=random.randrange(2**32))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_scheduler_is_killed_50_times(cluster: Cluster) -> None:
    survive(cluster, 50, seed=1)


@pytest.mark.soak
def test_a_job_of_which_nothing_lives_goes_on_without_a_second_grant(cluster: Cluster) -> None:
    out = cluster.home
    spec = JobSpec(script=str(SCRIPT), strategy="script", args=(str(out), "a0"), cwd=str(out))
    cluster.start()
    cluster.submit("a0", spec, "a", "guaranteed")
    until((out / "a0.begun").exists, "the script")
    until(lambda: cluster.runs("a0", "guaranteed"), "a0 runs")
    cluster.kill()  # as when the machine is switched off
    folder = JobDir(out / "jobs" / "a0")

    def is_dead() -> bool:
        found = find_job_processes(folder.path)
        for process in found:
            kill_quietly(process.pid, signal.SIGKILL)
        return not found

    until(is_dead, "the end of all processes")
    cluster.start()
    until(lambda: len((out / "a0.begun").read_text().splitlines()) == 2, "the script again")
    (out / "a0.go").touch()
    until(lambda: cluster.rows()["a0"].state == "over", "the end")
    assert cluster.rows()["a0"].why == "finished"
    assert sum(isinstance(one, JobDecided) for one in cluster.records()) == 1


def test_the_command_line_from_start_to_stop(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from paceline.cli.main import app

    def call(*words: str) -> str:
        result = CliRunner().invoke(app, ["cluster", *words])
        assert result.exit_code == 0, result.output + capfd.readouterr().err
        return result.output

    refused = CliRunner().invoke(app, ["cluster", "queue"])
    assert refused.exit_code == 2
    call("start", "--tenant", "a=1", "--tenant", "b=0", "--policy", "yarn_cs")
    (script := cluster.home / "nothing.sh").write_text("#!/bin/sh\n")
    script.chmod(0o755)
    flags = ["--strategy", "script", "--set", "run_as=program", str(script)]
    told = call("submit", "--tenant", "a", "--share", "guaranteed", "--expected", "1m", *flags)
    name = told.split()[1]
    assert "is queued" in told
    big = ["submit", "--tenant", "b", "--share", "guaranteed", *flags]
    assert CliRunner().invoke(app, ["cluster", *big]).exit_code == 2
    until(lambda: "over" in call("queue"), "the end of the job")
    assert "finished" in call("queue")
    assert "started on cpu:0 as guaranteed" in call("explain", name[:8])
    assert json.loads(call("nodes", "--json"))["policy"] == "yarn_cs"
    assert "a: 0 of 1 devices" in call("nodes")
    assert "the scheduler has ended" in call("stop")
