"""Every message has a taker: a part declares what it takes, and handles all that it declares.

A part that takes some of a union has an alias for that, whose name ends in ``Takes``: its ``match``
is closed by ``assert_never``, so mypy finds what is declared and not handled. A part that takes a
whole union has it as the type of a parameter. What features send and keep is theirs alone: their
own decoders say what they take. The tests here find what nobody has declared, and a ``match`` that
swallows what it does not name. Events have no taker: people read them.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import paceline
from paceline.agent.feature_port import AgentPart
from paceline.agent.keeping import JournalKept
from paceline.agent.process import ProcessHost
from paceline.features.cluster.book import AnyClusterRecord, ClusterBook, ClusterRecord
from paceline.features.cluster.desk import ClusterDesk
from paceline.features.cluster.wire import ClusterCall, ClusterReply
from paceline.master.agents import Agents
from paceline.master.feature_port import MasterPart
from paceline.master.job_files import JobFiles
from paceline.master.journal import JournalRecord
from paceline.master.journal_recovery import JournalRecovery
from paceline.master.replies import Replies
from paceline.protocol.acts import Instruction
from paceline.protocol.nodes.agent import NodeState
from paceline.protocol.nodes.node import MemberRecords
from paceline.protocol.nodes.roster import Roster
from paceline.protocol.records import Record
from paceline.runtime.process.feature_port import ProcessPart
from paceline.wire.client import FileCall, Reply, RoomCall
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import AgentUp, NodeTakes
from paceline.wire.messages.base import Message
from paceline.wire.messages.data import Data
from paceline.wire.messages.group import GroupUp
from paceline.wire.messages.keeping import KeeperCall, KeepingDown
from paceline.wire.messages.node import NodeDown, NodeUp
from paceline.wire.zygote import FromZygote

SOURCE = Path(paceline.__file__).parent

WHOLE: dict[str, tuple[Any, Callable[..., Any]]] = {
    "from agents": (AgentUp, Agents.handle),
    "to agents about nodes": (NodeTakes, NodeState.on_master),
    "to agents about the journal": (KeepingDown, JournalKept.told),
    "between keepers": (KeeperCall, JournalKept._called),
    "from zygotes": (FromZygote, ProcessHost._on_zygote),
    "calls": (RoomCall, Replies.to),
    "calls about files": (FileCall, JobFiles.answer),
    "calls of the cluster": (ClusterCall, ClusterDesk.answer),
    "records": (JournalRecord, JournalRecovery._apply),
    "records of nodes": (MemberRecords, Roster.apply),
    "records of the cluster": (AnyClusterRecord, ClusterBook.apply),
}
"""Unions of which one part takes all, and that part."""

DIVIDED: dict[str, Any] = {
    "from nodes": NodeUp,
    "to nodes": NodeDown,
    "among nodes": Data,
}
"""Unions of which several parts take some each. Those of features are collected below."""

ANSWERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "replies": (Reply, ("cli", "jobs", "master")),
    "replies of the cluster": (ClusterReply, ("features.cluster",)),
}
"""Unions of answers. Their taker is the function that asked; here is where such functions are."""


def members_of(*unions: Any) -> set[str]:
    found = set[str]()
    for one in unions:
        found |= members_of(*get_args(one)) if get_args(one) else {one.__name__}
    return found


# ----------------------------------------------------------------------------- what is declared


@cache
def trees() -> dict[str, ast.Module]:
    """The tree of each file, by its module's name."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join([paceline.__name__, *parts])] = ast.parse(file.read_text())
    return found


def aliases_in(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name.endswith("Takes"):
                yield name
            case _:
                continue


@cache
def declared() -> dict[str, set[str]]:
    """What each alias of a part names."""
    return {
        f"{module}.{name}": members_of(getattr(import_module(module), name))
        for module, tree in trees().items()
        for name in aliases_in(tree)
    }


def untaken(union: Any, takers: Iterable[set[str]]) -> set[str]:
    return members_of(union).difference(*takers)


@pytest.mark.parametrize("what", DIVIDED)
def test_every_message_has_a_part_that_declares_it(what: str) -> None:
    assert not untaken(DIVIDED[what], declared().values())


@pytest.mark.parametrize("what", WHOLE)
def test_a_part_takes_the_whole_union(what: str) -> None:
    union, taker = WHOLE[what]
    hints = get_type_hints(taker)
    del hints["return"]
    assert members_of(union) <= members_of(*hints.values())


def test_nothing_is_declared_that_nobody_sends() -> None:
    known = sent_by(feature_modules().values()) | members_of(
        *DIVIDED.values(), *(union for union, _ in WHOLE.values())
    )
    known |= {one.__name__ for one in events()}
    assert {name: names - known for name, names in declared().items() if names - known} == {}


def test_every_declaration_is_used() -> None:
    used = {one.id for tree in trees().values() for one in ast.walk(tree) if is_read(one)}
    unused = {name for name in declared() if name.rpartition(".")[2] not in used}
    assert not unused


def is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def test_a_message_that_nobody_takes_is_found() -> None:
    class Fresh: ...

    assert untaken(NodeUp | Fresh, declared().values()) == {"Fresh"}
    assert untaken(int | str, [{"int"}, {"float"}]) == {"str"}


# ----------------------------------------------------------------------------- what features send

FEATURES = f"{paceline.__name__}.features."
KINDS = (Message, Record, ClusterRecord)
"""Bases of what features send and keep."""
PARTS = (AgentPart, MasterPart, ProcessPart)
RETURNED = ("due", "kept", "rest", "starts")
"""Methods of parts that return what is sent or kept."""
MAKERS = {"msgspec.msgpack.Decoder", "decoder"}
"""Callables that make a decoder of what was sent or kept. Other files are read as JSON."""


@cache
def feature_modules() -> dict[str, ModuleType]:
    """Modules of features in which something is declared that is sent, kept or decoded."""
    bases = {one.__name__ for one in (*KINDS, *PARTS, *Message.__subclasses__())}
    found = {}
    for module, tree in trees().items():
        classes = (one for one in ast.walk(tree) if isinstance(one, ast.ClassDef))
        derived = any(ast.unparse(base) in bases for one in classes for base in one.bases)
        if module.startswith(FEATURES) and (derived or any(decoded_in(tree))):
            found[module] = import_module(module)
    return found


def sent_by(modules: Iterable[ModuleType]) -> set[str]:
    """The names of what is sent or kept by parts of features."""
    found = set[str]()
    for module in modules:
        for one in vars(module).values():
            if not isinstance(one, type) or one.__module__ != module.__name__:
                continue
            if issubclass(one, KINDS) and one not in KINDS:
                found.add(one.__name__)
            if issubclass(one, PARTS):
                own = [vars(one)[name] for name in RETURNED if name in vars(one)]
                found |= members_of(*(get_type_hints(method)["return"] for method in own))
    return found - {type(None).__name__}


def decoded_in(tree: ast.AST) -> Iterator[str]:
    """The names that stand where the types of decoders are written."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[kind]) if ast.unparse(function) in MAKERS:
                yield from (one.id for one in ast.walk(kind) if isinstance(one, ast.Name))
            case _:
                continue


def untaken_of(sent: set[str]) -> set[str]:
    """What no feature decodes, and no alias of its parts names."""
    taken = [
        getattr(module, kind)
        for name, module in feature_modules().items()
        for kind in decoded_in(trees()[name])
    ]
    return sent - members_of(*taken).union(*declared().values())


def test_what_features_send_and_keep_is_decoded_by_a_part_of_theirs() -> None:
    sent = sent_by(feature_modules().values())
    known = {"AtMeeting", "CallsTold", "JobQueued", "LogKept", "NodeChecked", "SizeAtStart"}
    assert known | {"SharingTold", "SizingKept", "UpgradeShare"} <= sent
    assert untaken_of(sent) == set()


def test_what_a_feature_sends_or_keeps_and_nobody_takes_is_found() -> None:
    class FreshTold(Message, frozen=True): ...

    class FreshKept(msgspec.Struct): ...

    class FreshPart(MasterPart):
        def kept(self) -> list[FreshKept]:
            return []

    planted = ModuleType(f"{FEATURES}planted.wire")
    for one in (FreshTold, FreshKept, FreshPart):
        one.__module__ = planted.__name__
        setattr(planted, one.__name__, one)
    sent = sent_by([*feature_modules().values(), planted])
    assert untaken_of(sent) == {"FreshTold", "FreshKept"}


# ----------------------------------------------------------------------------- what is swallowed
#
# `case _: pass` would make a part deaf to what is added to the union, and nobody would be told.


def events() -> set[type[Event]]:
    found, new = set[type[Event]](), {Event}
    while new:
        found |= new
        new = {child for one in new for child in one.__subclasses__()} - found
    return found


@cache
def closed() -> frozenset[str]:
    """The names of all classes whose matches have to be closed."""
    unions = [*DIVIDED.values(), Instruction, *(union for union, _ in WHOLE.values())]
    told = {one.__name__ for one in events()} | sent_by(feature_modules().values())
    return frozenset(members_of(*unions) | told)


def named(pattern: ast.AST) -> Iterator[str]:
    for node in ast.walk(pattern):
        match node:
            case ast.MatchClass(cls=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name
            case _:
                continue


def swallowing(tree: ast.AST, names: frozenset[str]) -> Iterator[int]:
    """Lines of defaults which take what a match over such classes does not name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Match):
            continue
        if not names & {name for case in node.cases for name in named(case.pattern)}:
            continue
        for case in node.cases:
            catches_all = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            if catches_all and not case.guard and "assert_never(" not in ast.unparse(case.body):
                yield case.pattern.lineno


def test_no_match_over_messages_swallows_what_it_does_not_name() -> None:
    found = {
        f"{module}:{line}"
        for module, tree in trees().items()
        for line in swallowing(tree, closed())
    }
    assert not found, "declare what the part takes, and close the match by assert_never"


@pytest.mark.parametrize(
    ("default", "found"),
    [
        ("case _: pass", [4]),
        ("case _ if late: pass", []),
        ("case other: log(other)", [4]),
        ("case _: assert_never(m)", []),
        ("case Other(): pass", []),
    ],
)
def test_a_default_that_swallows_is_found(default: str, found: list[int]) -> None:
    tree = ast.parse(f"match m:\n  case group.Known(inc=1): pass\n\n  {default}")
    assert list(swallowing(tree, frozenset({"Known"}))) == found
    assert list(swallowing(tree, frozenset({"Strange"}))) == []


# ----------------------------------------------------------------------------- answers


def asked_for(tree: ast.AST) -> Iterator[str]:
    """The classes by which a function knows the answer to its question."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                yield from (one.id for one in ast.walk(kinds) if isinstance(one, ast.Name))
            case ast.Call(args=arguments):
                yield from (one.id for one in arguments if isinstance(one, ast.Name))
            case _:
                yield from named(node) if isinstance(node, ast.MatchClass) else ()


@pytest.mark.parametrize("what", ANSWERS)
def test_somebody_asks_for_every_answer(what: str) -> None:
    union, folders = ANSWERS[what]
    inside = tuple(f"{paceline.__name__}.{folder}." for folder in folders)
    found = {
        name
        for module, tree in trees().items()
        if module.startswith(inside)
        for name in asked_for(tree)
    }
    assert not members_of(union) - found


def test_groups_say_what_their_edge_takes() -> None:
    assert declared()["paceline.master.holding.group.GroupEdgeTakes"] == members_of(GroupUp)
