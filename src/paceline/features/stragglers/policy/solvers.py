"""Exact solvers: how many samples each worker computes of a step.

Reference: AntDT section VI, equations 2 to 4; FALCON section 4.3 (the greedy).
Differs: costs are affine where the paper has B_i / v_i, answers are whole samples, and the largest
remainder, which is not always optimal, is not used.
"""

import bisect
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.base.errors import PermanentError
from paceline.policy.actions import Share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_CLOSE = 1e-12
"""Relative; the search over the time ends here, and the greedy gives the last samples."""


class Infeasible(PermanentError):
    """No division keeps all limits."""


def level(
    delays_s: Floats,
    slopes_s: Floats,
    total: int,
    lower: Ints | int = 1,
    upper: Ints | int | None = None,
) -> Ints:
    """Divide a step so that its slowest worker is as fast as can be.

    Minimises max_i (delay_i + slope_i * B_i), with sum B_i = total. Where a worker is beyond help
    (its delay alone is above what the others take) the others are still levelled among themselves.

    Args:
        delays_s: constant part of each worker's time, at least 0.
        slopes_s: time per sample, above 0; equation 3 of the paper is delays of 0, slopes 1/v.
        total: samples of the step.
        lower: least share of each; 0 leaves a worker out.
        upper: largest share of each; None: the whole step.

    Raises:
        ValueError: a delay or a slope is out of range.
        Infeasible: the limits leave no division.
    """
    count = len(slopes_s)
    if not (np.isfinite(delays_s) & (delays_s >= 0.0) & np.isfinite(slopes_s)).all():
        raise ValueError("delays must be at least 0 and finite, slopes finite")
    if not (slopes_s > 0.0).all():
        raise ValueError("slopes must be above 0")
    least = np.broadcast_to(np.asarray(lower, np.int64), count)
    most = np.broadcast_to(np.asarray(total if upper is None else upper, np.int64), count)
    most = np.minimum(most, total)
    if (least > most).any() or not least.sum() <= total <= most.sum():
        raise Infeasible(
            f"{total} samples for {count} workers: at least {least.sum()}, at most {most.sum()}"
        )

    def within(time_s: float) -> Ints:
        """The largest shares that take no longer."""
        room = np.clip(np.floor((time_s - delays_s) / slopes_s), least, most).astype(np.int64)
        too_long = (delays_s + slopes_s * room > time_s) & (room > least)
        return np.asarray(room - too_long, np.int64)

    low_s, high_s, shares = 0.0, float((delays_s + slopes_s * most).max()), least
    while high_s - low_s > _CLOSE * high_s and shares.sum() < total:
        middle_s = 0.5 * (low_s + high_s)
        tried = within(middle_s)
        if tried.sum() > total:
            high_s = middle_s
        else:
            low_s, shares = middle_s, tried
    return _greedy(delays_s, slopes_s, shares, most, total - int(shares.sum()))


def _greedy(delays_s: Floats, slopes_s: Floats, shares: Ints, most: Ints, left: int) -> Ints:
    """Give what is left, one sample at a time, to whom it makes least late (FALCON section 4.3).

    Called with shares of equal times, up to ties and rounding: a round gives a sample to each of
    those whose turn it is.
    """
    shares = shares.copy()
    while left > 0:
        after_s = np.where(shares < most, delays_s + slopes_s * (shares + 1), np.inf)
        give = min(left, int((after_s < np.inf).sum()))
        first = np.argsort(after_s, kind="stable")[:give]
        # A worker that gets one may be next again before the last of these.
        again_s = (after_s[first] + slopes_s[first]).min()
        turn = first[after_s[first] <= again_s]
        shares[turn] += 1
        left -= len(turn)
    return shares


# ------------------------------------------------------------------ dedicated clusters (DD)


class HardwareClass(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one kind, and the measured time of a batch on one of them."""

    devices: int
    sizes: tuple[int, ...]
    """Batch sizes that were measured, ascending."""
    times_s: tuple[float, ...]
    """Time at each; between two the curve is a line."""
    smallest: int
    """Saturation point: below it a smaller batch is hardly faster."""
    largest: int
    """Largest batch that fits into memory."""
    beside_s: float = 0.0
    """Seconds that a step takes in addition to its batches."""

    def time_s(self, batch_size: int) -> float:
        """The time of one batch."""
        return float(np.interp(batch_size, self.sizes, self.times_s))

    def step_s(self, share: Share) -> float:
        """The time of a step with these batches; infinite where they are not allowed."""
        if not self.smallest <= share.batch_size <= self.largest:
            return math.inf
        return share.accumulation * self.time_s(share.batch_size) + self.beside_s


class NoExactSum(Infeasible):
    """No allowed batch sizes and accumulations add up to the global batch.

    Attributes:
        nearest: global batches next to it that can be had, below and above.
    """

    def __init__(self, total: int, nearest: tuple[int, ...]) -> None:
        near = " or ".join(map(str, nearest))
        super().__init__(
            f"no batch sizes and accumulations add up to a global batch of {total}; {near} would do"
        )
        self.nearest = nearest


def dedicated(
    classes: Sequence[HardwareClass],
    total: int,
    accumulation: tuple[int, int] = (1, 5),
    *,
    nearest: bool = False,
) -> list[Share]:
    """Batch size and accumulation of each hardware class (equation 4).

    Minimises max_i C_i * T_i(B_i) + beside_i with sum n_i * C_i * B_i = total, exactly: by search
    over the time, asking for each which sums can be reached within it.

    Args:
        classes: at least one.
        total: global batch B.
        accumulation: least and largest C_i.
        nearest: take the nearest global batch that can be had where B cannot.

    Raises:
        NoExactSum: B cannot be had, and ``nearest`` was not asked for.
        Infeasible: a class has no batch size at all.
    """
    options = [_options(each, accumulation) for each in classes]
    if not all(options):
        raise Infeasible("a hardware class whose saturation point is above its memory limit")
    times_s = sorted({time_s for each in options for time_s, _, _ in each})
    least_s = _least_s(options, times_s, total)
    if least_s is None:
        most = sum(max(samples for _, samples, _ in each) for each in options)
        near = _neighbours(_reached(options, times_s[-1], most)[-1], total)
        if not nearest:
            raise NoExactSum(total, near)
        return dedicated(classes, min(near, key=lambda sum_: abs(sum_ - total)), accumulation)
    return _traced(options, least_s, total)


_Option = tuple[float, int, Share]
"""Time of a step, samples of all devices of the class, and how."""


def _options(each: HardwareClass, accumulation: tuple[int, int]) -> list[_Option]:
    """The fastest way to each number of samples, by time."""
    fastest: dict[int, _Option] = {}
    low, high = accumulation
    sizes = range(each.smallest, each.largest + 1)
    batches = list(zip(sizes, np.interp(sizes, each.sizes, each.times_s).tolist(), strict=True))
    for count, (size, batch_s) in itertools.product(range(low, high + 1), batches):
        samples, time_s = each.devices * count * size, count * batch_s + each.beside_s
        if samples not in fastest or time_s < fastest[samples][0]:
            fastest[samples] = (time_s, samples, Share(size, count))
    return sorted(fastest.values(), key=lambda option: option[:2])


def _least_s(options: list[list[_Option]], times_s: list[float], total: int) -> float | None:
    """The first of the times within which the sum can be had; None: in none.

    Below the time at which the largest batches together are enough it cannot; from there the answer
    is seldom far, and each question is dear, the more so the more time there is: so the search
    begins there, in steps that double.
    """

    def most(time_s: float) -> int:
        within = ((s for taken_s, s, _ in each if taken_s <= time_s) for each in options)
        return sum(max(each, default=0) for each in within)

    last = len(times_s) - 1
    start = low = high = bisect.bisect_left(times_s, total, key=most)
    while low <= last and not _is_reached(options, times_s[high], total):
        low, high = high + 1, min(high + 1 + high - start, last)
    if low > last:
        return None
    best = bisect.bisect_left(
        times_s, True, low, high, key=lambda time_s: _is_reached(options, time_s, total)
    )
    return times_s[best]


def _reached(options: list[list[_Option]], time_s: float, most: int) -> list[int]:
    """Sums within a time and up to ``most``, of the first 0, 1, ... classes: bit s for sum s."""
    mask = (1 << (most + 1)) - 1
    reached = [1]
    for each in options:
        sums = 0
        for taken_s, samples, _ in each:
            if taken_s > time_s:
                break
            if samples <= most:
                sums |= reached[-1] << samples
        reached.append(sums & mask)
    return reached


def _is_reached(options: list[list[_Option]], time_s: float, total: int) -> bool:
    """Whether the sum can be had within the time.

    The last class's sums, the largest to form, are not formed but looked for.
    """
    before = _reached(options[:-1], time_s, total)[-1].to_bytes(total // 8 + 1, "little")
    return any(
        before[(total - samples) >> 3] >> ((total - samples) & 7) & 1
        for taken_s, samples, _ in options[-1]
        if taken_s <= time_s and samples <= total
    )


def _traced(options: list[list[_Option]], time_s: float, total: int) -> list[Share]:
    """One way to the sum within the time; of several, each class's fastest."""
    shares: list[Share] = []
    reached = _reached(options[:-1], time_s, total)
    for each, before in zip(reversed(options), reversed(reached), strict=True):
        samples, share = next(
            (samples, share)
            for _, samples, share in each
            if samples <= total and before >> (total - samples) & 1
        )
        total -= samples
        shares.append(share)
    return shares[::-1]


def _neighbours(sums: int, total: int) -> tuple[int, ...]:
    """The nearest set bits below and above."""
    below = (sums & ((1 << total) - 1)).bit_length() - 1
    above = sums >> total
    lowest = (above & -above).bit_length() - 1
    return tuple(([below] if below >= 0 else []) + ([total + lowest] if above else []))
