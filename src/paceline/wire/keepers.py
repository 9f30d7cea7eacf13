"""Questions to the keepers of a job's journal: their votes, and where the master is.

keepers = Keepers(job.secret(), job.authority_pem())
found = await keepers.master(seats)        # or keepers.master_sync(addresses)
"""

import asyncio
from collections.abc import Callable, Iterable

from paceline.base.errors import PacelineError
from paceline.wire.codec import decoder
from paceline.wire.control import ControlClient
from paceline.wire.messages.keeping import (
    AskMaster,
    AskVote,
    KeeperCall,
    MasterIs,
    Seat,
    VoteIs,
)

ANSWER_S, MOST_S = 0.7, 5.6
"""Seconds for the answer of a keeper: at first, and at most (see `Keepers.hurried`)."""

decode_call = decoder(KeeperCall)
_decode_vote = decoder(VoteIs)
_decode_master = decoder(MasterIs)


class Keepers:
    """Keepers of one job.

    Args:
        secret: the job's.
        authority: certificate of the job's authority, PEM; empty: there is no TLS.
    """

    def __init__(self, secret: bytes, authority: bytes) -> None:
        self._secret, self._authority = secret, authority
        self._answer_s = ANSWER_S

    def hurried(self) -> None:
        """Give the next answers twice the time: a connection takes a busy machine seconds."""
        self._answer_s = min(MOST_S, 2 * self._answer_s)

    async def votes(
        self, seats: Iterable[Seat], asked: AskVote, enough: Callable[[list[VoteIs]], bool]
    ) -> list[VoteIs]:
        """Ask all for their votes; the answers that came in time, or until there are enough.

        Args:
            seats: whom.
            asked: what.
            enough: tells whether further answers need not be waited for.
        """
        found: list[VoteIs] = []
        asking = [asyncio.ensure_future(self._ask(seat.address, asked)) for seat in seats]
        for answer in asyncio.as_completed(asking):
            data = await answer
            if data is not None:
                found.append(_decode_vote(data))
                if enough(found):
                    break
        return found

    async def master(self, seats: Iterable[Seat]) -> MasterIs | None:
        """Ask all where the master is; None: nobody knows, or answers."""
        told = await asyncio.gather(*(self._ask(seat.address, AskMaster()) for seat in seats))
        return _newest(told)

    def master_sync(self, addresses: Iterable[str]) -> MasterIs | None:
        """`master` for callers without an event loop, one after the other."""
        return _newest(self._ask_sync(address, AskMaster()) for address in addresses)

    async def _ask(self, address: str, call: KeeperCall) -> bytes | None:
        if not address:
            return None
        return await asyncio.to_thread(self._ask_sync, address, call)

    def _ask_sync(self, address: str, call: KeeperCall) -> bytes | None:
        client = ControlClient(address, self._secret, self._authority)
        try:
            return client.ask_sync(call, self._answer_s)
        except PacelineError:
            return None


def _newest(told: Iterable[bytes | None]) -> MasterIs | None:
    found = [_decode_master(data) for data in told if data is not None]
    return max((one for one in found if one.address), key=lambda one: one.term, default=None)
