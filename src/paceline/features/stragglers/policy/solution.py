"""Port of solutions: named policies that turn an observation into actions.

Reference: AntDT section V-E. A solution of a user derives from `Solution`, and is found by an entry
point of the group ``paceline.solutions`` (see `paceline.features.stragglers.policy.registry`).
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from paceline.policy.actions import AdjustBatch, AnyAction, KillRestart, Share
from paceline.policy.observation import Observation, ServerSeen, WorkerSeen

Steps = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Part = Annotated[float, Meta(gt=0, lt=1)]

MODES = ("bsp", "ssp", "asp", "allreduce")
SYNCHRONOUS = ("bsp", "allreduce")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The times that a rule has held against each other, for people who ask why it acted."""

    times_s: dict[str, float]
    """Seconds by node; those that it did not look at are missing."""
    usual_s: float | None = None
    """Seconds against which the action's node was held; None: the others' mean."""
    verb: str = "took"
    """Between a node and its time."""


class Solution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all solutions; the fields are the parameters that a user may set.

    It is asked again when both ``every_steps`` and ``every_s`` have passed. It remembers nothing
    between two questions, reads no clock and draws no numbers, so that a log of observations can be
    replayed with any solution.
    """

    modes: ClassVar[tuple[str, ...]] = MODES
    """The modes that it is made for; a job in another mode does not start with it."""

    every_steps: Steps = 10
    every_s: Seconds = 0.0

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Decide what to do now; an empty list is NONE."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it decides")

    def compared(self, seen: Observation, action: AnyAction) -> Compared:
        """The times behind one of its actions, which `paceline explain` shows.

        Unless a solution says otherwise, those of the short window; of a restart the long window,
        where it is full.
        """
        restarted = action.node if isinstance(action, KillRestart) else ""
        on_servers = restarted.startswith("server")
        nodes: tuple[WorkerSeen | ServerSeen, ...] = seen.servers if on_servers else seen.workers
        is_long = any(each.node == restarted and each.long is not None for each in nodes)
        windows = ((each.node, each.long if is_long else each.short) for each in nodes)
        return Compared(
            times_s={
                node: pace.server_s if on_servers else pace.compute_s
                for node, pace in windows
                if pace is not None
            }
        )


def adjusted(
    workers: Iterable[WorkerSeen], sizes: Iterable[int], reason: str, gain_s: float = 0.0
) -> list[AnyAction]:
    """ADJUST_BS to these samples per step, in as many batches as now where that can be.

    Nothing where they are in force already.
    """
    shares = {
        worker.node: Share(int(size) // worker.accumulation, worker.accumulation)
        if size % worker.accumulation == 0
        else Share(int(size))
        for worker, size in zip(workers, sizes, strict=True)
    }
    present = {each.node: Share(each.batch_size, each.accumulation) for each in workers}
    if shares == present:
        return []
    return [AdjustBatch(shares=shares, reason=reason, gain_s=gain_s)]


def even(total: int, count: int) -> list[int]:
    """Parts that differ by one at most."""
    least, more = divmod(total, count)
    return [least + (index < more) for index in range(count)]
