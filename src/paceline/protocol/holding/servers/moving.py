"""A server's buckets on their way to another: what is known, and which map to ask for next.

Pure, and part of `MasterState`. Reference: docs/protocols/integrity.md, section 3 ("moving
buckets"): a copy entry, then, when the new owner has caught up, a switch entry.
"""

from paceline.base.numbering import Inc
from paceline.protocol.records import MoveBegun
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.node import Joined


class Moving:
    """At most one move at a time; all but ``begun`` may vanish with the master."""

    def __init__(self) -> None:
        #: Changed by records only.
        self.begun: MoveBegun | None = None
        self.forget()

    def forget(self) -> None:
        """Forget what a restarted master does not know, and asks for again."""
        #: The new server keeps parts; has all buckets.
        self.joined = self.caught_up = False
        #: It is not wanted any more; it is dead.
        self.given_up = self.lost = False
        #: All servers of the present map have applied its entry.
        self.settled = False
        #: How far the new server says that it is; only grows.
        self.progress = 0

    def heard(self, message: Joined) -> bool:
        """The new server's word; whether it is of this move."""
        if self.begun is None or message.inc != self.begun.new.inc:
            return False
        self.joined, self.caught_up = True, self.caught_up or message.caught_up
        self.progress = max(self.progress, message.progress)
        return True

    def has_switched(self, now: ServerMap) -> bool:
        """Whether the buckets are the new server's own."""
        return self.begun is not None and now.index(self.begun.old) < 0

    def serving(self, now: ServerMap) -> tuple[Inc, ...]:
        """The servers without which a new epoch must begin: until it is over, the old ones."""
        incs = tuple(server.inc for server in now.servers)
        if self.begun is None:
            return incs
        old, new = self.begun.old, self.begun.new.inc
        if self.has_switched(now):
            return tuple(old if inc == new else inc for inc in incs)
        return tuple(inc for inc in incs if inc != new)

    def is_over(self, now: ServerMap, *, cut_under_way: bool) -> bool:
        """Whether nobody needs the old server any more, or nobody the new one."""
        begun = self.begun
        if begun is None:
            return False
        if self.has_switched(now):
            # What the old one has copied for a cut may not be on disk yet.
            return self.lost or (self.settled and not cut_under_way)
        # A copy entry that was asked for may still be ordered: only a later map says it was not.
        return self.given_up and now.version > begun.version and now.index(begun.new.inc) < 0

    def wanted_map(self, now: ServerMap) -> ServerMap | None:
        """What the leader is asked for; None: nothing yet."""
        if self.begun is None:
            return None
        old, new = self.begun.old, self.begun.new
        if self.has_switched(now):
            return now  # the answer tells whether all have it
        if self.given_up:
            return without(now, new.inc)
        if now.copies:
            return switched(now, old, new) if self.caught_up else None
        return copying(now, old, new) if self.joined else None

    def joining_map(self, now: ServerMap) -> ServerMap | None:
        """The map that the new server has to get ready for; None: it need not."""
        if self.begun is None or self.given_up or self.has_switched(now):
            return None
        return now if now.copies else copying(now, self.begun.old, self.begun.new)


def copying(now: ServerMap, old: Inc, new: Server) -> ServerMap:
    """The map after ``now`` in which all buckets of ``old`` are being copied to ``new``."""
    me, to = now.index(old), len(now.servers)
    return ServerMap(
        version=now.version + 1,
        servers=(*now.servers, new),
        owners=now.owners,
        copies=tuple(to if owner == me else -1 for owner in now.owners),
    )


def switched(now: ServerMap, old: Inc, new: Server) -> ServerMap:
    """The map after ``now`` in which ``new`` stands where ``old`` stood."""
    servers = tuple(new if s.inc == old else s for s in now.servers if s.inc != new.inc)
    return ServerMap(version=now.version + 1, servers=servers, owners=now.owners)


def without(now: ServerMap, new: Inc) -> ServerMap:
    """The map after ``now`` in which nothing is copied to ``new``."""
    servers = tuple(server for server in now.servers if server.inc != new)
    return ServerMap(version=now.version + 1, servers=servers, owners=now.owners)
