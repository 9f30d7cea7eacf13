"""What the master tells people and machines of the job as a whole: status, metrics, Prometheus."""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from paceline.base.jobdir import JobDir
from paceline.jobs.jsonl import LineFile, last_line
from paceline.jobs.outcome import Outcome
from paceline.master.controller import Controller
from paceline.master.ending import Ending
from paceline.master.jobnow import steps_done
from paceline.master.monitor import Metrics, Monitor
from paceline.master.status import count_committed, count_kept, count_total, describe
from paceline.policy.straggler.observation import Observation
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.training import MasterState
from paceline.wire.client import JobStatus
from paceline.wire.events.base import Event
from paceline.wire.events.job import NoMetricsEndpointEvent

if TYPE_CHECKING:
    from paceline.master.exporter import Exporter

METRICS_BYTES = 64 << 20
"""A metrics file that is larger is put aside, the one that lay there is dropped, and lines come
half as often from then on: two files hold more of a job the longer it runs."""


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """What one scrape shows."""

    job_id: str
    metrics: Metrics
    steps: int
    speeds: dict[str, float]
    """Samples per second by worker, where measured."""
    restarts: dict[str, int]
    """By node, those that cost budget."""
    decided: dict[str, int]
    """By node, those of KILL_RESTART."""
    decisions: int
    actions: dict[str, int]
    observation: Observation | None = None
    """As a solution sees the job; None: nobody trains."""


def last_measured(job: JobDir) -> Metrics | None:
    """Read what a master of this job measured last; None: nothing, or in another version."""
    if (line := last_line(job.metrics)) is None:
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=Metrics)
    return None


class Reporting:
    """Measures once per second; the metrics file, and the endpoint where one was asked for."""

    def __init__(
        self, job: JobDir, state: MasterState, members: Membership, monitor: Monitor
    ) -> None:
        self._job, self._launched_s = job, job.launched_s()
        self._state, self._members, self._monitor = state, members, monitor
        self._file = LineFile(job.metrics)
        #: Every measurement at first.
        self._line_every_s = self._next_line_s = 0.0
        if (measured := last_measured(job)) is not None:
            monitor.go_on_from(measured)
        self._exporter: Exporter | None = None

    def open_endpoint(self, port: int, tell: Callable[[Event], None]) -> None:
        """Answer Prometheus from now on; where the port is taken, only say so."""
        # Most jobs do without it, and a master is to start soon.
        from paceline.master.exporter import Exporter

        try:
            self._exporter = Exporter(self._job, port)
        except OSError as error:
            tell(NoMetricsEndpointEvent(port=port, error=str(error.strerror)))

    def measure(
        self,
        now_s: float,
        unix_s: float,
        controller: Controller | None,
        observe: Callable[[], Observation | None],
    ) -> None:
        """Count what is in the model, and write all of it down."""
        committed = count_committed(self._state)
        self._monitor.committed(committed, now_s)
        self._monitor.keep(self._members.nodes)
        metrics = self._monitor.metrics(unix_s, committed, self._state.epoch_no)
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + self._line_every_s
            self._write(metrics)
        if self._exporter is not None:
            self._expose(self._exporter, metrics, controller, observe())

    def measure_last(self, unix_s: float) -> None:
        """Write down what the job has come to."""
        self._monitor.keep(self._members.nodes)
        committed = count_committed(self._state)
        self._write(self._monitor.metrics(unix_s, committed, self._state.epoch_no))

    def _write(self, metrics: Metrics) -> None:
        self._file.add(metrics)
        self._file.flush()
        if self._file.num_bytes > METRICS_BYTES:
            self._file.put_aside()
            self._line_every_s = 2 * max(self._line_every_s, 1.0)

    def _expose(
        self,
        exporter: "Exporter",
        metrics: Metrics,
        controller: Controller | None,
        observation: Observation | None,
    ) -> None:
        nodes = self._members.nodes.values()
        speeds = {name: self._monitor.speed(name) for name in metrics.nodes}
        exporter.publish(
            Exposed(
                job_id=self._job.job_id,
                metrics=metrics,
                steps=steps_done(self._state, self._members, metrics.committed),
                speeds={name: speed for name, speed in speeds.items() if speed is not None},
                restarts={node.name: node.past.restarts for node in nodes},
                decided={node.name: node.past.decided for node in nodes},
                decisions=controller.num_decisions if controller else 0,
                actions=dict(controller.num_actions) if controller else {},
                observation=observation,
            )
        )

    def status(self, *, num_events: int, ending: Ending | None) -> JobStatus:
        """The job as it is now."""
        return describe(
            self._job.job_id,
            self._state,
            self._members,
            self._monitor,
            master_pid=os.getpid(),
            started_s=self._launched_s,
            num_events=num_events,
            ending=ending,
        )

    def outcome(self, ending: Ending) -> Outcome:
        """The job as it has ended."""
        kept = count_kept(self._state)
        return Outcome(
            state=ending.state,
            exit_code=ending.exit_code,
            end=ending.end,
            error=ending.error,
            traceback=ending.traceback,
            jct_s=max(0.0, ending.ended_s - self._launched_s),
            # What members hold beyond their last word is in the cut that they made at the end.
            committed=max(count_committed(self._state), kept),
            total=count_total(self._state) or 0,
            kept=kept,
            joined=self._members.joined,
            short_steps=self._state.holder.short_steps,
            left_out=self._state.holder.left_out,
        )

    def close(self) -> None:
        """Stop answering Prometheus."""
        if self._exporter is not None:
            self._exporter.close()
