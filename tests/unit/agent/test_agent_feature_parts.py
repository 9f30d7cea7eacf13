"""Features' parts in an agent: they are fed, kept apart, and left out when they fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.agent.feature_parts import AgentParts
from paceline.agent.feature_port import AgentHere, AgentPart
from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.wire.codec import encode
from paceline.wire.messages.features import AgentFeatureSaid, AgentFeatureTold
from paceline.wire.spec import JobSpec


class Heard(msgspec.Struct):
    text: str


class Hearing(AgentPart):
    """Notes what it is told, and says it again."""

    def __init__(self, here: AgentHere) -> None:
        self.here, self.facts, self.room, self.held = here, list[str](), True, False

    def connected(self) -> None:
        self.here.send(Heard("here I am"))

    def told(self, body: msgspec.Raw) -> None:
        text = msgspec.msgpack.decode(body, type=Heard).text
        if text == "breaks":
            raise RuntimeError("broken")
        self.facts.append(text)

    def began(self) -> None:
        self.facts.append("began")

    def must_end(self) -> None:
        self.facts.append("must end")

    def tick(self, now_s: float) -> None:
        self.facts.append(f"{now_s}")

    def has_room(self) -> bool:
        return self.room

    def holds(self) -> bool:
        return self.held

    def close(self) -> None:
        self.facts.append("closed")
        raise OSError("twice")


@pytest.fixture
def sent() -> list[AgentFeatureSaid]:
    return []


@pytest.fixture
def parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[AgentFeatureSaid]
) -> AgentParts:
    def parts_of(
        kind: str, _failed: object, _spec: object
    ) -> list[tuple[str, Callable[[AgentHere], Any]]]:
        assert kind == "agent"
        return [("one", Hearing), ("two", Hearing), ("off", lambda here: None), ("bad", int)]

    monkeypatch.setattr(features, "parts_of", parts_of)
    return AgentParts(JobDir(tmp_path), "worker-0", JobSpec(script="train.py"), sent.append)


def hearing(parts: AgentParts, name: str) -> Hearing:
    part = parts._parts[name]
    assert isinstance(part, Hearing)
    return part


def told(text: str, feature: str = "one") -> AgentFeatureTold:
    return AgentFeatureTold(feature=feature, body=msgspec.Raw(encode(Heard(text))))


def test_a_part_hears_of_its_node_and_talks_to_its_part_in_the_master(
    parts: AgentParts, sent: list[AgentFeatureSaid]
) -> None:
    parts.connected()
    assert [(one.node, one.feature) for one in sent] == [("worker-0", "one"), ("worker-0", "two")]
    assert msgspec.msgpack.decode(sent[0].body, type=Heard) == Heard("here I am")
    parts.began()
    parts.told(told("hold"))
    parts.told(told("lost", "absent"))
    parts.tick(0.5)
    parts.must_end()
    assert hearing(parts, "one").facts == ["began", "hold", "0.5", "must end"]
    assert hearing(parts, "two").facts == ["began", "0.5", "must end"]


def test_all_parts_are_asked_for_room_and_whether_they_hold(parts: AgentParts) -> None:
    assert parts.has_room() and not parts.holds()
    hearing(parts, "two").room, hearing(parts, "one").held = False, True
    assert not parts.has_room() and parts.holds()


def test_a_part_that_fails_is_closed_and_left_out(parts: AgentParts) -> None:
    part = hearing(parts, "one")
    parts.told(AgentFeatureTold(feature="one", body=msgspec.Raw(encode(3))))
    assert not part.facts, "a message that makes no sense is dropped"
    part.room = False
    parts.told(told("breaks"))
    parts.told(told("late"))
    parts.tick(1.0)
    assert part.facts == ["closed"]
    assert parts.has_room(), "what is left out has no say"
    assert hearing(parts, "two").facts == ["1.0"]


def test_what_this_machine_lacks_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_here: AgentHere) -> AgentPart:
        raise ConfigError("got no device")

    monkeypatch.setattr(features, "parts_of", lambda *_: [("one", lacking)])
    with pytest.raises(ConfigError, match="no device"):
        AgentParts(JobDir(tmp_path), "worker-0", JobSpec(script="train.py"), print)
