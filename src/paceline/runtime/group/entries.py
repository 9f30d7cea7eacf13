"""Entry into a job of a member that has had no batch: the loop that the others are in."""

from collections.abc import Callable

from paceline.base.errors import PermanentError
from paceline.runtime.group.member import MemberClient
from paceline.runtime.script.strategy import Bystander, Entry
from paceline.runtime.state.replica import entry_in_cut
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.messages.node import PlaceIs

ASK_S = 0.1
"""Seconds after which a member asks again whether others have begun their next loop."""


class EntriesOfMember:
    """Entries of one member.

    Args:
        member: this one.
        training: says which training of the script is in hand.
    """

    def __init__(self, member: MemberClient, training: Callable[[], int]) -> None:
        self._member, self._training = member, training

    def newest(self) -> Entry | None:
        """See `Entries.newest`; where nobody trains, the loop that the newest cut is of."""
        found = self._member.begun()
        if self._member.together and (loaded := self._member.variables.arrived_at) is not None:
            # All have loaded the same cut, however far the faster ones are by now.
            return self._entry_at(loaded, found)
        if found.cut is None:
            return self._entry(found)
        try:
            held = entry_in_cut(self._training(), *self._member.process.cuts.places(found.cut))
        except PermanentError:  # the master finds out, and names another one
            return None
        return self._entry_at(held, found)

    def next_after(self, place: ScriptPlace) -> Entry | None:
        """See `Entries.next_after`; members that begin together wait for none, as all come late."""
        while not self._member.together:
            found = self._member.begun(stands_by=True)
            is_later = found.newest is not None and found.newest.training > self._training()
            # The next loop is one of the next training; or none begins without us.
            if not found.others or is_later or found.awaited:
                return None
            entry = self._entry(found)
            if entry is not None and entry.place > place:
                return entry
            self._member.pause(ASK_S)
        return None

    def goes_on(self) -> None:
        """See `Entries.goes_on`."""
        self._member.forget_copy()

    def came_in(self) -> None:
        """See `Entries.came_in`."""
        self._member.script_entered()

    def end_before(self, place: ScriptPlace) -> bool:
        """See `Entries.end_before`."""
        found = self._member.begun()
        here = self._training(), place
        feeds = (one for one in (*found.begun, found.newest) if one is not None)
        is_behind = all((feed.training, feed.place) < here for feed in feeds)
        return found.returned and not found.others and is_behind

    def fate_of_bystander(self) -> Bystander:
        """See `Entries.fate_of_bystander`."""
        found = self._member.begun()
        return "leaves" if found.others else "returns" if found.returned else "fails"

    def _entry_at(self, held: tuple[ScriptPlace, str, int] | None, found: PlaceIs) -> Entry | None:
        feeds = {feed.place: feed for feed in (*found.begun, found.newest) if feed is not None}
        return None if held is None else Entry(*held, feeds.get(held[0]))

    def _entry(self, found: PlaceIs) -> Entry | None:
        feed = found.newest
        if feed is None or feed.training != self._training():
            return None
        return Entry(feed.place, feed.site, feed.turn, feed)
