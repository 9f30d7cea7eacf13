"""The job's metrics for Prometheus: HTTP on loopback, for those who have its token.

    curl -H "Authorization: Bearer $(cat metrics.token)" http://$(cat metrics.address)/metrics

Threads of its own answer; they read the newest
`Exposed`, which the master replaces once per second and nobody changes.

Reference: https://prometheus.io/docs/practices/naming (base units, ``_total`` for counters).
"""

import contextlib
import hmac
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from paceline.base.jobdir import JobDir, role_of
from paceline.features.exporter.lacks import HOST
from paceline.master.exposed import Exposed
from paceline.master.monitor import NodeMetrics
from paceline.policy.observation import RESTART_PARTS, Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.windows import Pace

REQUEST_S = 10.0
"""Seconds for one request to arrive."""
MAX_OPEN = 16
"""Connections at a time: a scraper needs one."""
NODE = ["node", "role"]

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class JobCollector(Collector):
    """Turns the newest `Exposed` into metrics; without one there are none."""

    def __init__(self) -> None:
        self.exposed: Exposed | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the job."""
        exposed = self.exposed
        if exposed is not None:
            yield from _of_job(exposed)
            yield from _of_script(exposed)
            yield from _of_nodes(exposed)
            yield from _of_slowness(exposed)
            yield from _of_features(exposed)
            if exposed.observation is not None:
                yield from _of_windows(exposed.observation)
                yield from _of_restarts(exposed.observation)


def _of_job(exposed: Exposed) -> Iterator[Metric]:
    metrics = exposed.metrics
    yield InfoMetricFamily("paceline_job", "The job.", value={"job_id": exposed.job_id})
    for name, text, value in (
        ("committed_samples", "Samples in the model; a restore takes some out.", metrics.committed),
        ("steps", "Steps in the model (asynchronous: contributions).", exposed.steps),
        ("samples_per_second", "Samples that come into the model.", metrics.samples_per_s),
    ):
        yield GaugeMetricFamily(f"paceline_job_{name}", text, value=value)


def _of_script(exposed: Exposed) -> Iterator[Metric]:
    """Yield what the script logs."""
    text = "The newest value that the script has logged: the mean over the workers."
    values = GaugeMetricFamily("paceline_logged_value", text, labels=["name"])
    text = "The step of the newest value that the script has logged."
    steps = GaugeMetricFamily("paceline_logged_steps", text, labels=["name"])
    for one in exposed.logged:
        values.add_metric([one.name], float(one.value))
        steps.add_metric([one.name], one.step)
    yield from (values, steps)


def _of_nodes(exposed: Exposed) -> Iterator[Metric]:
    text = "Mean time of a batch in its newest report: own work, servers' work, the wire."
    parts = GaugeMetricFamily("paceline_node_batch_part_seconds", text, labels=[*NODE, "part"])
    text = "Mean wall time of a batch in its newest report, waits included."
    whole = GaugeMetricFamily("paceline_node_batch_seconds", text, labels=NODE)
    text = "Samples handed to the training loop, over all lives."
    samples = CounterMetricFamily("paceline_node_samples", text, labels=NODE)
    text = "Samples handed to the training loop, recently."
    speed = GaugeMetricFamily("paceline_node_samples_per_second", text, labels=NODE)
    text = "Processor time, over all lives."
    cpu = CounterMetricFamily("paceline_node_cpu_seconds", text, labels=NODE)
    memory = GaugeMetricFamily("paceline_node_resident_memory_bytes", "Memory.", labels=NODE)
    for node, seen in exposed.metrics.nodes.items():
        labels = [node, role_of(node)]
        _add_parts(parts, labels, seen)
        whole.add_metric(labels, seen.bpt_s)
        samples.add_metric(labels, seen.samples)
        speed.add_metric(labels, exposed.speeds.get(node, 0.0))
        cpu.add_metric(labels, seen.cpu_s)
        memory.add_metric(labels, seen.rss_bytes)
    text = "Processes started again, after a failure or by decision."
    restarts = CounterMetricFamily("paceline_node_restarts", text, labels=[*NODE, "cause"])
    for cause, counts in (("failure", exposed.restarts), ("decision", exposed.decided)):
        for node, count in counts.items():
            restarts.add_metric([node, role_of(node), cause], count)
    yield from (parts, whole, samples, speed, cpu, memory, restarts)


def _add_parts(parts: GaugeMetricFamily, labels: list[str], seen: NodeMetrics | Pace) -> None:
    """Add T^w, T^s, T^m and T^d."""
    parts.add_metric([*labels, "compute"], seen.compute_s)
    parts.add_metric([*labels, "server"], seen.server_s)
    parts.add_metric([*labels, "message"], seen.message_s)
    parts.add_metric([*labels, "data"], seen.data_s)


def _of_slowness(exposed: Exposed) -> Iterator[Metric]:
    """Yield what is slow."""
    text = "How many times as long as is usual for it a slow node or link takes; else absent."
    parts = GaugeMetricFamily("paceline_slow_ratio", text, labels=["culprit", "nodes"])
    for part in exposed.slow:
        if part.nodes:
            parts.add_metric([part.culprit, " - ".join(part.nodes)], part.ratio)
    yield parts


def _of_features(exposed: Exposed) -> Iterator[Metric]:
    """Figures of other features."""
    families = dict[str, GaugeMetricFamily | CounterMetricFamily]()
    for one in exposed.figures:
        kind = CounterMetricFamily if one.counts else GaugeMetricFamily
        family = families.get(one.name)
        if family is None:
            name, labels = f"paceline_{one.name}", [*one.labels]
            family = families[one.name] = kind(name, one.about, labels=labels)
        family.add_metric([*one.labels.values()], one.value)
    yield from families.values()


def _of_windows(seen: Observation) -> Iterator[Metric]:
    labels = [*NODE, "window"]
    text = "Mean time of a batch over a window: own work, servers' work, the wire."
    parts = GaugeMetricFamily(
        "paceline_node_window_batch_part_seconds", text, labels=[*labels, "part"]
    )
    text = "Mean wall time of a batch over a window, waits included."
    whole = GaugeMetricFamily("paceline_node_window_batch_seconds", text, labels=labels)
    text = "Mean batch size over a window."
    size = GaugeMetricFamily("paceline_node_window_batch_samples", text, labels=labels)
    text = "Mean batch size over own work, over a window."
    speed = GaugeMetricFamily("paceline_node_window_samples_per_second", text, labels=labels)
    nodes: list[WorkerSeen | ServerSeen] = [*seen.workers, *seen.servers]
    for node in nodes:
        for window, pace in (("short", node.short), ("long", node.long)):
            if pace is None:
                continue
            values = [node.node, role_of(node.node), window]
            _add_parts(parts, values, pace)
            whole.add_metric(values, pace.bpt_s)
            size.add_metric(values, pace.samples)
            speed.add_metric(values, pace.throughput)
    yield from (parts, whole, size, speed)


def _of_restarts(seen: Observation) -> Iterator[Metric]:
    if seen.pending_s is not None:
        text = "Time that a new node would wait for its place, as the platform says."
        yield GaugeMetricFamily("paceline_job_pending_seconds", text, value=seen.pending_s)
    text = "What a restart takes, by its parts."
    parts = GaugeMetricFamily("paceline_restart_part_seconds", text, labels=["role", "part"])
    for role, cost in (("worker", seen.worker_restart), ("server", seen.server_restart)):
        for part in RESTART_PARTS:
            parts.add_metric([role, part.removesuffix("_s")], getattr(cost, part))
    yield parts


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it overrides
        """Say nothing: a scrape is no event."""


class _HttpServer(ThreadingWSGIServer):
    """Server of at most `MAX_OPEN` connections: one more ends the oldest, which had its time."""

    daemon_threads = True
    request_queue_size = 128
    """Connections that the kernel holds until they are accepted, which is quick."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Open connections in the order in which they came; their threads remove them.
        self._open: dict[socket.socket, None] = {}
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        for oldest in list(self._open)[: 1 - MAX_OPEN]:
            self._open.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and leaves
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that is over."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: its client knows."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def address_of(job: JobDir) -> Path:
    """Return the path of a file with ``host:port`` of the endpoint."""
    return job.path / "metrics.address"


def token_of(job: JobDir) -> Path:
    """Return the path of a file with the token that a client must send; it opens nothing else."""
    return job.path / "metrics.token"


class Exporter:
    """Serves from its creation until `close`."""

    def __init__(self, job: JobDir, port: int) -> None:
        """Listen at ``port`` (0: any free one), and write down where.

        Raises:
            OSError: the port is taken.
        """
        self._collector = JobCollector()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._collector)
        app = _guarded(make_wsgi_app(registry), _token(job))
        self._server = make_server(HOST, port, app, _HttpServer, _Handler)
        self.address = f"{HOST}:{self._server.server_port}"
        fresh = address_of(job).with_suffix(".new")
        fresh.write_text(f"{self.address}\n")
        fresh.replace(address_of(job))
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="paceline-metrics", daemon=True
        )
        self._thread.start()

    def publish(self, exposed: Exposed) -> None:
        """Show this from now on."""
        self._collector.exposed = exposed

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _token(job: JobDir) -> bytes:
    """Write down the token of the endpoint, and return it.

    A client sends it in clear, and a squatter at the port of a dead master gets it. So it must not
    be the secret, nor tell it.
    """
    token = hmac.digest(job.secret(), b"paceline metrics", "sha256").hex().encode()
    path = token_of(job)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token + b"\n")
    return token


def _guarded(app: App, token: bytes) -> App:
    """Guard an app: those who have the token reach it; 401 for others."""
    expected = b"Bearer " + token

    def guarded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        got = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        if hmac.compare_digest(got, expected):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"the token is missing or wrong\n"]

    return guarded
