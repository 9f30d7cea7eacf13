"""The master's journal: what it must know of the job after its own death, in the order of change.

A loss of power may take its newest records, and everything else on that machine; the job then goes
on from a cut. Only where workers on other machines outlive such a loss could samples be granted a
second time, and the leader stops the job rather than let them into the model twice.
"""

from pathlib import Path

import msgspec

from paceline.base.record_log import RecordLog
from paceline.master.feature_record import FeatureKept, kept_before
from paceline.master.job_clock import MasterStarted
from paceline.master.kept_records import JournalTerm, SeatsSet
from paceline.master.restarts import StartMeasured
from paceline.protocol.nodes.node import MemberRecords
from paceline.protocol.nodes.resizing import NodesResized, NodesResizing, NodesSized
from paceline.protocol.records import Records
from paceline.protocol.snapshot import Snapshot

OtherRecords = (
    StartMeasured
    | Snapshot
    | MasterStarted
    | NodesResizing
    | NodesResized
    | NodesSized
    | FeatureKept
    | JournalTerm
    | SeatsSet
)
"""Records of neither the training nor the nodes' lives."""
JournalRecord = Records | MemberRecords | OtherRecords


_decoder: msgspec.msgpack.Decoder[JournalRecord] = msgspec.msgpack.Decoder(JournalRecord)


def decode(data: bytes) -> JournalRecord:
    """Read a record, also one that is a feature's since.

    Raises:
        MsgspecError: it is damaged, or of another version.
    """
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        if (record := kept_before(data)) is not None:
            return record
        raise


class Journal(RecordLog[JournalRecord]):
    """The master's log file; one writer, held by the master's lock on the job."""

    def __init__(self, path: Path) -> None:
        """Open or create, as `RecordLog`."""
        remedy = (
            "move it away, then go on exactly from the newest cut with "
            f"`paceline run --resume {path.parent.name}`"
        )
        super().__init__(path, decode, "a job", remedy)
