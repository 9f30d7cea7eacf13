"""All jobs of a cluster as its journal has them: pure, from records to facts and words."""

import statistics
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from paceline.features.cluster.folder import ClusterConfig
from paceline.features.cluster.policy.facts import (
    ChangingAct,
    ClusterDevice,
    ClusterFacts,
    ClusterJob,
    ReleaseDevices,
    ReserveDevices,
    StartJob,
    UpgradeJob,
    changed,
)
from paceline.wire.spec import JobSpec

MAX_OVER = 200
"""Jobs that are over and are remembered: for people, and for how long a job usually runs."""
NODE = "local"
"""The machine that all devices are part of."""


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of the journal's records; names and fields stay."""

    t: float
    """Unix time."""


class JobQueued(ClusterRecord, frozen=True, kw_only=True):
    """A job was submitted."""

    job: ClusterJob
    spec: JobSpec
    wait_s: float | None
    """Seconds that it was expected to wait for quota."""

    @property
    def job_id(self) -> str:
        """Id of the submitted job."""
        return self.job.job_id


class JobDecided(ClusterRecord, frozen=True, kw_only=True):
    """The policy has ordered something; written before it is done."""

    act: ChangingAct

    @property
    def job_id(self) -> str:
        """Id of the job that the order concerns."""
        return self.act.job_id


class JobLaunched(ClusterRecord, frozen=True, kw_only=True):
    """The job's master has answered."""

    job_id: str


class CancelOrdered(ClusterRecord, frozen=True, kw_only=True):
    """Order to cancel a job: somebody does not want it any more."""

    job_id: str


class JobOver(ClusterRecord, frozen=True, kw_only=True):
    """The job has ended, or will never start."""

    job_id: str
    how: str
    """End of the job, in words."""
    finished: bool
    """Whether the job did all that it was started for."""


AnyClusterRecord = JobQueued | JobDecided | JobLaunched | CancelOrdered | JobOver


class JobEntry:
    """Knowledge about one job."""

    def __init__(self, queued: JobQueued) -> None:
        self.job, self.spec = queued.job, queued.spec
        self.records: list[AnyClusterRecord] = [queued]
        self.launched = self.cancelled = False
        self.over: JobOver | None = None

    @property
    def ran_s(self) -> float | None:
        """Seconds that the job ran; None: it did not, or not to its end."""
        if self.over is None or not self.over.finished or not self.job.started_s:
            return None
        return self.over.t - self.job.started_s

    def apply(self, record: AnyClusterRecord) -> None:
        """Take in a record of this job."""
        self.records.append(record)
        match record:
            case JobQueued():
                pass  # the first one has made this
            case JobDecided():
                self.job = changed(self.job, record.act, record.t)
            case JobLaunched():
                self.launched = True
            case CancelOrdered():
                self.cancelled = True
            case JobOver():
                self.over = record
            case _:
                assert_never(record)

    def why(self) -> str:
        """Say why the job runs as it does; empty: it does not."""
        decided = (one for one in reversed(self.records) if isinstance(one, JobDecided))
        return next((one.act.reason for one in decided), "")

    def told(self) -> Iterator[tuple[float, str]]:
        """Yield what happened, in words."""
        for record in self.records:
            yield record.t, self._words(record)

    def _words(self, record: AnyClusterRecord) -> str:
        match record:
            case JobQueued():
                job, wait_s = record.job, record.wait_s
                told = f"submitted by {job.tenant}: {job.asked}, {job.size} devices"
                return told if wait_s is None else f"{told}, expected to wait {wait_s:.0f} s"
            case JobDecided(act=act):
                return _decision(act, record.t - self.job.submitted_s)
            case JobLaunched():
                return "its master answers"
            case CancelOrdered():
                return "cancelled"
            case JobOver():
                return record.how
            case _:
                assert_never(record)


def _decision(act: ChangingAct, waited_s: float) -> str:
    match act:
        case StartJob():
            told = f"started on {', '.join(act.devices)} as {act.kind}, after {waited_s:.0f} s"
        case UpgradeJob():
            told = "upgraded to guaranteed"
        case ReserveDevices():
            told = f"reserves {', '.join(act.devices)}"
        case ReleaseDevices():
            told = "gives its reservation back"
        case _:
            assert_never(act)
    return f"{told}: {act.reason}"


class ClusterBook:
    """The jobs of one cluster."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        #: Jobs by id, in the order of submission.
        self.entries: dict[str, JobEntry] = {}

    def apply(self, record: AnyClusterRecord) -> None:
        """Take in a record; one of a job that is forgotten changes nothing."""
        if isinstance(record, JobQueued):
            self.entries[record.job_id] = JobEntry(record)
        elif (entry := self.entries.get(record.job_id)) is not None:
            entry.apply(record)
            if isinstance(record, JobOver):
                self._forget()

    def _forget(self) -> None:
        over = [job_id for job_id, entry in self.entries.items() if entry.over]
        for job_id in over[:-MAX_OVER]:
            del self.entries[job_id]

    def alive(self) -> list[JobEntry]:
        """The jobs that wait or run."""
        return [entry for entry in self.entries.values() if entry.over is None]

    def records(self) -> list[AnyClusterRecord]:
        """Return all that is remembered, as records from which it can be made again."""
        return [record for entry in self.entries.values() for record in entry.records]

    def facts(self, now_s: float, loads: dict[str, float]) -> ClusterFacts:
        """The cluster, for a policy."""
        ran_s = [entry.ran_s for entry in self.entries.values() if entry.ran_s is not None]
        facts = ClusterFacts(
            now_s=now_s,
            tenants=self.config.tenants,
            devices=tuple(
                ClusterDevice(name, NODE, loads.get(name, 0.0)) for name in self.config.devices
            ),
            jobs=tuple(entry.job for entry in self.alive()),
        )
        return msgspec.structs.replace(facts, usual_s=statistics.median(ran_s)) if ran_s else facts

    def missing(self) -> Iterable[str]:
        """Yield what jobs that wait or run have, and the cluster no longer."""
        tenants = {tenant.name for tenant in self.config.tenants}
        for entry in self.alive():
            job = entry.job
            if job.tenant not in tenants:
                yield f"tenant {job.tenant} of {job.job_id}"
            for name in {*job.devices, *job.reserved} - set(self.config.devices):
                yield f"device {name} of {job.job_id}"
