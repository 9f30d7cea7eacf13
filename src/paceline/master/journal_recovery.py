"""Recovery of what former masters left: their journal, their agents, sizes that were ordered."""

from typing import assert_never

from paceline.jobs.resize import read_resize
from paceline.master.feature_parts import FeatureParts
from paceline.master.feature_record import FeatureKept
from paceline.master.job_clock import JobClock, MasterStarted
from paceline.master.journal import JournalRecord, OtherRecords
from paceline.master.keeping import Keeping
from paceline.master.kept_records import JournalTerm, SeatsSet
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts
from paceline.master.restarts import StartMeasured
from paceline.master.training import Training
from paceline.protocol.nodes.node import Act, JobEnded, MemberRecords
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.resizing import NodesResized, NodesResizing, NodesSized
from paceline.protocol.records import Records
from paceline.protocol.snapshot import Snapshot, restore, take

COMPACT_AT = 50_000
"""Records in the journal beyond which it begins again from a snapshot."""


class JournalRecovery:
    """Brings the machines of a fresh master to where the journal ends, and keeps that short."""

    def __init__(
        self,
        parts: MasterParts,
        clock: JobClock,
        training: Training,
        sizes: NodeSizes,
        features: FeatureParts,
        keeping: Keeping,
    ) -> None:
        self._job, self._spec, self._outbox = parts.job, parts.spec, parts.outbox
        self._members, self._monitor = parts.members, parts.monitor
        self._clock, self._training = clock, training
        self._sizes, self._features, self._keeping = sizes, features, keeping

    def replay(self) -> tuple[bool, bool]:
        """Apply the journal; whether there was one, and whether the job had ended with it.

        Raises:
            PermanentError: the journal is damaged.
        """
        restarted = ended = False
        for record in self._outbox.journal.replay():
            restarted, ended = True, isinstance(record, JobEnded)
            if ended:
                self._training.edge.ended()
            self._apply(record)
            self._keeping.apply(record)
        self._keeping.begin()
        self._sizes.begin()
        if not restarted:
            self._outbox.record(self._clock.started)
        return restarted, ended

    def _apply(self, record: JournalRecord) -> None:
        if isinstance(record, Records):
            self._training.state.apply(record)
            return
        if isinstance(record, MemberRecords):
            self._members.roster.apply(record)
            return
        self._apply_other(record)

    def _apply_other(self, record: OtherRecords) -> None:
        match record:
            case MasterStarted():
                self._clock.go_on(record)
            case Snapshot():
                restore(self._training.state, record)
            case StartMeasured():
                self._monitor.restarts.apply(record)
            case NodesResizing() | NodesResized() | NodesSized():
                self._sizes.apply(record)
            case FeatureKept():
                self._features.apply(record)
            case JournalTerm() | SeatsSet():
                pass  # they are about the journal itself: `Keeping` has them
            case _:
                assert_never(record)

    def resize(self) -> list[Act]:
        """Take in what `paceline run --resume` says about the number of nodes."""
        resize = read_resize(self._job.resize)
        if resize is None:
            return []
        self._outbox.later(self._job.resize.unlink)  # said twice it is the same
        if resize.workers is not None:
            self._sizes.scaled()
        return NodeOrders(self._members).resize(resize.workers, resize.servers)

    def compact(self) -> None:
        """Begin a long journal again from a snapshot."""
        if self._outbox.journal.num_records > COMPACT_AT:
            self._outbox.compact(self._snapshot)

    def _snapshot(self) -> list[JournalRecord]:
        measured = self._monitor.restarts.measured()
        kept = [
            *self._members.roster.snapshot(),
            *measured,
            *self._sizes.records,
            *self._features.records(),
            *self._keeping.records(),
        ]
        return [self._clock.started, take(self._training.state), *kept]
