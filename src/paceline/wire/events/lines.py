"""The lines of ``events.jsonl``: all events as one union, and what reads them again.

A line that is no event of this version, or lacks a field of it, was written by another version:
`lines_of_before` says what is known of it, else it is a `PlainEvent`.
"""

import contextlib
from collections.abc import Iterable
from typing import get_args

import msgspec

from paceline.base.numbering import NO_INC, Inc
from paceline.wire.events import job, nodes, state
from paceline.wire.events.base import Event, PlainEvent
from paceline.wire.events.lines_of_before import USUAL, fields_of, sentence_of

KnownEvent = (
    job.LaunchedEvent
    | job.ResumedEvent
    | job.SupervisorStartedEvent
    | job.StopAskedEvent
    | job.MasterStartedEvent
    | job.JournalShortEvent
    | job.MasterDiedEvent
    | job.JournalKeptEvent
    | job.KeepersAwaitedEvent
    | job.MasterMovedEvent
    | job.StoppedEvent
    | job.FinishedEvent
    | job.NotKeptEvent
    | job.DiskRefusesEvent
    | job.FeatureFailedEvent
    | job.FeatureSlowEvent
    | job.DiskHealsEvent
    | job.ScaledEvent
    | nodes.AgentJoinedEvent
    | nodes.AgentLostEvent
    | nodes.MachinesAwaitedEvent
    | nodes.MachineJoinedEvent
    | nodes.PlacePendingEvent
    | nodes.PlaceRefusedEvent
    | nodes.NotSharedEvent
    | nodes.PlaceDrainingEvent
    | nodes.StandInEvent
    | nodes.NotMovedAwayEvent
    | nodes.UnbackedEvent
    | nodes.NoLimitsEvent
    | nodes.NodeResizedEvent
    | nodes.NotResizedEvent
    | nodes.ResizeDeferredEvent
    | nodes.NodeStartedEvent
    | nodes.ProcessUpEvent
    | nodes.WorksEvent
    | nodes.LeftLoopEvent
    | nodes.ChiefMissedEvent
    | nodes.HungEvent
    | nodes.KilledEvent
    | nodes.KillRestartEvent
    | nodes.ProcessExitedEvent
    | nodes.FencedEvent
    | nodes.NodeLostEvent
    | nodes.LeftOutEvent
    | nodes.RelaunchEvent
    | nodes.RestartAllEvent
    | nodes.ReplacingEvent
    | nodes.ReplacedEvent
    | nodes.NotReplacedEvent
    | nodes.ServersChangedEvent
    | nodes.ServersNotChangedEvent
    | nodes.MoveGivenUpEvent
    | state.PlanEvent
    | state.FeedOpenedEvent
    | state.FeedCompleteEvent
    | state.EpochEvent
    | state.RestoredEvent
    | state.CutValidEvent
    | state.CutStoredEvent
    | state.CutUploadedEvent
    | state.NotUploadedEvent
    | state.UploadFailedEvent
    | state.UploadTroubleEvent
    | state.CutDamagedEvent
    | state.CutsRarerEvent
    | state.GroupFormsEvent
    | state.GroupRunsEvent
    | state.GroupBrokenEvent
    | state.GroupStuckEvent
    | state.MemberSlowEvent
    | state.DivergedEvent
)
"""All kinds of events, in the order of the table in the reference."""
AnyEvent = KnownEvent | PlainEvent
KINDS: tuple[type[Event], ...] = get_args(KnownEvent)

_decoder = msgspec.json.Decoder(KnownEvent)


class _Line(msgspec.Struct):
    """Fields that lines of all versions have."""

    t: float
    event: str
    node: str = ""
    inc: Inc = NO_INC
    reason: str = ""
    feature: str = ""
    words: str = ""
    usual: bool = False


_line_decoder = msgspec.json.Decoder(_Line)


def decode_event(line: bytes) -> AnyEvent:
    """Read a line.

    Raises:
        DecodeError: it is none: a kill, or a disk that was full, has torn it.
    """
    try:
        known: AnyEvent = _decoder.decode(line)
    except msgspec.ValidationError:
        return _of_another_version(line)
    return known


def _of_another_version(line: bytes) -> AnyEvent:
    one = _line_decoder.decode(line)
    fields: dict[str, object] = msgspec.json.decode(line)
    with contextlib.suppress(msgspec.ValidationError):
        whole = fields | fields_of(one.event, one.reason)
        known: AnyEvent = msgspec.convert(whole, KnownEvent, strict=False)
        return known
    return PlainEvent(
        t=one.t,
        node=one.node,
        inc=one.inc,
        kind=one.event,
        reason=one.reason,
        feature=one.feature,
        words=one.words or sentence_of(one.event, fields),
        usual=one.usual or (not one.feature and one.event in USUAL),
        source=bytes(line),
    )


def decode_events(lines: Iterable[bytes]) -> list[AnyEvent]:
    """Read whole lines, but for those that are torn or damaged."""
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(decode_event(line))
    return found
