"""What the master tells people and machines of the job as a whole: status, metrics, Prometheus."""

import contextlib
import os
from collections.abc import Callable

import msgspec

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import read_trained_s
from paceline.jobs.jsonl import LineFile, last_line
from paceline.jobs.outcome import Outcome
from paceline.master.ending import Ending
from paceline.master.exposed import Exposed, Exposing
from paceline.master.keeping import Keeping
from paceline.master.monitor import Metrics
from paceline.master.parts import MasterParts
from paceline.master.status import count_committed, count_kept, describe, known_total
from paceline.policy.observation import Observation
from paceline.protocol.training import MasterState
from paceline.wire.client import JobStatus, Shown

METRICS_BYTES = 64 << 20
"""A metrics file that is larger is put aside, the one that lay there is dropped, and lines come
half as often from then on: two files hold more of a job the longer it runs."""


def last_measured(job: JobDir) -> Metrics | None:
    """Read what a master of this job measured last; None: nothing, or in another version."""
    if (line := last_line(job.metrics)) is None:
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=Metrics)
    return None


class Reporting:
    """Measures once per second: the metrics file, and what Prometheus is shown."""

    def __init__(
        self,
        parts: MasterParts,
        state: MasterState,
        shown: Callable[[], Shown],
        measured: Callable[[Callable[[], Exposed]], None],
        keeping: Keeping,
    ) -> None:
        self.keeping = keeping
        self._shown, self._measured = shown, measured
        job, members, monitor = parts.job, parts.members, parts.monitor
        self._job, self._launched_s = job, job.launched_s()
        self._state, self._members, self._monitor = state, members, monitor
        self._file = LineFile(job.metrics)
        #: Every measurement at first.
        self._line_every_s = self._next_line_s = 0.0
        if (before := last_measured(job)) is not None:
            monitor.go_on_from(before)
        self._exposing = Exposing(job, state, members, monitor)

    def measure(
        self, now_s: float, unix_s: float, observe: Callable[[], Observation | None]
    ) -> None:
        """Count what is in the model, and write all of it down."""
        committed = count_committed(self._state)
        self._monitor.committed(committed, now_s)
        self._monitor.keep(self._members.roster.nodes)
        metrics = self._monitor.metrics(unix_s, committed, self._state.epoch_no)
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + self._line_every_s
            self._write(metrics)
        self._measured(lambda: self._exposing.figures(metrics, observe, self._shown()))

    def measure_last(self, unix_s: float) -> None:
        """Write down what the job has come to."""
        self._monitor.keep(self._members.roster.nodes)
        committed = count_committed(self._state)
        self._write(self._monitor.metrics(unix_s, committed, self._state.epoch_no))

    def _write(self, metrics: Metrics) -> None:
        self._file.add(metrics)
        self._file.flush()
        if self._file.num_bytes > METRICS_BYTES:
            self._file.put_aside()
            self._line_every_s = 2 * max(self._line_every_s, 1.0)

    def status(self, *, num_events: int, ending: Ending | None) -> JobStatus:
        """The job as it is now."""
        status = describe(
            self._job.job_id,
            self._state,
            self._members,
            self._monitor,
            master_pid=os.getpid(),
            started_s=self._launched_s,
            num_events=num_events,
            ending=ending,
        )
        shown = self._shown()
        nodes = (
            msgspec.structs.replace(node, shown=shown.nodes.get(node.node, {}))
            for node in status.nodes
        )
        return msgspec.structs.replace(
            status,
            nodes=tuple(nodes),
            waits_for=self.keeping.waits_for or status.waits_for,
            kept_on=self.keeping.hosts,
            slow=shown.slow,
            relieved=shown.relieved,
            logged=shown.logged,
            notes=(*self.keeping.notes, *shown.notes),
            tables=shown.tables,
        )

    def outcome(self, ending: Ending) -> Outcome:
        """The job as it has ended; after `measure_last`."""
        kept = count_kept(self._state)
        return Outcome(
            state=ending.state,
            exit_code=ending.exit_code,
            end=ending.end,
            error=ending.error,
            traceback=ending.traceback,
            jct_s=max(0.0, ending.ended_s - self._launched_s),
            training_s=read_trained_s(self._job),
            # What members hold beyond their last word is in the cut that they made at the end.
            committed=max(count_committed(self._state), kept),
            total=known_total(self._state, finished=ending.state == "finished") or 0,
            kept=kept,
            joined=self._members.roster.joined,
            short_steps=self._state.holder.short_steps,
            left_out=self._state.holder.left_out,
        )
