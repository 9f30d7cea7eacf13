"""Who proves what on the control plane, before anything is said that is worth anything."""

import pytest

from paceline.base.errors import PermanentError
from paceline.wire import control_auth
from paceline.wire.control_auth import ControlDoor, Introduction

SECRET, OTHER = b"a" * 64, b"b" * 64
CALL, AGENT = "/paceline.Control/Call", "/paceline.Control/Agent"


def introduced(door: ControlDoor, place: str = "4711", method: str = CALL) -> str:
    me = Introduction(SECRET, place)
    return me.word(door.greet(me.nonce, place), method)


def test_who_has_the_secret_is_admitted_once() -> None:
    door = ControlDoor(SECRET)
    word = introduced(door)
    assert SECRET.decode() not in word
    assert door.admits(word, CALL, "4711")
    assert not door.admits(word, CALL, "4711"), "repeated by somebody who has heard it"


def test_a_server_without_the_secret_gets_no_proof() -> None:
    me = Introduction(SECRET, "4711")
    for answer in (b"", bytes(104), ControlDoor(OTHER).greet(me.nonce, "4711")):
        with pytest.raises(PermanentError, match="does not have this job's secret"):
            me.word(answer, CALL)


def test_a_squatter_at_another_port_cannot_pass_words_on() -> None:
    door, me = ControlDoor(SECRET), Introduction(SECRET, "1111")
    with pytest.raises(PermanentError):
        me.word(door.greet(me.nonce, "4711"), CALL)
    assert not door.admits(introduced(door, "1111"), CALL, "4711")


def test_a_proof_is_of_one_purpose_one_server_and_one_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = ControlDoor(SECRET)
    assert not door.admits(introduced(door), AGENT, "4711")
    assert not ControlDoor(SECRET).admits(introduced(door), CALL, "4711"), "of the master before"
    word = introduced(door)
    monkeypatch.setattr(control_auth, "VALID_S", -1.0)
    assert not door.admits(word, CALL, "4711")


def test_a_server_s_proof_is_no_client_s() -> None:
    door, me = ControlDoor(SECRET), Introduction(SECRET, "4711")
    answer = door.greet(me.nonce, "4711")
    own, proof = answer[:-32], answer[-32:]
    assert not door.admits(f"{me.nonce.hex()}.{own.hex()}.{proof.hex()}", CALL, "4711")


@pytest.mark.parametrize("word", ["", "..", "00.00.00", "x.y.z", "00", SECRET.decode(), "é.é.é"])
def test_nonsense_is_not_admitted(word: str) -> None:
    assert not ControlDoor(SECRET).admits(word, CALL, "4711")


def test_strangers_cost_the_server_no_memory() -> None:
    door = ControlDoor(SECRET)
    for _ in range(100):
        door.greet(bytes(32), "4711")
        door.admits("00.00.00", CALL, "4711")
    assert not door._used
