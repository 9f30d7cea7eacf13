"""Workers that begin together, and after a failure end and begin again together.

Strategies script and fsdp. A *round* is one life of every worker, as torchrun's worker group is.
What the membership needs for it beside the nodes: which round it is, where its workers meet, who
ended it, and how. Pure; `paceline.protocol.nodes.membership` decides by it.

Of a job whose workers are on several machines, a round begins when all workers have their agents.
Rank 0 listens on its own machine, so its agent finds the port. Ranks of one machine are contiguous.
"""

from collections.abc import Iterable, Mapping

import msgspec

from paceline.base.numbering import Inc
from paceline.protocol.nodes.exits import Judged, is_echo
from paceline.wire.events.nodes import Verdict
from paceline.wire.messages.agent import Ranks
from paceline.wire.messages.node import ScriptError


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's life in a round ended, on its own or by an order of the user."""

    node: str
    inc: Inc
    judged: Judged
    error: ScriptError | None = None
    ordered: bool = False
    """True: the user ordered the end, and it costs no budget."""

    @property
    def is_echo(self) -> bool:
        """Whether it only reports that a peer was gone."""
        return self.error is not None and is_echo(self.error)

    @property
    def is_final(self) -> bool:
        """Whether to begin again cannot help."""
        return self.judged.verdict is Verdict.UNRETRYABLE


class Rounds:
    """The rounds of one job: which is current, where its workers meet, why the last one ended."""

    def __init__(
        self,
        *,
        grace_s: float,
        by_itself: bool = True,
        machines: int = 1,
        anywhere: bool = False,
        meets: bool = True,
    ) -> None:
        """Begin with round 0, which has no place to meet so far.

        Args:
            grace_s: for a script to end in order.
            by_itself: the scripts train by themselves: no more than their ends is known of them.
            machines: machines of the job; each has as many workers. All but the first join.
            anywhere: the platform puts workers on machines as it likes.
            meets: the workers meet at a port.
        """
        self.grace_s, self.by_itself = grace_s, by_itself
        self.machines, self.anywhere, self.meets = machines, anywhere, meets
        # Durable: changed by `RoundSet` only.
        self.number = 0
        self.port = 0
        self.host = ""
        """Address at which rank 0 listens; empty: that of the master's machine."""
        self.ranks: Mapping[str, Ranks] = {}
        """Ranks of each worker, by name; none: all are on one machine."""
        # Volatile.
        self.asked_s: float | None = None
        """Time at which an agent was last asked where the round can meet; None: none was."""
        self.awaited_s: float | None = None
        """Time since which machines are awaited without which no round begins; None: none are."""
        #: Of the round that is over, in the order in which they were told.
        self.ends: list[Ended] = []
        self.began_s = 0.0
        #: Short rounds in a row.
        self.streak = 0

    @property
    def spreads(self) -> bool:
        """Whether its workers may be on several machines."""
        return self.machines > 1 or self.anywhere

    def set(self, number: int, port: int, host: str, groups: tuple[tuple[str, ...], ...]) -> None:
        """Take in a round, by its record; ``groups``: workers by machine, in the order of ranks."""
        self.number, self.port, self.host = number, port, host
        self.ranks, self.asked_s = ranks_of(groups, host), None

    def take_cause(self) -> Ended | None:
        """Why the round is over; None: a former master knew, or nobody.

        Whose peer has died fails as well, and may be heard first.
        """
        ends, self.ends = self.ends, []
        return min(ends, key=lambda end: end.is_echo, default=None)


def ranks_of(groups: tuple[tuple[str, ...], ...], host: str) -> dict[str, Ranks]:
    """Return the ranks of each worker, by name.

    Args:
        groups: names of the workers of each machine, in the order of their ranks.
        host: address at which rank 0 listens.
    """
    found: dict[str, Ranks] = {}
    for machine, names in enumerate(groups):
        for local_rank, name in enumerate(names):
            found[name] = Ranks(
                rank=len(found),
                local_rank=local_rank,
                local_size=len(names),
                machine=machine,
                machines=len(groups),
                host=host,
            )
    return found


def by_machine(workers: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Group workers by their machines; the machine of the first worker comes first.

    Args:
        workers: name and machine of each, by number.
    """
    found: dict[str, list[str]] = {}
    for name, machine in workers:
        found.setdefault(machine, []).append(name)
    return tuple(map(tuple, found.values()))
