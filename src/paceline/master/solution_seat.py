"""The seats of policies in a master: each is taken where the spec names one."""

from paceline.master.inbox import Inbox
from paceline.master.members import MembersEdge
from paceline.master.memory_watch import MemoryWatch
from paceline.master.parts import MasterParts, Times
from paceline.master.size_moves import SizeMoves
from paceline.master.sizing import SizingSeat
from paceline.master.training import Training


class SolutionSeat:
    """The seat of the resource policy, the moves that it orders, and the history of jobs."""

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        inbox: Inbox,
        training: Training,
        members: MembersEdge,
        memory: MemoryWatch,
    ) -> None:
        self._moves = SizeMoves(parts, times, training, members, memory.sizes)
        self.sizing = SizingSeat(parts, times, inbox, training, members, memory)

    def begin(self) -> None:
        """Ask the policies that the spec names from now on.

        Raises:
            ConfigError: there is no such policy, or it takes no such parameters.
        """
        self.sizing.begin()

    def tick(self, now_s: float) -> None:
        """Carry out moves, and ask, if it is time to."""
        self._moves.tick(now_s)
        self.sizing.tick(now_s)
