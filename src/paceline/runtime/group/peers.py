"""The peers of a member: the stores in which groups come together, and words to all of one group.

Torch's groups connect while others may already be heard of, or be over: there is a store for each.
"""

from collections.abc import Sequence
from functools import partial

from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.group.store import PeerStore
from paceline.runtime.process.exchange import Exchange
from paceline.wire.messages.data import Data
from paceline.wire.messages.group import Meet, RunGroup

MEET_S = 10.0
"""Seconds for which a member waits for its peers to come into a new group."""
LEFT = "left"
"""Key that a member sets who leaves a group before it is connected; the others need not wait."""


class GroupPeers:
    """The other members of this one's groups. Callers hold the lock of the exchange.

    Args:
        exchange: sends messages to them.
        state: knows which group runs.
    """

    def __init__(self, exchange: Exchange, state: MemberState) -> None:
        self._exchange, self._state = exchange, state
        self._stores: dict[int, PeerStore] = {}

    def store(self, group: int) -> PeerStore:
        """Return the store of a group; those of groups before it are over."""
        if group not in self._stores:
            for old in [number for number in self._stores if number < self._state.ran]:
                self._stores.pop(old).end()
            self._stores[group] = PeerStore(partial(self._set, group), MEET_S)
        return self._stores[group]

    def met(self, message: Meet, value: bytes) -> None:
        """Take in what a peer has set in the store of a group."""
        if not self._state.may_meet(message.epoch_no, message.group):
            return
        store = self.store(message.group)
        if message.key == LEFT:
            store.leave(message.inc)
        else:
            store.put(message.key, value)

    def tell(self, run: RunGroup, message: Data, frames: Sequence[bytes] = ()) -> None:
        """Leave a message to be sent to all peers in a group."""
        for member in run.members:
            if member.inc != self._state.inc:
                send = partial(self._exchange.data.send, member.inc, message, frames)
                self._exchange.leave(send)

    def connect(self, run: RunGroup) -> None:
        """Leave it to be done that we are connected to the peers in a group and no others."""
        self._exchange.leave(partial(self._connect, run))

    def leave(self, run: RunGroup) -> None:
        """Tell the peers in a group, which we never were connected to, that we leave it.

        Those that are connected find our connections closed. If another one has left before, the
        peers know that the group is over.
        """
        store = self._stores.get(run.group)
        if store is None or not store.left:
            message = Meet(epoch_no=run.epoch_no, inc=self._state.inc, group=run.group, key=LEFT)
            self.tell(run, message, [b""])

    def drop(self) -> None:
        """End the stores of the group that we worked in, and before; a later one may be open."""
        for number, store in self._stores.items():
            if number <= self._state.ran:
                store.end()

    def _set(self, group: int, key: str, value: bytes) -> None:
        """Set something in the stores of all peers; called by torch while it connects."""
        with self._exchange.changed:
            run = self._state.running
            if run is None or run.group != group:
                return
            message = Meet(epoch_no=run.epoch_no, inc=self._state.inc, group=group, key=key)
            self.tell(run, message, [value])

    def _connect(self, run: RunGroup) -> None:
        data = self._exchange.data
        peers = {one.inc: one.address for one in run.members if one.inc != self._state.inc}
        for gone in set(data.keys()) - set(peers):
            data.disconnect(gone)
        for inc, address in peers.items():
            data.connect(inc, address)
