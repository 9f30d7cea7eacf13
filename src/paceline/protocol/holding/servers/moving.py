"""Buckets on their way to other servers: what is known, and which map to ask for next.

Pure, and part of `MasterState`. Reference: docs/protocols/integrity.md, section 3 ("moving
buckets"): a copy entry, then, when all receivers have caught up, a switch entry. Servers may join
and leave in one move, as many as there are.
"""

from paceline.base.numbering import Inc
from paceline.protocol.records import MoveBegun
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.node import Joined


class Moving:
    """At most one move at a time; all but ``begun`` may vanish with the master."""

    def __init__(self) -> None:
        #: Changed by records only.
        self.begun: MoveBegun | None = None
        self.forget()

    def forget(self) -> None:
        """Forget what a restarted master does not know, and asks for again."""
        #: Servers that keep parts of what they shall hold.
        self.joined: set[Inc] = set()
        #: Receivers that have everything that a map copies to them, and which map that is.
        self.caught_up: dict[Inc, int] = {}
        #: It is not wanted any more; a server that joins is dead.
        self.given_up = self.lost = False
        #: All servers of the present map have applied its entry.
        self.settled = False
        #: How far the receivers say that they are; only grows.
        self.progress: dict[Inc, int] = {}

    @property
    def joining(self) -> tuple[Inc, ...]:
        """The fresh servers of the move."""
        return tuple(server.inc for server in self.begun.joining) if self.begun else ()

    def heard(self, message: Joined) -> None:
        """Take in a receiver's word; one that is not of this move says nothing."""
        begun, inc = self.begun, message.inc
        if begun is None or inc not in begun.owners:
            return
        self.joined.add(inc)
        self.caught_up[inc] = max(message.caught_up, self.caught_up.get(inc, 0))
        self.progress[inc] = max(message.progress, self.progress.get(inc, 0))

    def has_switched(self, now: ServerMap) -> bool:
        """Whether the buckets are where they were to go."""
        begun = self.begun
        return begun is not None and now.ownership == begun.owners

    def serving(self, now: ServerMap) -> tuple[Inc, ...]:
        """The servers without which a new epoch must begin: until it is over, the old ones."""
        joining, leaving = self.joining, self.begun.leaving if self.begun else ()
        staying = [server.inc for server in now.servers if server.inc not in joining]
        return tuple(dict.fromkeys((*staying, *leaving)))

    def is_over(self, now: ServerMap, *, cut_under_way: bool) -> bool:
        """Whether nobody needs the leaving servers any more, or nobody the joining ones."""
        begun = self.begun
        if begun is None:
            return False
        if self.has_switched(now):
            # What a leaving server has copied for a cut may not be on disk yet.
            return self.lost or (self.settled and not cut_under_way)
        # A copy entry that was asked for may still be ordered: only a later map says it was not.
        return self.given_up and now.version > begun.version and not now.copies

    def wanted_map(self, now: ServerMap) -> ServerMap | None:
        """Return the map that the leader is asked for; None: none yet."""
        begun = self.begun
        if begun is None:
            return None
        if self.has_switched(now):
            return now  # the answer tells whether all have it
        if self.given_up:
            return without(now)
        if now.copies:
            ready = all(self.caught_up.get(inc, 0) == now.version for inc in now.receivers)
            return switched(now, begun) if ready else None
        return copying(now, begun) if self.joined >= set(self.joining) else None

    def receiving_map(self, now: ServerMap) -> ServerMap | None:
        """The map that receivers get ready for; None: they need not."""
        if self.begun is None or self.given_up or self.has_switched(now):
            return None
        return now if now.copies else copying(now, self.begun)


def copying(now: ServerMap, begun: MoveBegun) -> ServerMap:
    """The map after ``now`` in which all that a changed server shall hold is copied to it."""
    servers = (*now.servers, *begun.joining)
    place = {server.inc: number for number, server in enumerate(servers)}
    changed = {
        inc
        for old, new in zip(now.ownership, begun.owners, strict=True)
        for inc in (old, new)
        if old != new
    }
    return ServerMap(
        version=now.version + 1,
        servers=servers,
        owners=now.owners,
        copies=tuple(place[inc] if inc in changed else -1 for inc in begun.owners),
    )


def switched(now: ServerMap, begun: MoveBegun) -> ServerMap:
    """The map after ``now`` in which servers that join stand where those that leave stood."""
    joining = {server.inc for server in begun.joining}
    fresh = list(begun.joining)
    servers = []
    for server in now.servers:
        if server.inc in joining:
            continue
        if server.inc not in begun.leaving:
            servers.append(server)
        elif fresh:
            servers.append(fresh.pop(0))
    servers += fresh
    place = {server.inc: number for number, server in enumerate(servers)}
    owners = tuple(place[inc] for inc in begun.owners)
    return ServerMap(version=now.version + 1, servers=tuple(servers), owners=owners)


def without(now: ServerMap) -> ServerMap:
    """The map after ``now`` in which nothing is copied, and all servers are owners."""
    servers = tuple(server for server in now.servers if server.inc in now.sharers)
    return ServerMap(version=now.version + 1, servers=servers, owners=now.owners)
