"""Whether peers on other machines can be connected to at all, and what to say if not."""

import socket
from collections.abc import Iterable

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.wire.messages.base import Server

UNHEARD_S = 10.0
"""Seconds without a word after which a server that is asked is looked at, and so often again."""
FAILURES = 2
"""Looks in a row that fail, after which a server counts as out of reach."""
CONNECT_S = 2.0
"""Seconds that one look may take: a firewall may drop what it is sent."""


class Unreachable(ConfigError):
    """This machine cannot connect to a peer; ``peer`` names the peer, its address and why."""

    def __init__(self, peer: str) -> None:
        super().__init__(
            f"no connection to {peer}; let the machines reach each other at that port, or give "
            "`listen` an address that all of them reach"
        )
        self.peer = peer


def refusal(address: str) -> str:
    """Return why this address of the data plane takes no connection; empty: it does, or is local.

    Blocks for `CONNECT_S` at most.
    """
    scheme, _, place = address.partition("://")
    if scheme not in ("tcp", "curve"):
        return ""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except TimeoutError:
        return "no answer, as behind a firewall"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def place_of(address: str) -> str:
    """``HOST:PORT`` of an address of the data plane."""
    return address.partition("://")[2]


class _Wait(msgspec.Struct):
    """A server that has not been heard."""

    server: Server
    look_s: float | None = None
    """Time of the next look; None: nothing was asked of it yet."""
    failures: int = 0


class Unheard:
    """The servers that a worker has connected to and not heard yet."""

    def __init__(self) -> None:
        self._waits: dict[Inc, _Wait] = {}
        self._heard: set[Inc] = set()

    def connected(self, servers: Iterable[Server]) -> None:
        """Take in which servers there are now."""
        new = {one.inc: one for one in servers if one.inc not in self._heard}
        self._waits = {inc: self._waits.get(inc, _Wait(one)) for inc, one in new.items()}

    def heard(self, inc: Inc) -> None:
        """Take in that a server has said something."""
        if self._waits.pop(inc, None) is not None:
            self._heard.add(inc)

    def look(self, now_s: float) -> None:
        """Look at those that are asked and say nothing, if it is time.

        Raises:
            Unreachable: one of them takes no connection.
        """
        for wait in self._waits.values():
            if wait.look_s is not None and now_s >= wait.look_s:
                why = refusal(wait.server.address)
                wait.failures = wait.failures + 1 if why else 0
                if wait.failures >= FAILURES:
                    place = place_of(wait.server.address)
                    raise Unreachable(f"{wait.server.node} at {place} ({why})")
                wait.look_s = None
            if wait.look_s is None:
                wait.look_s = now_s + UNHEARD_S
