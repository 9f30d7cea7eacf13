"""Every message of the protocol is explored, or it is listed here with the reason why not."""

from typing import Any, get_args

from paceline.wire.messages import data, features, group, node

from .explore import Explorer
from .explore_group import GroupExplorer
from .test_explore import CLEAN
from .test_group import CLEAN as CLEAN_GROUPS

ENOUGH_STATES = 1_000
"""Every kind of message is sent within as many states of the searches below."""
ON_SERVERS = (
    "asp, one worker dies",
    "asp, a server is replaced",
    "asp, a lease is shared at the tail",
    "bsp, short steps after a grace, the master dies",
)
IN_GROUPS = ("from the start, one failure", "slices of two samples, a collective breaks")

UNEXPLORED: dict[str, tuple[type, ...]] = {
    "lives of processes belong to the machines of nodes, which hold no model": (
        node.ProcessUp,
        node.ScriptError,
        node.Finished,
        node.Leaving,
    ),
    "an explored job begins with a cut of the initial values": (
        node.WriteInitial,
        node.InitialWritten,
    ),
    "where a script is decides which feed comes next, and nothing within a feed": (
        node.OpenFeed,
        node.FeedOpened,
        node.LoopLeft,
        node.AskPlace,
        node.PlaceIs,
        node.AgreeOn,
        node.AgreedOn,
        node.InNoStep,
    ),
    "the job is to end: who leaves in order is explored by the acts of scripts": (node.Stop,),
    "what is evaluated is leased as samples to train on are, and changes no model": (
        node.EvaluateResult,
        node.Evaluated,
    ),
    "cuts are explored; here a script asks for one, or an agent keeps one": (
        node.AskCut,
        node.CutMade,
        node.KeepCut,
        node.CutKept,
        node.CutDelayed,
    ),
    "it changes a learning rate or a division, and no set of samples": (
        node.NewRate,
        group.Divide,
    ),
    "it measures or logs, and no promise rests on it": (
        node.TablesHeld,
        node.BucketLoads,
        node.WorkersNow,
        features.FeatureSaid,
        features.FeatureTold,
        group.ProfileBatches,
        group.Profiled,
        data.Echo,
        data.Echoed,
    ),
    "all explored workers run the same script": (data.Differs,),
    "it carries contents of the model, or of a script; the explorer has only their numbers": (
        data.ScriptPart,
        data.Export,
        data.Exported,
        data.Piece,
        data.PieceHeld,
        group.AskState,
        group.StatePart,
    ),
    "members connect and compute; in the explorer that succeeds, or breaks": (
        group.Meet,
        group.Computed,
    ),
    "files of cuts are read and written beside the protocol": (
        data.AskFile,
        data.FilePiece,
        data.AskFiles,
        data.FilesAre,
        data.GiveFile,
        data.FileTaken,
        data.DropFiles,
    ),
}


def kinds_in(events: list[Any]) -> set[type]:
    """The classes of events; some of them are a message with what the explorer chose for it."""
    return {type(one) for event in events for one in (event, *as_tuple(event))}


def as_tuple(event: object) -> tuple[object, ...]:
    return event if isinstance(event, tuple) else ()


def explored() -> set[type]:
    found = set[type]()
    for name in ON_SERVERS:
        search = Explorer(CLEAN[name], finish_every=0, max_states=ENOUGH_STATES)
        search.run()
        found |= kinds_in(search.world.events.values)
    for name in IN_GROUPS:
        groups = GroupExplorer(CLEAN_GROUPS[name], finish_every=0, max_states=ENOUGH_STATES)
        groups.run()
        found |= kinds_in(groups.world.events.values)
    return found


def test_every_message_is_explored_or_said_why_not() -> None:
    messages = {*get_args(node.NodeUp), *get_args(node.NodeDown), *get_args(data.Data)}
    listed = {one for some in UNEXPLORED.values() for one in some}
    found = explored()

    assert not listed - messages, "no message any more"
    assert not messages - listed - found, "explore it, or list it with the reason"
    assert not listed & found, "it is explored"
