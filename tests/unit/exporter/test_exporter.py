"""The Prometheus endpoint: what is shown, and to whom."""

import contextlib
import hmac
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.exporter.exporter import MAX_OPEN, Exporter, JobCollector, address_of
from paceline.jobs.ground import check_ground
from paceline.master.exposed import Exposed
from paceline.master.monitor import Metrics, NodeMetrics
from paceline.policy.observation import Observation, RestartCost, WorkerSeen
from paceline.policy.stats.windows import Pace
from paceline.wire.client import Culprit, LastLogged, ShownFigure, SlowPart
from paceline.wire.spec import JobSpec

SECRET = "ab" * 32
TOKEN = hmac.digest(SECRET.encode(), b"paceline metrics", "sha256").hex()


def exposed(num_workers: int = 2) -> Exposed:
    server = NodeMetrics(
        step=9,
        samples=0,
        bpt_s=0.0,
        compute_s=0.0,
        server_s=0.02,
        message_s=0.0,
        rss_bytes=1 << 20,
        cpu_s=1.5,
    )
    worker = NodeMetrics(
        step=9,
        samples=640,
        bpt_s=0.5,
        compute_s=0.3,
        server_s=0.1,
        message_s=0.05,
        rss_bytes=1 << 28,
        cpu_s=9.0,
    )
    nodes = {"server-0": server} | {f"worker-{i}": worker for i in range(num_workers)}
    return Exposed(
        job_id="job-1",
        metrics=Metrics(t=1.0, committed=1200, samples_per_s=99.5, nodes=nodes),
        steps=20,
        speeds={"worker-0": 50.0},
        restarts={"worker-1": 3},
        decided={"worker-1": 1},
        figures=(
            ShownFigure(name="job_decisions", about="Decisions.", value=7, counts=True),
            ShownFigure(
                name="job_actions",
                about="Actions.",
                value=1,
                labels={"action": "KillRestart"},
                counts=True,
            ),
        ),
        logged=(LastLogged("loss", 0.25, 19), LastLogged("val/auc", "inf", 18)),
        observation=Observation(
            now_s=9.0,
            step=20,
            mode="bsp",
            global_batch=64,
            steps_left=None,
            workers=(
                WorkerSeen(
                    node="worker-0",
                    batch_size=32,
                    short=Pace(iterations=9, seconds=4.5, samples=32, compute_s=0.4, bpt_s=0.6),
                ),
            ),
            pending_s=7.0,
            worker_restart=RestartCost(start_s=3.0, redo_s=0.5),
        ),
    )


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path)
    found.secret_file.write_text(SECRET)
    return found


@pytest.fixture
def exporter(job: JobDir) -> Iterator[Exporter]:
    serving = Exporter(job, 0)
    yield serving
    serving.close()


def scrape(address: str, token: str = TOKEN) -> dict[tuple[str, ...], float]:
    """By name, and label values in the order of the labels' names."""
    request = urllib.request.Request(
        f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_shows_job_and_nodes(job: JobDir, exporter: Exporter) -> None:
    address = address_of(job).read_text().strip()
    assert address == exporter.address
    assert scrape(address) == {}
    exporter.publish(exposed())
    shown = scrape(address)
    assert shown["paceline_job_info", "job-1"] == 1
    assert shown["paceline_job_committed_samples",] == 1200
    assert shown["paceline_job_steps",] == 20
    assert shown["paceline_job_decisions_total",] == 7
    assert shown["paceline_job_actions_total", "KillRestart"] == 1
    assert shown["paceline_node_batch_part_seconds", "worker-0", "compute", "worker"] == 0.3
    assert shown["paceline_node_batch_part_seconds", "server-0", "server", "server"] == 0.02
    assert shown["paceline_node_batch_seconds", "worker-1", "worker"] == 0.5
    assert shown["paceline_node_samples_total", "worker-0", "worker"] == 640
    assert shown["paceline_node_samples_per_second", "worker-0", "worker"] == 50
    assert shown["paceline_node_restarts_total", "failure", "worker-1", "worker"] == 3
    assert shown["paceline_node_restarts_total", "decision", "worker-1", "worker"] == 1
    assert shown["paceline_logged_value", "loss"] == 0.25
    assert shown["paceline_logged_steps", "loss"] == 19
    assert shown["paceline_logged_value", "val/auc"] == float("inf")
    window = ("worker-0", "worker", "short")
    assert shown["paceline_node_window_batch_seconds", *window] == 0.6
    assert shown["paceline_node_window_batch_samples", *window] == 32
    part = ("worker-0", "compute", "worker", "short")
    assert shown["paceline_node_window_batch_part_seconds", *part] == 0.4
    assert shown["paceline_job_pending_seconds",] == 7
    assert shown["paceline_restart_part_seconds", "start", "worker"] == 3
    assert shown["paceline_restart_part_seconds", "redo", "worker"] == 0.5


def slow_part(culprit: Culprit, *nodes: str) -> SlowPart:
    return SlowPart(culprit=culprit, nodes=nodes, ratio=2.5, since_s=9.0, done="nothing")


FIGURES = (
    ShownFigure(name="job_slow", about="1: it is slow.", value=1.0),
    ShownFigure(name="job_step_seconds", about="Time of a step.", value=0.5),
    ShownFigure(name="job_step_ratio", about="Over the usual one.", value=2.0),
    ShownFigure(name="job_onsets", about="Times.", value=1.0, counts=True),
    *(
        ShownFigure(
            name="job_diagnoses", about="Parts.", value=n, labels={"culprit": what}, counts=True
        )
        for what, n in (("computation", 1), ("link", 2))
    ),
)


def test_a_scrape_shows_what_features_say_is_slow(job: JobDir, exporter: Exporter) -> None:
    slow = (slow_part("computation", "worker-2"), slow_part("link", "worker-0", "worker-1"))
    seen = msgspec.structs.replace(exposed(3), observation=None, slow=slow, figures=FIGURES)
    exporter.publish(seen)
    shown = scrape(exporter.address)
    assert (shown["paceline_job_slow",], shown["paceline_job_step_ratio",]) == (1, 2.0)
    assert shown["paceline_job_step_seconds",] == 0.5
    assert shown["paceline_slow_ratio", "computation", "worker-2"] == 2.5
    assert shown["paceline_slow_ratio", "link", "worker-0 - worker-1"] == 2.5
    assert shown["paceline_job_onsets_total",] == 1
    assert shown["paceline_job_diagnoses_total", "computation"] == 1
    assert shown["paceline_job_diagnoses_total", "link"] == 2
    exporter.publish(msgspec.structs.replace(seen, slow=(slow_part("nothing"),)))
    names = {name for name, *_ in scrape(exporter.address)}
    assert "paceline_slow_ratio" not in names and "paceline_job_slow" in names
    exporter.publish(exposed())
    names = {name for name, *_ in scrape(exporter.address)}
    assert "paceline_job_slow" not in names, "a job whose steps are not followed"


@pytest.mark.parametrize("token", ["", "wrong", SECRET, TOKEN[:-1], TOKEN + "x", "\xe9"])
def test_without_the_secret_nothing_is_shown(exporter: Exporter, token: str) -> None:
    exporter.publish(exposed())
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(exporter.address, token)
    assert refused.value.code == 401
    assert b"paceline" not in refused.value.read()
    refused.value.close()


def test_it_listens_on_loopback_only_and_a_taken_port_is_an_error(
    job: JobDir, exporter: Exporter
) -> None:
    host, _, port = exporter.address.partition(":")
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="Address already in use"):
        Exporter(job, int(port))


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=5.0)


def num_threads() -> int:
    return sum(thread.name.startswith("Thread-") for thread in threading.enumerate())


def test_connections_that_say_nothing_are_few_and_keep_nobody_out(
    exporter: Exporter, capfd: pytest.CaptureFixture[str]
) -> None:
    exporter.publish(exposed())
    before = num_threads()
    with contextlib.ExitStack() as stack:
        for number in range(200):
            slow = stack.enter_context(connect(exporter.address))
            slow.sendall(b"GET /metrics HTTP/1.0\r\nX: "[: number % 28])
        assert scrape(exporter.address)["paceline_job_steps",] == 20
        deadline_s = time.monotonic() + 10.0
        while num_threads() - before > MAX_OPEN:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    assert scrape(exporter.address)["paceline_job_steps",] == 20
    assert capfd.readouterr().err == ""


def test_connections_that_break_leave_no_traceback(
    exporter: Exporter, capfd: pytest.CaptureFixture[str]
) -> None:
    exporter.publish(exposed())
    request = f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    for cut in (0, 5, len(request)):
        for _ in range(10):
            broken = connect(exporter.address)
            broken.sendall(request[:cut])
            # Closed with a reset, as a client that was killed does it.
            broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            broken.close()
    assert scrape(exporter.address)["paceline_job_steps",] == 20
    deadline_s = time.monotonic() + 10.0
    while exporter._server._open:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_the_names_follow_the_conventions() -> None:
    """Units are base units at the end of the name, of counters before ``_total``."""
    collector = JobCollector()
    collector.exposed = msgspec.structs.replace(exposed(), figures=FIGURES)
    registry = CollectorRegistry()
    registry.register(collector)
    units = ("seconds", "bytes", "samples", "per_second", "ratio")
    counted = ("steps", "decisions", "actions", "restarts", "onsets", "diagnoses")
    states = ("paceline_job_slow", "paceline_logged_value")  # 0 or 1; of the unit of the script
    families = list(registry.collect())
    assert len(families) >= 19
    for family in families:
        assert family.name.startswith("paceline_")
        assert family.documentation.endswith(".")
        if family.type != "info":
            assert family.name in states or family.name.endswith((*units, *counted)), family.name


def test_a_taken_port_is_refused_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    sources = {"metrics_port": "job.yaml:3"}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            check_ground(JobSpec(script="/train.py", sources=sources, metrics_port=port))
    told = str(refused.value)
    assert told.startswith(f"job.yaml:3: metrics_port: got {port} (another process listens there)")
    assert "0 for any free one" in told
    check_ground(JobSpec(script="/train.py", metrics_port=0))
