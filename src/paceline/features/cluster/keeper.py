"""Knowledge and decisions of a scheduler: the journal, and what follows from it."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from paceline.base.errors import PermanentError
from paceline.base.record_log import RecordLog
from paceline.features.cluster.book import AnyClusterRecord, ClusterBook, JobDecided
from paceline.features.cluster.folder import ClusterConfig, ClusterDir
from paceline.features.cluster.loads import CoreLoads
from paceline.features.cluster.policy.estimate import waits
from paceline.features.cluster.policy.facts import ClusterFacts, ClusterJob, HoldJob, fault
from paceline.features.cluster.policy.registry import SCHEDULERS

MOST_ENDS = 200
"""Ends of jobs that are simulated; how long the jobs behind them wait is not said."""
COMPACT_AT = 5_000
"""Records that are no longer needed, from which on the journal begins again without them."""

_decode: Callable[[bytes], AnyClusterRecord] = msgspec.msgpack.Decoder(AnyClusterRecord).decode
_log = logging.getLogger(__name__)


class ClusterKeeper:
    """The jobs of a cluster, on disk and in memory; nothing is believed that is not written.

    Raises:
        PermanentError: the journal is damaged, or jobs have what the cluster no longer has.
        JournalRefused: it cannot be read now.
    """

    def __init__(self, folder: ClusterDir, config: ClusterConfig) -> None:
        self.policy = SCHEDULERS.make(config.policy, config.parameters)
        self.book = ClusterBook(config)
        self.loads = CoreLoads(config.devices)
        #: Why jobs wait, by id.
        self.held: dict[str, str] = {}
        remedy = "move it away, and stop the jobs that `paceline ps` shows"
        self._journal = RecordLog(folder.journal, _decode, "a cluster", remedy)
        for record in self._journal.replay():
            self.book.apply(record)
        if missing := list(self.book.missing()):
            raise PermanentError(
                f"{', '.join(missing)}: not part of the cluster any more; start it with that, "
                "until these jobs are over"
            )

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def record(self, records: Iterable[AnyClusterRecord]) -> None:
        """Write records, then believe them.

        Raises:
            JournalRefused: the disk refuses them.
        """
        records = list(records)
        self._journal.append(records)
        for record in records:
            self.book.apply(record)
        if self._journal.num_records > COMPACT_AT + len(self.book.records()):
            self._journal.compact(self.book.records())

    def facts(self, now_s: float) -> ClusterFacts:
        """The cluster now."""
        return self.book.facts(now_s, self.loads.loads())

    async def waits(self, now_s: float, more: tuple[ClusterJob, ...] = ()) -> dict[str, float]:
        """Estimate how much longer jobs will wait for quota, with more jobs behind all others.

        In a thread: the simulation of a long queue takes seconds, in which jobs must start.
        """
        facts = self.facts(now_s)
        facts = msgspec.structs.replace(facts, jobs=(*facts.jobs, *more))
        return await asyncio.to_thread(waits, facts, self.policy.claims, most_ends=MOST_ENDS)

    def decide(self, now_s: float) -> None:
        """Ask the policy until it changes nothing more.

        Raises:
            JournalRefused: the disk refuses what it wants.
        """
        facts = self.facts(now_s)
        for _ in range(len(facts.jobs) + 2):
            acts = self.policy.decide(facts)
            self.held = {act.job_id: act.reason for act in acts if isinstance(act, HoldJob)}
            changes = [act for act in acts if not isinstance(act, HoldJob)]
            if not changes:
                return
            for act in changes:
                if wrong := fault(facts, act):
                    _log.error("act_refused act=%s error=%s", act, wrong)
                    return
                _log.info("decided %s %s: %s", type(act).__name__, act.job_id, act.reason)
                self.record([JobDecided(t=now_s, act=act)])
                facts = self.facts(now_s)
