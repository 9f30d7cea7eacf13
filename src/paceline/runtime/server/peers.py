"""Address at which a server listens, and its connections to the servers of its map."""

from collections.abc import Iterable

from paceline.base.numbering import Inc
from paceline.runtime.process.process import Process
from paceline.wire.data_plane import DataClient, DataServer, bind_address
from paceline.wire.messages.base import ServerMap


def listen(process: Process) -> tuple[DataServer, "Peers"]:
    """Listen where the job's spec says; with the client that reaches the other servers."""
    secret, name = process.job.secret(), f"{process.node}-{process.inc}"
    bind = bind_address(process.spec.data_plane, process.spec.listen, process.job.run_dir, name)
    return DataServer(bind, secret), Peers(process.inc, secret, name)


class Peers(DataClient):
    """The other servers, by incarnation."""

    def __init__(self, inc: Inc, secret: bytes, ident: str) -> None:
        super().__init__({}, secret, ident=ident, arena_bytes=0)
        self._inc = inc

    def meet(self, server_map: ServerMap) -> None:
        """Connect to the servers of a map."""
        for server in server_map.servers:
            if server.inc not in (self._inc, *self.keys()):
                self.connect(server.inc, server.address)

    def let_go(self, server_map: ServerMap, still_told: Iterable[int]) -> None:
        """Close the connections to servers that are not in a map, but for these."""
        needed = {server.inc for server in server_map.servers} | set(still_told)
        for inc in set(self.keys()) - needed:
            self.disconnect(inc)


def nodes_of(server_map: ServerMap) -> list[str]:
    """The nodes of its servers."""
    return [server.node for server in server_map.servers]
