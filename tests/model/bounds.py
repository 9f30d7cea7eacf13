"""How large an explored job is, which classes it runs, and numbers for values."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.training import MasterState

from .cells import File, cut_directory

T = TypeVar("T")
FAILURES = ("worker", "server", "master", "suspect-worker", "suspect-server")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How large the explored job is and what may happen to it."""

    mode: str = "asp"
    samples: int = 2
    epochs: int = 1
    """``samples`` are those of one epoch."""
    slice: int = 2
    """Samples of a step (bsp)."""
    workers: int = 2
    servers: int = 2
    leases: tuple[int, ...] = (1,)
    """Sizes that a grant may have (asp)."""
    window: int = 1
    failures: int = 0
    kinds: tuple[str, ...] = FAILURES
    cuts: int = 1
    moves: int = 0
    """Times at which servers join, or leave, or replace others while training goes on."""
    joins: int = 1
    """Servers that join in a move."""
    leaves: int = 1
    """Servers that leave in a move, whichever."""
    moves_first: bool = False
    """The first move is ordered before any sample is granted; later it may be at any moment."""
    fails_in_moves: bool = False
    """Failures happen only while servers join or leave."""
    rests_in_moves: bool = False
    """The master grants no samples meanwhile: workers ask, hear and die."""
    plans: int = 0
    """Changes of who computes what (bsp): by turns all of a step is one worker's."""
    left_out: int = 0
    """Samples of a step that may be missing when it is decided (bsp)."""
    in_grace: int = 0
    """Samples of it that are waited for until a moment that may be any (bsp)."""
    leads: tuple[int, ...] = (1,)
    """Steps after the undecided one, as the master knows it, in which a plan is to begin."""
    restarts: str = "alone"
    """``alone``: no worker is started again while one lives; ``any``."""
    prefetch: bool = False
    """Workers ask before they have nothing left."""
    late: bool = False
    """Answers of servers to workers are messages like all others; else heard at once."""
    reduce: bool = True
    """Forget what an epoch left behind, and messages that can do nothing any more."""
    pull_first: bool = True
    """A worker pulls from all servers of an epoch before it works in it."""


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The classes under test; a planted flaw replaces one."""

    server: type[ServerState] = ServerState
    worker: type[WorkerState] = WorkerState
    master: type[MasterState] = MasterState
    holder: type[ServerHolder] = ServerHolder
    cut_directory: Callable[[int, int], str] = cut_directory


class Env(msgspec.Struct, frozen=True):
    """What belongs to no process."""

    failures: int
    cuts: int
    moves: int
    plans: int
    next_inc: int
    slots: tuple[int, ...]
    """The newest incarnation of each server."""
    joiners: tuple[int, ...] = ()
    """Servers that were started to take what others have."""
    leavers: tuple[int, ...] = ()
    """Servers that are to leave when these have it."""
    joiners_dead: frozenset[int] = frozenset()
    """Or taken for dead."""
    joiners_unseen: frozenset[int] = frozenset()
    """The present life of the master has not been told that they are dead."""
    dead: frozenset[int] = frozenset()
    """Workers that have ended; the master may not know."""
    unheard: frozenset[int] = frozenset()
    """Live workers that this life of the master has not heard of."""
    suspected: frozenset[int] = frozenset()
    """Live workers that this life of the master takes for dead."""
    files: tuple[File, ...] = ()


class Table(Generic[T]):
    """Numbers for values."""

    def __init__(self) -> None:
        self.ids: dict[T, int] = {}
        self.values: list[T] = []

    def __call__(self, value: T) -> int:
        found = self.ids.get(value)
        if found is None:
            found = self.ids[value] = len(self.values)
            self.values.append(value)
        return found
