"""Every message has a taker: a part that receives a union matches each class of it by name.

A class is taken where a ``case``, an ``isinstance``, or a call that waits for such an answer names
it, in the folders of the parts that receive it. Events have none: people read them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import paceline
from paceline.cluster.book import AnyClusterRecord
from paceline.master.journal import JournalRecord
from paceline.wire.client import Call, Reply
from paceline.wire.cluster import ClusterCall, ClusterReply
from paceline.wire.messages.agent import AgentDown, AgentUp
from paceline.wire.messages.data import Data
from paceline.wire.messages.node import NodeDown, NodeUp
from paceline.wire.zygote import FromZygote

SOURCE = Path(paceline.__file__).parent
RECEIVERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "from agents": (AgentUp, ("master",)),
    "to agents": (AgentDown, ("agent", "protocol/nodes/agent.py")),
    "from nodes": (NodeUp, ("master", "protocol", "agent")),
    "to nodes": (NodeDown, ("runtime", "protocol/holding")),
    "among nodes": (Data, ("runtime", "protocol", "cuts")),
    "from zygotes": (FromZygote, ("agent",)),
    "calls": (Call, ("master",)),
    "replies": (Reply, ("cli", "jobs", "master")),
    "calls of the cluster": (ClusterCall, ("cluster",)),
    "replies of the cluster": (ClusterReply, ("cluster", "cli")),
    "records": (JournalRecord, ("master", "protocol")),
    "records of the cluster": (AnyClusterRecord, ("cluster",)),
}


def members_of(union: Any) -> set[str]:
    found = set[str]()
    for one in get_args(union):
        found |= members_of(one) if get_args(one) else {one.__name__}
    return found


def taken_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass(cls=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                yield from (one.id for one in ast.walk(kinds) if isinstance(one, ast.Name))
            case ast.Call(args=arguments):
                yield from (one.id for one in arguments if isinstance(one, ast.Name))
            case _:
                continue


def taken_by(places: tuple[str, ...]) -> set[str]:
    paths = (SOURCE / one for one in places)
    files = (file for one in paths for file in ([one] if one.suffix else one.rglob("*.py")))
    return {name for file in files for name in taken_in(ast.parse(file.read_text()))}


@pytest.mark.parametrize("what", RECEIVERS)
def test_every_message_has_a_taker(what: str) -> None:
    union, places = RECEIVERS[what]
    members = members_of(union)
    assert members
    assert not members - taken_by(places), f"{what}: nobody in {places} takes these"


def test_a_message_that_nobody_takes_is_found() -> None:
    assert "Nothing" not in taken_by(("master",))
    assert set(taken_in(ast.parse("match m:\n  case node.Nothing(inc=1): pass"))) == {"Nothing"}
    assert set(taken_in(ast.parse("isinstance(m, Nothing | Other)"))) == {"Nothing", "Other"}
