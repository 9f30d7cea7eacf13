"""Traits of each strategy of a job: one row each, read wherever a job's strategy matters.

The spec's rules, the master, the agent, the runtime and the report ask the row and never compare
names. A new strategy is a row here and a folder ``runtime/holding/…``. Where no holder keeps the
state like that yet, it is also a holder in ``protocol/holding/…`` and its edge in `master.holding`.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

Mode = Literal["bsp", "ssp", "asp"]
Strategy = Literal["ps", "allreduce", "fsdp", "script"]
HolderName = Literal["nobody", "servers", "replicas", "shards"]


class Traits(Struct, frozen=True, kw_only=True):
    """Traits of a strategy: what it allows, and how its workers live."""

    summary: str
    """Description for people, in one line."""
    holder: HolderName
    """Holder of the state of training; ``nobody``: the script does, and paceline counts no sample.
    For each other name ``runtime/holding/`` has a folder, and the master has a holder."""
    modes: tuple[Mode, ...] = ("bsp",)
    """The modes it trains in."""
    lives: Literal["singly", "in_rounds"] = "singly"
    """Whether workers start and restart one by one, or all together."""
    round_port: bool = False
    """Whether the workers of a round meet at a port of their own, and get time to end before the
    next one."""
    rigid: str = ""
    """Why workers cannot come and go one by one, and the remedy; empty: they can."""
    scales: Literal["freely", "evenly", "never"] = "freely"
    """Numbers of workers that the job can be scaled to; evenly: divisors of the global batch."""
    uneven_shares: str = ""
    """Why workers cannot compute unequal shares, so that no solution acts; empty: they can."""
    deterministic: tuple[Mode, ...] = ()
    """Modes in which ``deterministic`` can be asked for."""
    blocks: bool = False
    """Whether a deterministic feed says itself in which blocks its steps are computed."""
    min_workers: str = ""
    """Why the key has no meaning; empty: it has one."""
    measured: Literal["nodes", "links", "never"] = "nodes"
    """Extent of the check before the first step; links include nodes."""
    other_loops: bool = False
    """Whether a training loop of another library can be a member of the job."""
    preloaded: bool = False
    """Whether warm processes import its module, which takes seconds, before they are needed."""

    @property
    def trains(self) -> bool:
        """Whether paceline deals out the samples, and counts them."""
        return self.holder != "nobody"

    @property
    def has_servers(self) -> bool:
        """Whether parameter servers hold the state."""
        return self.holder == "servers"

    @property
    def is_group(self) -> bool:
        """Whether workers hold the state, as members of a group that does each step together."""
        return self.holder in ("replicas", "shards")

    def pace(self, mode: Mode) -> str:
        """The mode as solutions know it: that of a group is called ``allreduce``."""
        return "allreduce" if self.is_group else mode

    @property
    def module(self) -> str:
        """Where the runtime finds the strategy."""
        return f"paceline.runtime.holding.{self.holder}.strategy"


STRATEGIES: MappingProxyType[str, Traits] = MappingProxyType(
    {
        "ps": Traits(
            summary="parameter servers hold the model, and split it among them",
            holder="servers",
            modes=("bsp", "ssp", "asp"),
            deterministic=("bsp",),
            blocks=True,
            measured="links",
            min_workers="whose workers need not be many",
        ),
        "allreduce": Traits(
            summary="every worker holds the model; gradients are averaged among all",
            holder="replicas",
            deterministic=("bsp",),
            measured="links",
            other_loops=True,
        ),
        "fsdp": Traits(
            summary="every worker holds a shard of the model, as torch's fully_shard divides it",
            holder="shards",
            lives="in_rounds",
            rigid="whose workers hold the model together and restart together; change their number "
            "with `paceline scale`",
            scales="evenly",
            uneven_shares="whose workers compute equal shares",
            min_workers="which needs all workers",
            preloaded=True,
        ),
        "script": Traits(
            summary="the script trains on its own, as under torchrun",
            holder="nobody",
            lives="in_rounds",
            round_port=True,
            rigid="whose workers know their number from the start and begin together; stop the job "
            "and start it with another --workers, or train with --strategy allreduce",
            scales="never",
            uneven_shares="which cannot be acted on",
            measured="never",
        ),
    }
)


def those(having: Callable[[Traits], object]) -> str:
    """Name the strategies whose row has something, for messages: ``ps, allreduce or fsdp``."""
    *others, last = [name for name, row in STRATEGIES.items() if having(row)]
    return f"{', '.join(others)} or {last}" if others else last
