"""History of one node, which the monitor keeps and a solution sees.

The master and the simulator feed every report of a node to its `NodeHistory`, and ask it when an
observation is made. It has no clock.
"""

import msgspec

from paceline.policy.stats.regimes import SAME_SIZE, Regime, Regimes
from paceline.policy.stats.windows import Blocks, Pace, Window, WindowMeans

__all__ = ["PAPER", "Lengths", "NodeHistory", "ProfiledTimes", "WindowMeans"]


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lengths of the two sliding windows; each ends at the first of its two limits."""

    short_iterations: int | None = 100
    """L_trans; None: not counted in iterations."""
    short_s: float | None = 300.0
    """L_trans; None: not counted in time."""
    long_iterations: int | None = 200
    """L_per."""
    long_s: float | None = 600.0
    """L_per."""
    smoothing: float = 0.3
    """Weight of the newest report in the exponential average that LB-BSP predicts speed by."""
    block_s: float = 2.0
    """Reports are put together until they span so much, before a node's regime is judged by them:
    on a machine that does other work single seconds say nothing about a node."""


class ProfiledTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Times of a worker for batches of one size that were not applied (`Profile`)."""

    batch_size: int
    batches: int
    batch_s: float
    """Mean of one, with what lies between two."""
    peak_bytes: int = 0
    """The most memory that its process had meanwhile; 0: not known."""


PAPER = Lengths(short_iterations=None, long_iterations=None)
"""5 and 10 minutes, whatever an iteration takes (AntDT section VII-A-5)."""


class NodeHistory:
    """Windows and regimes of one node; O(1) amortised per report.

    Raises:
        ValueError: a window has no limit, or one that is not positive.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._short = Window(lengths.short_iterations, lengths.short_s, lengths.smoothing)
        self._long = Window(lengths.long_iterations, lengths.long_s, lengths.smoothing)
        self._blocks = Blocks(lengths.block_s, SAME_SIZE)
        self._regimes = Regimes()
        self._profile: dict[int, ProfiledTimes] = {}

    def report(self, report: WindowMeans) -> None:
        """Take in what the node showed; a report of no iterations or no time is passed over."""
        if report.iterations <= 0 or not report.compute_s + report.server_s > 0.0:
            return
        self._short.add(report)
        self._long.add(report)
        block = self._blocks.add(report)
        if block is not None:
            self._regimes.add(block)

    def profiled(self, profiled: ProfiledTimes) -> None:
        """Take in what batches took that are no part of the training: of each size the newest."""
        self._profile[profiled.batch_size] = profiled

    @property
    def profile(self) -> tuple[ProfiledTimes, ...]:
        """The profile of this life, by batch size, ascending."""
        return tuple(self._profile[size] for size in sorted(self._profile))

    def restart(self) -> None:
        """The node's process has ended: what comes is another life, perhaps on another machine."""
        self._short.clear()
        self._long.clear()
        self._blocks.clear()
        self._regimes = Regimes()
        self._profile.clear()

    def take_spells(self) -> list[float]:
        """Seconds that each slow spell lasted that has ended since this was last asked."""
        return self._regimes.take_spells()

    def short(self, now_s: float) -> Pace | None:
        """Means over L_trans; None: nothing measured in it."""
        return self._short.pace(now_s)

    def long(self, now_s: float) -> Pace | None:
        """Means over L_per; None: it is not full, or nothing was measured in it lately."""
        return self._long.pace(now_s) if self._long.full() else None

    def regime(self, now_s: float) -> Regime | None:
        """Since the last change point; None: nothing measured within L_per."""
        return self._regimes.present() if self._long.is_fresh(now_s) else None
