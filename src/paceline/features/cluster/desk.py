"""Desk of a scheduler: what people ask, and its answers."""

import re
import time
from collections.abc import Callable

from paceline.base.errors import ConfigError
from paceline.base.jobdir import home
from paceline.features.cluster.answers import device_rows, queue_rows
from paceline.features.cluster.book import (
    AnyClusterRecord,
    CancelOrdered,
    JobEntry,
    JobOver,
    JobQueued,
)
from paceline.features.cluster.keeper import ClusterKeeper
from paceline.features.cluster.policy.facts import ClusterJob
from paceline.features.cluster.wire import (
    CancelJob,
    ClusterCall,
    ClusterReply,
    ExplainJob,
    GetDevices,
    GetQueue,
    JobAccepted,
    JobExplained,
    StopScheduler,
    SubmitJob,
    ToldLine,
)
from paceline.wire.client import Done
from paceline.wire.spec import ShareClass

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ClusterDesk:
    """Answers the calls of commands.

    Args:
        keeper: what the scheduler knows.
        changed: wakes the scheduler.
        stop: ends it.
    """

    def __init__(
        self, keeper: ClusterKeeper, changed: Callable[[], None], stop: Callable[[], None]
    ) -> None:
        self._keeper, self._changed, self._stop = keeper, changed, stop

    async def answer(self, call: ClusterCall) -> ClusterReply:
        match call:
            case SubmitJob():
                return await self._submit(call)
            case GetQueue():
                left_s = await self._keeper.waits(time.time())
                return queue_rows(self._keeper.book, self._keeper.held, left_s)
            case GetDevices():
                return device_rows(self._keeper.book.config, self._keeper.facts(time.time()))
            case CancelJob():
                return self._cancel(self._find(call.job))
            case ExplainJob():
                return self._explain(self._find(call.job))
            case StopScheduler():
                self._stop()
                return Done()

    async def _submit(self, call: SubmitJob) -> JobAccepted:
        """Queue a job.

        Raises:
            ConfigError: it could never start.
            TransientError: the disk refuses it.
        """
        if (known := self._keeper.book.entries.get(call.job_id)) is None:
            now_s, tenants = time.time(), [one.name for one in self._keeper.book.config.tenants]
            tenant = call.tenant or tenants[0]
            if tenant not in tenants or (not call.tenant and len(tenants) > 1):
                got = call.tenant or "none"
                raise ConfigError(f"--tenant: got {got}, expected one of {', '.join(tenants)}")
            if not _JOB_ID.fullmatch(call.job_id) or (home() / "jobs" / call.job_id).exists():
                raise ConfigError(f"got the id {call.job_id!r} for a job, expected a fresh one")
            job = ClusterJob(
                job_id=call.job_id,
                tenant=tenant,
                asked=self._asked(call),
                size=call.spec.workers.count,
                one_node=call.one_node,
                expected_s=call.expected_s,
                submitted_s=now_s,
            )
            if refusal := self._keeper.policy.refusal(self._keeper.facts(now_s), job):
                raise ConfigError(f"the job can never start: {refusal}")
            wait_s = (await self._keeper.waits(now_s, (job,))).get(job.job_id)
            # The same call may have come again meanwhile, and have been faster.
            if call.job_id not in self._keeper.book.entries:
                self._keeper.record([JobQueued(t=now_s, job=job, spec=call.spec, wait_s=wait_s)])
                self._changed()
            return JobAccepted(job_id=job.job_id, wait_s=wait_s)
        return JobAccepted(job_id=known.job.job_id, wait_s=None)

    def _asked(self, call: SubmitJob) -> ShareClass:
        """The class that a job can have.

        Raises:
            ConfigError: it cannot have the one that is asked for.
        """
        if call.spec.run_as != "program" or not self._keeper.policy.shares:
            return call.asked
        if call.asked == "opportunistic":
            raise ConfigError(
                "--share: got opportunistic for a program, which has no gates to be held at; make "
                "it a script or a module, or have it guaranteed"
            )
        return "guaranteed"

    def _find(self, name: str) -> JobEntry:
        """The job of an id, or of its beginning.

        Raises:
            ConfigError: there is none, or there are several.
        """
        entries = self._keeper.book.entries
        found = [name] if name in entries else [one for one in entries if one.startswith(name)]
        if len(found) != 1:
            listed = ", ".join(found or entries) or "none"
            raise ConfigError(f"got the job {name!r}, expected one of {listed}")
        return entries[found[0]]

    def _cancel(self, entry: JobEntry) -> Done:
        job_id, now_s = entry.job.job_id, time.time()
        if entry.over is not None:
            return Done(error=f"job {job_id} is over: {entry.over.how}")
        records: list[AnyClusterRecord] = [CancelOrdered(t=now_s, job_id=job_id)]
        if entry.job.kind is None:
            records.append(JobOver(t=now_s, job_id=job_id, how="never started", finished=False))
        self._keeper.record(records)
        self._changed()
        return Done()

    def _explain(self, entry: JobEntry) -> JobExplained:
        lines = [ToldLine(t, text) for t, text in entry.told()]
        if reason := self._keeper.held.get(entry.job.job_id):
            lines.append(ToldLine(time.time(), f"waits: {reason}"))
        return JobExplained(job_id=entry.job.job_id, lines=tuple(lines))
