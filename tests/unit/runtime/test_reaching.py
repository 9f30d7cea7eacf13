"""Peers that take no connection, and links to servers that are measured."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.runtime.holding.servers import links
from paceline.runtime.process import reaching
from paceline.runtime.process.reaching import UNHEARD_S, Unheard, Unreachable, place_of, refusal
from paceline.wire.data_plane import DataServer
from paceline.wire.messages.base import Server
from paceline.wire.messages.data import Echo, Echoed

SECRET = b"0" * 64


@pytest.fixture
def closed() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"curve://127.0.0.1:{server.getsockname()[1]}"


def test_why_no_connection_is_made(closed: str) -> None:
    assert refusal(closed) == "Connection refused"
    assert refusal("shm:///run/a.data") == ""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}") == ""


def test_a_server_that_cannot_be_reached_is_named_after_two_looks(closed: str) -> None:
    unheard = Unheard()
    unheard.connected([Server(3, "server-0", closed)])
    for now_s in (0.0, UNHEARD_S - 1, UNHEARD_S, 2 * UNHEARD_S - 1):
        unheard.look(now_s)
    with pytest.raises(Unreachable) as caught:
        unheard.look(2 * UNHEARD_S)
    assert caught.value.peer == f"server-0 at {place_of(closed)} (Connection refused)"


def test_a_server_that_has_spoken_or_takes_connections_is_not_out_of_reach(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard = Unheard()
    unheard.connected([Server(3, "server-0", closed), Server(4, "server-1", closed)])
    unheard.look(0.0)
    unheard.heard(3)
    unheard.connected([Server(3, "server-0", closed), Server(4, "server-1", closed)])
    answers = iter(["Connection refused", "", "Connection refused", ""])
    monkeypatch.setattr(reaching, "refusal", lambda _: next(answers))
    for turn in range(1, 5):
        unheard.look(turn * UNHEARD_S)
    assert next(answers, None) is None, "the one that has spoken was not looked at"


@pytest.fixture
def echoing() -> Iterator[DataServer]:
    """Sends back what it gets, as a server does."""
    server, over = DataServer("curve://127.0.0.1:*", SECRET), threading.Event()

    def serve() -> None:
        while not over.is_set():
            for peer, message, frames in server.poll(0.05):
                assert isinstance(message, Echo)
                said = Echoed(
                    epoch_no=message.epoch_no, server=3, inc=message.inc, number=message.number
                )
                server.send(peer, said, [bytes(frame) for frame in frames])
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield server
    over.set()
    thread.join()


def process(tmp_path: Path) -> SimpleNamespace:
    job = SimpleNamespace(secret=lambda: SECRET)
    return SimpleNamespace(job=job, node="worker-0", inc=7, rank=1, pid=os.getpid())


def test_links_over_tcp_are_measured_and_memory_is_not(tmp_path: Path, echoing: DataServer) -> None:
    servers = [Server(3, "server-0", echoing.address), Server(4, "server-1", "shm:///run/a.data")]
    (link,) = links.measure_links(process(tmp_path), servers)
    assert link.node == "server-0"
    assert link.bytes_per_s > 1e6
    assert 0 < link.rtt_s < 1


def test_a_server_that_is_out_of_reach_is_named_by_the_check(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ANSWER_S", 0.2)
    with pytest.raises(Unreachable, match=r"server-0 at 127.0.0.1:\d+ \(Connection refused\)"):
        links.measure_links(process(tmp_path), [Server(3, "server-0", closed)])


def test_a_server_that_is_busy_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"curve://127.0.0.1:{server.getsockname()[1]}"
        assert links.measure_links(process(tmp_path), [Server(3, "server-0", address)]) == ()
