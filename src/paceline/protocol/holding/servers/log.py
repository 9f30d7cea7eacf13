"""The order as a leader tells it: entries, and how far each other server has applied them."""

from paceline.base.numbering import NO_ENTRY, EntryNo, Inc
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.order import Entry, Remap


class Log:
    """Entries that some server has not applied; on servers that never led it is empty."""

    def __init__(self) -> None:
        #: Position -> what is at it.
        self.entries: dict[EntryNo, Entry] = {}
        #: Server -> the position up to which it has applied the order, and was sent it.
        self.applied_at: dict[Inc, EntryNo] = {}
        self.sent_to: dict[Inc, EntryNo] = {}
        #: Of a former leader: it tells the order up to this position; 0: it leads, or never did.
        self.handover = NO_ENTRY

    def begin(self, followers: list[Inc], position: EntryNo) -> None:
        """All followers have applied the order up to this position."""
        self.applied_at = dict.fromkeys(followers, position)
        self.sent_to = dict(self.applied_at)

    def add(self, position: EntryNo, entry: Entry) -> None:
        """Put a decision into the order."""
        self.entries[position] = entry

    def due(
        self, last: EntryNo, *, again: bool, always: bool
    ) -> list[tuple[Inc, EntryNo, tuple[Entry, ...]]]:
        """Return what to send now: server, first position, entries.

        Args:
            last: the last position of the order.
            again: what was sent and not applied is sent once more.
            always: with ``again``: also to servers that have applied everything.
        """
        found: list[tuple[Inc, EntryNo, tuple[Entry, ...]]] = []
        for inc, applied in self.applied_at.items() if last else ():
            after = applied if again else max(applied, self.sent_to[inc])
            if after >= last and not (again and always):
                continue
            entries = tuple(self.entries[EntryNo(p)] for p in range(after + 1, last + 1))
            found.append((inc, EntryNo(after + 1), entries))
            self.sent_to[inc] = last
        return found

    def heard(self, server: Inc, position: EntryNo) -> bool:
        """A server has applied the order up to a position; whether it is one that counts."""
        if server not in self.applied_at:
            return False
        self.applied_at[server] = max(self.applied_at[server], position)
        return True

    def have_all(self, servers: list[Inc], position: EntryNo) -> bool:
        """Whether all of these are at a position or past it."""
        return all(self.applied_at.get(inc, NO_ENTRY) >= position for inc in servers)

    def drop(self, now: ServerMap | None, since: EntryNo, position: EntryNo) -> None:
        """Drop entries that all servers are past, and servers that are past their end.

        Args:
            now: the map in force.
            since: the position of its entry.
            position: of this server.
        """
        if now is not None:
            for inc in [inc for inc in self.applied_at if now.index(inc) < 0]:
                if self.applied_at[inc] >= since:
                    self._leave_out(inc)
        upto = min(self.applied_at.values(), default=position)
        for past in [one for one in self.entries if one <= upto]:
            del self.entries[past]

    def take_over(self, me: Inc, entry: Remap, position: EntryNo) -> None:
        """Lead from the entry at this position on; the former leader sends all up to it.

        The entry itself comes from both: the answer to it shows which servers have applied it.
        """
        self.entries = {position: entry}
        self.begin([s.inc for s in entry.map.servers if s.inc != me], EntryNo(position - 1))

    def add_followers(self, me: Inc, now: ServerMap, position: EntryNo) -> None:
        """Tell servers that are new in the map what follows this position."""
        for server in now.servers:
            if server.inc != me and server.inc not in self.applied_at:
                self.applied_at[server.inc] = self.sent_to[server.inc] = position

    def give_up_copiers(self, former: ServerMap, now: ServerMap) -> None:
        """Forget servers that only copied and have left the map: they may be dead.

        A server that owned something has to hear that it has left.
        """
        for inc in {s.inc for s in former.servers} - {s.inc for s in now.servers}:
            if inc not in former.sharers and inc in self.applied_at:
                self._leave_out(inc)

    def _leave_out(self, inc: Inc) -> None:
        del self.applied_at[inc], self.sent_to[inc]
