"""Unit tests of the metrics file, which takes bounded room."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.history import read_last_metrics, read_metrics
from paceline.jobs.jsonl import before
from paceline.jobs.outcome import End
from paceline.master import reporting
from paceline.master.ending import Ending
from paceline.master.keeping import Keeping
from paceline.master.monitor import Monitor
from paceline.master.parts import MasterParts
from paceline.master.reporting import Reporting
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.training import MasterState
from paceline.wire.client import Shown
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.spec import RestartSpec


class Job:
    """One worker that reports, measured every second."""

    def __init__(self, path: Path) -> None:
        self.job, self.monitor = JobDir(path), Monitor()
        self.job.events.write_text('{"t":-5.0,"event":"launched"}\n')
        self.members = Membership(num_workers=1, num_servers=0, restart=RestartSpec())
        state = MasterState(ServerHolder(), mode="bsp", samples="exactly-once")
        parts = cast(
            MasterParts,
            SimpleNamespace(job=self.job, members=self.members, monitor=self.monitor),
        )
        alone = cast(Keeping, SimpleNamespace(waits_for="", hosts=(), notes=()))
        self.reporting = Reporting(parts, state, Shown, lambda _: None, alone)
        self.now_s = 0.0

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.now_s += 1.0
            for name in ("worker-0", "worker-9"):
                facts = NodeFacts(inc=1, samples=int(self.now_s), steps=1)
                self.monitor.heartbeat(name, facts, self.now_s)
            self.reporting.measure(self.now_s, self.now_s, lambda: None)


def test_who_is_no_node_of_the_job_is_not_written(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.seconds(3)
    points = read_metrics(job.job.metrics)
    assert [(point.t, list(point.nodes)) for point in points] == [
        (second, ["worker-0"]) for second in (1.0, 2.0, 3.0)
    ]


def test_a_job_s_time_counts_from_its_launch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.seconds(3)
    ending = Ending(end=End.FINISHED, ended_s=job.now_s)
    assert job.reporting.outcome(ending).jct_s == 8.0
    assert job.reporting.status(num_events=1, ending=ending).started_s == -5.0


def test_a_long_job_s_metrics_take_bounded_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "METRICS_BYTES", 4000)
    job = Job(tmp_path)
    job.seconds(400)
    newer, older = job.job.metrics, before(job.job.metrics)
    assert newer.stat().st_size + older.stat().st_size < 3 * 4000
    times = [point.t for point in read_metrics(newer)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps == sorted(gaps) and gaps[0] >= 2.0, "the longer the job, the fewer lines a second"
    assert times[-1] > 400 - 2 * gaps[-1]
    newer.unlink(missing_ok=True)
    last = read_last_metrics(newer)
    assert last is not None and last.t in times, "while the file is begun anew"


def test_the_newest_measurement_is_found_however_long_its_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.seconds(3)
    last = read_last_metrics(job.job.metrics, tail_bytes=16)
    assert last is not None and last.t == 3.0


def test_a_resumed_job_counts_on_and_its_last_line_has_all(tmp_path: Path) -> None:
    first = Job(tmp_path)
    first.seconds(3)
    first.monitor.heartbeat("worker-0", NodeFacts(inc=1, samples=5), 3.1)
    first.reporting.measure_last(3.2)
    second = Job(tmp_path)
    second.monitor.heartbeat("worker-0", NodeFacts(inc=2, samples=4), 1.0)
    second.reporting.measure_last(9.0)
    points = read_metrics(first.job.metrics)
    assert [(p.t, p.nodes["worker-0"].samples) for p in points[-2:]] == [(3.2, 5), (9.0, 9)]


def test_a_line_of_another_version_is_no_beginning(tmp_path: Path) -> None:
    JobDir(tmp_path).metrics.write_text('{"t":"soon"}\n')
    job = Job(tmp_path)
    job.seconds(1)
    assert job.monitor.metrics(0.0, 0).nodes["worker-0"].samples == 1
