"""A second user of the machine learns no secret, whatever dies and whatever that user takes."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir, run_place
from paceline.base.processes import find_job_processes, is_locked, kill_quietly
from paceline.features.cluster.client import ask_scheduler, start_scheduler, stop_scheduler
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.policy.facts import Tenant
from paceline.features.cluster.wire import GetDevices
from paceline.features.exporter.exporter import address_of, token_of
from paceline.jobs.launch import ask
from paceline.jobs.listing import JobSelection, listed
from paceline.wire.client import GetStatus
from paceline.wire.control_tls import MASTER
from paceline.wire.spec import DataPlaneSpec, NodeSpec
from tests.integration.running import RunningJob, running, until
from tests.integration.test_join import JOINED, joining, standing_still

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

NOBODY = 65_534
SQUATTER = Path(__file__).with_name("jobs") / "squatter.py"
KILLS = 3


class Squatter:
    """The second user, who goes for what is shown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(SQUATTER), str(NOBODY), str(folder)],
            stdin=subprocess.PIPE,
            text=True,
        )
        self._shown: set[str] = set()

    def show(self, *targets: str) -> None:
        """Show ports (``port N``) and sockets (``path P``), each once."""
        assert self._process.stdin is not None
        fresh = [one for one in targets if one not in self._shown]
        self._shown.update(fresh)
        self._process.stdin.write("".join(f"{one}\n" for one in fresh))
        self._process.stdin.flush()

    def show_all(self, folder: Path, run_dir: Path) -> None:
        """Show every port and socket of the processes of a job or cluster."""
        self.show(*map("port {}".format, ports_of(folder)))
        for path in run_dir.iterdir():
            if stat.S_ISSOCK(path.stat().st_mode):
                self.show(f"path {path}")

    def log(self) -> list[str]:
        path = self._folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def heard(self) -> bytes:
        path = self._folder / "heard"
        return path.read_bytes() if path.exists() else b""

    def close(self) -> None:
        self._process.communicate()

    def check(self, *secrets: bytes) -> None:
        """Nothing of these was heard, and no socket let it in."""
        assert not [line for line in self.log() if line.startswith("entered")]
        for secret in secrets:
            assert secret not in self.heard()
            assert bytes.fromhex(secret.decode()) not in self.heard()


@pytest.fixture
def squatter() -> Iterator[Squatter]:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="squatter-"))
    os.chown(folder, NOBODY, NOBODY)
    made = Squatter(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def ports_of(folder: Path) -> set[int]:
    """TCP ports at which processes of a job, or of a cluster, listen."""
    found = set()
    for process in find_job_processes(folder):
        with contextlib.suppress(psutil.Error):
            for one in psutil.Process(process.pid).net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.add(one.laddr.port)
    return found


@contextlib.contextmanager
def scraping(job: JobDir) -> Iterator[list[int]]:
    """Prometheus, as the documents set it up: what it was answered."""
    over, codes = threading.Event(), list[int]()

    def scrape() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                request = urllib.request.Request(
                    f"http://{address_of(job).read_text().strip()}/metrics",
                    headers={"Authorization": f"Bearer {token_of(job).read_text().strip()}"},
                )
                with urllib.request.urlopen(request, timeout=0.5) as answer:
                    codes.append(answer.status)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield codes
    finally:
        over.set()
        thread.join()


@pytest.mark.soak
def test_a_job_of_one_machine_tells_a_squatter_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squatter: Squatter
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    spec = {"servers": NodeSpec(count=1), "workers": 1, "metrics_port": 0}
    with running(tmp_path, "--step-s", "0.03", **spec) as job, scraping(job.job) as codes:
        job.until_committed(100, cuts=1)
        until(lambda: codes, "an answer to Prometheus")
        first = job.job.secret()
        assert len(ports_of(job.job.path)) == 1, "the metrics' alone"
        assert not job.job.master_address.exists()
        for kill in range(KILLS):
            squatter.show_all(job.job.path, job.job.run_dir)
            job.kill_master()
            until(lambda n=kill: len(job.events("master_started")) > n + 1, "another master")
            listed(JobSelection())
        took = until(lambda: [x for x in squatter.log() if x.startswith("took")], "a port")
        until(lambda: "called" in squatter.log(), "a call of Prometheus")
        assert took
        squatter.show_all(job.job.path, job.job.run_dir)
        job.kill_everything()
        # An interrupted job, whose master everybody asks for.
        (row,) = listed(JobSelection())
        assert row.state == "interrupted"
        with pytest.raises((PacelineError, FileNotFoundError)):
            ask(job.job, GetStatus())
        job.resume()
        second = job.job.secret()
        assert second != first, "a resumed job has another secret"
        squatter.show_all(job.job.path, job.job.run_dir)
        job.kill_master()
        job.check_finished()
    squatter.check(first, second)
    assert sum(line.startswith("refused") for line in squatter.log()) >= 4, "nobody knocked"


@pytest.mark.soak
def test_a_master_at_a_port_proves_itself_before_a_joined_machine_says_anything(
    tmp_path: Path, squatter: Squatter
) -> None:
    out, home = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    home.mkdir()
    plane = DataPlaneSpec(transport="tcp")
    spec = {"servers": NodeSpec(count=1), "workers": 1, "data_plane": plane}
    with running(out, "--step-s", "0.03", **spec) as job:
        job.until_committed(100, cuts=1)
        with standing_still(job, "worker-0"), joining(job, home) as there:
            until(lambda: job.node(JOINED).state == "running", "the joined worker")
            port = int(job.job.master_address.read_text().strip().rpartition(":")[2])
            squatter.show(f"port {port}", *socket_paths(job))
            kill_until_squatted(job, squatter, port)
            # The joined agent dials the squatter, again and again.
            until(lambda: squatter.log().count("called") >= 3, "calls of the joined agent")
            assert int(job.job.master_address.read_text().strip().rpartition(":")[2]) != port
            for process in find_job_processes(there.path):
                kill_quietly(process.pid, signal.SIGKILL)
        secret = job.job.secret()
        job.check_finished()
    squatter.check(secret)
    assert MASTER.encode() in squatter.heard(), "the name for which a client asks in clear"
    assert b"paceline.Control" not in squatter.heard()
    assert not re.search(rb"[0-9a-f]{64}", squatter.heard()), "a proof was said"


def socket_paths(job: RunningJob) -> list[str]:
    found = job.job.run_dir.iterdir()
    return [f"path {path}" for path in found if stat.S_ISSOCK(path.stat().st_mode)]


def kill_until_squatted(job: RunningJob, squatter: Squatter, port: int) -> None:
    """Kill masters until the squatter was faster than the next one."""
    for _ in range(10):
        num = len(job.events("master_started"))
        job.kill_master()
        until(lambda n=num: len(job.events("master_started")) > n, "another master")
        if f"took {port}" in squatter.log():
            return
    pytest.fail("the squatter was never fast enough")


def test_a_scheduler_tells_a_squatter_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squatter: Squatter
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    folder = ClusterDir()
    config = ClusterConfig(devices=("cpu:0",), tenants=(Tenant("default", 1),))
    # The user makes the folder of the next run before its owner does.
    taken = run_place() / folder.socket.parent.name
    taken.mkdir()
    os.chown(taken, NOBODY, NOBODY)
    try:
        for _ in range(2):
            start_scheduler(folder, config)
            assert folder.socket.parent != taken
            assert not ports_of(folder.path)
            squatter.show_all(folder.path, folder.socket.parent)
            for process in find_job_processes(folder.path):
                kill_quietly(process.pid, signal.SIGKILL)
            # A process that ends leaves the list before it lets go of its lock.
            until(
                lambda: not (find_job_processes(folder.path) or is_locked(folder.lock)),
                "the scheduler's death",
            )
            with pytest.raises(PacelineError):
                ask_scheduler(folder, GetDevices())
        start_scheduler(folder, config)
        stop_scheduler(folder)
        until(lambda: any(x.startswith("refused") for x in squatter.log()), "a knock")
        squatter.check(folder.secret())
    finally:
        for process in find_job_processes(folder.path):
            kill_quietly(process.pid, signal.SIGKILL)
        folder.remove_run_dir()
        taken.rmdir()
