"""Whether a machine has enough memory for servers that nothing limits."""

from collections.abc import Sequence

from paceline.cuts.memory import memory_left
from paceline.master.parts import MasterParts
from paceline.policy.resources.memory_forecast import MemoryForecast
from paceline.wire.events.nodes import MachineShortEvent

LOOPBACK = "127.0.0.1"


class MachineMemory:
    """What is left of the machine's memory, for one job whose nodes are all on it."""

    def __init__(self, parts: MasterParts) -> None:
        self._outbox = parts.outbox
        #: No node can be on another machine than this one.
        self._is_alone = parts.spec.backend == "local" and parts.spec.listen == LOOPBACK
        self._is_told = False

    @property
    def matters(self) -> bool:
        """Whether the servers are on this machine, and nobody has said that it will not do."""
        return self._is_alone and not self._is_told

    def judge(self, found: Sequence[MemoryForecast]) -> None:
        """Tell once that the machine has less than the servers will soon need."""
        left = memory_left()
        if sum(one.near_bytes - one.used_bytes for one in found) > left:
            self._is_told = True
            need = sum((one.end_bytes or one.near_bytes) - one.used_bytes for one in found)
            self._outbox.tell(MachineShortEvent(need_bytes=need, left_bytes=left))
