"""The scheduler's loop: facts in, decisions into the journal, and only then jobs started."""

import asyncio
import logging
import time

import msgspec

from paceline.base.errors import PacelineError
from paceline.base.features import is_installed
from paceline.base.jobdir import JobDir, home
from paceline.base.record_log import JournalRefused
from paceline.features.cluster.book import AnyClusterRecord, JobEntry, JobLaunched, JobOver
from paceline.features.cluster.desk import ClusterDesk
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.keeper import ClusterKeeper
from paceline.features.cluster.running import kind_of, look, on_devices, start_granted, tell_job
from paceline.features.cluster.wire import ClusterCall
from paceline.wire.client import Call, FeatureCall, StopJob
from paceline.wire.codec import decoder, encode
from paceline.wire.control import CallServer

TICK_S = 0.25
"""Seconds between looks at running jobs."""
DECIDE_S = 1.0
"""Seconds between questions to the policy while time alone changes waits and loads."""
SHARING = "sharing"
"""Feature whose jobs may become guaranteed while they run; without it no job shares a device."""

_log = logging.getLogger(__name__)


class ClusterService:
    """The scheduler of one cluster; the caller holds the lock of its folder."""

    def __init__(self, folder: ClusterDir, config: ClusterConfig) -> None:
        """Read the journal; raises as `ClusterKeeper`."""
        self._folder = folder
        self._keeper = ClusterKeeper(folder, config)
        #: What is under way for a job: its start, or the wish to end it.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Jobs that live, as of this turn.
        self._living: set[str] = set()
        #: Jobs whose master knows that they are guaranteed, as far as this scheduler has heard.
        self._upgraded: set[str] = set()
        self._wake, self._stopping = asyncio.Event(), False
        self._decided_s = 0.0

    async def run(self) -> None:
        """Schedule until the order to stop; jobs go on then."""
        desk = ClusterDesk(self._keeper, self._wake.set, self.stop_nowait)
        server = CallServer(self._folder.secret(), desk.answer, decoder(ClusterCall))
        self._folder.make_run_dir()
        await server.start(path=self._folder.socket)
        try:
            self._tick()
            self._folder.settle()
            while not self._stopping:
                self._tick()
                try:
                    await asyncio.wait_for(self._wake.wait(), TICK_S)
                except TimeoutError:
                    continue
                self._wake.clear()
                self._decided_s = 0.0
        finally:
            await server.stop()
            self._folder.remove_run_dir()
            await asyncio.gather(*self._tasks.values())
            self._keeper.close()

    def stop_nowait(self) -> None:
        """Leave after the jobs that are being started."""
        self._stopping = True
        self._wake.set()

    def _tick(self) -> None:
        now_s = time.time()
        self._keeper.loads.sample(now_s)
        try:
            self._look_at_jobs(now_s)
            if not 0.0 <= now_s - self._decided_s < DECIDE_S:
                self._keeper.decide(now_s)
                self._decided_s = now_s
        except JournalRefused as error:
            # Nothing is done that is not written down; the next look tries again.
            _log.warning("journal_refused error=%s", error)
            return
        for entry in self._keeper.book.alive():
            self._carry_out(entry)

    def _look_at_jobs(self, now_s: float) -> None:
        """See which jobs live, and note how others have ended."""
        self._living.clear()
        for entry in self._keeper.book.alive():
            job_id = entry.job.job_id
            if not entry.launched or job_id in self._tasks:
                continue
            seen = look(_dir(job_id))
            if seen.lives:
                self._living.add(job_id)
            elif seen.how:
                over = JobOver(t=now_s, job_id=job_id, how=seen.how, finished=seen.finished)
                self._keeper.record([over])
                self._upgraded.discard(job_id)
                self._decided_s = 0.0

    def _carry_out(self, entry: JobEntry) -> None:
        """Begin what is due for a job, one thing at a time."""
        job, folder = entry.job, _dir(entry.job.job_id)
        if job.kind is None or job.job_id in self._tasks:
            return
        if entry.launched and entry.cancelled:
            work = self._tell(folder, StopJob())
        elif not entry.launched or job.job_id not in self._living:
            work = self._start(entry, folder)
        elif self._is_due_to_upgrade(entry):
            # Also after a start: what was granted since then is not in the job's spec.
            work = self._tell(folder, _upgrade())
        else:
            return
        task = asyncio.create_task(work)
        self._tasks[job.job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.job_id, None))

    def _is_due_to_upgrade(self, entry: JobEntry) -> bool:
        """Tell whether a job is guaranteed, and its master has not heard of it."""
        is_new = entry.job.job_id not in self._upgraded
        is_guaranteed = kind_of(entry.spec, entry.job) == "guaranteed"
        return is_new and is_guaranteed and is_installed(SHARING)

    async def _start(self, entry: JobEntry, folder: JobDir) -> None:
        """Start a job, or see that one that was started goes on."""
        job_id, launched = entry.job.job_id, entry.launched
        spec = on_devices(entry.spec, entry.job)
        try:
            await asyncio.to_thread(start_granted, folder, spec, launched=launched)
        except (PacelineError, OSError) as error:
            how = f"did not start: {error}"
            over = JobOver(t=time.time(), job_id=job_id, how=how, finished=False)
            await self._record_at_last(over)
        else:
            if not launched:
                await self._record_at_last(JobLaunched(t=time.time(), job_id=job_id))

    async def _tell(self, folder: JobDir, call: Call) -> None:
        """Tell a job what is decided; the next turn repeats it until the job has done so."""
        try:
            await asyncio.to_thread(tell_job, folder, call)
        except (PacelineError, OSError) as error:
            _log.info("not_told job=%s call=%s error=%s", folder.job_id, call, error)
        else:
            if isinstance(call, FeatureCall):
                self._upgraded.add(folder.job_id)
                return
        await asyncio.sleep(DECIDE_S)

    async def _record_at_last(self, record: AnyClusterRecord) -> None:
        """Write what has happened, as soon as the disk takes it."""
        while True:
            try:
                return self._keeper.record([record])
            except JournalRefused as error:
                _log.warning("journal_refused error=%s", error)
                if self._stopping:  # the next scheduler sees the job's folder
                    return None
                await asyncio.sleep(DECIDE_S)


def _dir(job_id: str) -> JobDir:
    return JobDir(home() / "jobs" / job_id)


def _upgrade() -> FeatureCall:
    """Return the call that makes a running job the guaranteed one of its devices."""
    # Not at the top: the scheduler works without that feature, too.
    from paceline.features.sharing.wire import UpgradeShare

    return FeatureCall(feature=SHARING, body=msgspec.Raw(encode(UpgradeShare())))
