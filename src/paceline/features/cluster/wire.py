"""Questions to the scheduler of a cluster, and its answers."""

import msgspec

from paceline.wire.client import Done
from paceline.wire.messages.base import Message
from paceline.wire.spec import JobSpec, ShareClass


class SubmitJob(Message, frozen=True):
    """Queue a job; answer: JobAccepted. Said again with the same id it changes nothing."""

    job_id: str
    tenant: str
    """Empty: the only one there is."""
    asked: ShareClass
    one_node: bool
    expected_s: float | None
    spec: JobSpec


class GetQueue(Message, frozen=True):
    """Answer: QueueRows."""


class GetDevices(Message, frozen=True):
    """Answer: DeviceRows."""


class CancelJob(Message, frozen=True):
    """Take a job out of the queue, or stop it; ``job``: its id, or the beginning; answer: Done."""

    job: str


class ExplainJob(Message, frozen=True):
    """Answer: JobExplained."""

    job: str


class StopScheduler(Message, frozen=True):
    """End the scheduler; jobs go on; answer: Done."""


class JobAccepted(Message, frozen=True):
    """The job is in the journal."""

    job_id: str
    wait_s: float | None
    """Seconds that the job will wait for quota, as far as can be said; None: not known."""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job. Its names are those of ``--json``: they stay."""

    job_id: str
    tenant: str
    state: str
    """waiting, running, or how it ended."""
    asked: str
    kind: str
    """guaranteed or opportunistic; empty: it has not started."""
    size: int
    devices: tuple[str, ...]
    since_s: float
    """Unix time: of its submission, start or end."""
    wait_s: float | None
    """Further seconds that the job will wait for quota; None: not known, or it does not wait."""
    why: str
    """Reason why it waits, runs as it does, or ended."""


class QueueRows(Message, frozen=True):
    """All jobs that wait or run, and the newest that are over."""

    rows: tuple[QueueRow, ...]


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device. Its names are those of ``--json``: they stay."""

    device: str
    node: str
    load: float
    """The part of the last 10 s in which it was busy."""
    guaranteed: str
    """The job that it is guaranteed to; empty: none."""
    opportunistic: tuple[str, ...]
    reserved: str
    """The job that has reserved it; empty: none."""


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant."""

    tenant: str
    quota: int
    used: int


class DeviceRows(Message, frozen=True):
    """The cluster now."""

    policy: str
    devices: tuple[DeviceRow, ...]
    tenants: tuple[TenantRow, ...]


class ToldLine(msgspec.Struct, frozen=True):
    """Line in words about what happened to a job."""

    t: float
    """Unix time."""
    text: str


class JobExplained(Message, frozen=True):
    """All that was decided about a job, and why."""

    job_id: str
    lines: tuple[ToldLine, ...]


ClusterCall = SubmitJob | GetQueue | GetDevices | CancelJob | ExplainJob | StopScheduler
ClusterReply = JobAccepted | QueueRows | DeviceRows | JobExplained | Done
