"""The best division of a synchronous step: who computes how much, and who is not waited for.

Reference: AntDT section VI-A, equation 2; Chen et al. 2016, arXiv:1604.00981 (backup workers).
Differs: costs are affine; a worker beyond help (its delay alone is longer than the others' step)
keeps one sample that a step may lack, so that its recovery is seen; steps may go without a part of
their samples where recorded steps would have been faster so.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.features.stragglers.policy import solvers
from paceline.features.stragglers.policy.fleet import Bools, Fleet
from paceline.features.stragglers.policy.solvers import Floats, Ints
from paceline.features.stragglers.policy.trials import Patience, Recorded, Trial
from paceline.policy.observation import Observation

_MOST_LEFT_OUT = 0.25
"""Largest part of a step's samples that is considered for being left out."""
_LACKING = (0.05, 0.1, _MOST_LEFT_OUT)
"""Parts of a step that are tried, and those of one worker at least."""
_GRACES = (0.05, 0.15, 0.4)
"""Lengths of a grace that are tried, as parts of a step, besides none."""
_CHUNKS = ((1, 4), (2, 8))
"""Contributions of a worker to a step, that are tried; the latter where more than one is best."""
_OF_ROUND_TRIP = 0.5
"""Part of a round trip that one contribution more of a step costs
(`experiments/benchmarks/chunk_cost.py`)."""
_LEAST_CHUNK = 4
"""Samples of a contribution."""
_LEAST_RECORD = 8
"""Recorded steps, from which it can be told what comes at random."""
_SPREAD = 0.04
"""Part by which a step must take longer than if nobody ever waited; else it wins nothing not to
wait."""
_SAME, _EQUAL = 0.002, 0.005
"""Parts of a step by which plans do not differ."""
_PERSISTENT = 0.85
"""Part of the time for which workers are expected to stay as they are; below it, slow spells come
and go."""
_GRACE = 0.01
"""Part of a step for which a grace that is in force stays."""
_SIGMAS = 1.5
"""Number of errors above 0 from which a gain is sure."""

_LEAST_SHORT_S = 0.1
"""Steps that are shorter wait for all that are late by chance: who is late must hear of it."""


def in_force(seen: Observation) -> Patience:
    """Return the patience that the last actions have set."""
    if seen.backup:
        largest = sorted(each.batch_size * each.accumulation for each in seen.workers)
        return Patience(left_out=sum(largest[-seen.backup :]))
    return Patience(seen.left_out, seen.late, seen.grace_s, seen.chunks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares by worker, in the observation's order."""

    shares: Ints
    patience: Patience
    beyond_help: Bools
    step_s: float
    """Predicted."""


class Restart(NamedTuple):
    """Effect of the restart of one worker, as parts of a step's time."""

    gain: float
    """Saved once it is as is usual."""
    absence: float
    """Lost until then, held against what a step takes afterwards."""


class StepModel:
    """Predicts the time of a step of one observation, under any division."""

    def __init__(self, seen: Observation, fleet: Fleet, growth: float, lasting: Floats) -> None:
        """Begin.

        Args:
            seen: the job.
            fleet: present costs.
            growth: a worker gets at most so many times its present, or an even, share.
            lasting: the part of the time to come that each is as it is now.
        """
        self._seen, self._growth = seen, growth
        self._now, self._lasting, self._fleet = fleet, lasting, fleet.expected(lasting)
        # The share of one that is gone is done by the others.
        self._shares = fleet.shares * (seen.global_batch / max(fleet.shares.sum(), 1))
        self._in_force = in_force(seen)

    @functools.cached_property
    def _record(self) -> Recorded:
        return Recorded.of(self._seen.workers, self._now, self._lasting, *_messages_s(self._seen))

    @functools.cached_property
    def _present(self) -> Trial:
        return self._record.trials(self._shares, [self._in_force])[0]

    @property
    def present_s(self) -> float:
        """The time of a step with the plan in force."""
        return self._present.step_s

    def level_s(self) -> float:
        """The time of the slowest worker that is waited for, with the best division of work."""
        return self._levelled(self._fleet)[2]

    def best(self, min_gain: float, worth_s: float) -> Shares:
        """The plan of the shortest step, where it saves enough; else that in force.

        Args:
            min_gain: part of a step that other short steps must surely save.
            worth_s: seconds that other shares must save beside the best short steps.
        """
        measured = all(each.regime is not None for each in self._seen.workers)
        patience, trial = self._in_force, self._present
        if measured:
            patience, trial = self._patient(self._shares, Patience(), [])
        if measured and self._may_be_short():
            for some in _CHUNKS:  # where a few contributions do not help, more do not, either
                options = self._options(self._fleet.shares, some)
                patience, trial = self._patient(self._shares, Patience(), [patience, *options])
                if patience.chunks == 1:
                    break
        least_s = min_gain * self.present_s
        shares, beyond, _ = self._levelled(self._fleet)
        none_beyond = np.zeros(len(shares), np.bool_)
        best = Shares(
            shares=self._fleet.shares,
            patience=self._in_force,
            beyond_help=none_beyond,
            step_s=self.present_s,
        )
        if trial.surely_saves(self._present, _SIGMAS) >= least_s:
            best = dataclasses.replace(best, patience=patience, step_s=trial.step_s)
        if (shares == self._fleet.shares).all() or (not measured and any(self._in_force[:2])):
            return best  # who has not been measured yet may be what the plan in force is for
        # Who is beyond help gets a sample that nobody waits for.
        lacking = Patience(left_out=int(shares[beyond].sum()))
        divided, trial = self._patient(shares.astype(np.float64), lacking, [best.patience])
        # All else equal a step that lacks nothing is better than one that does; where spells are
        # soon over, one that is ready for the next is.
        equal_s = (1.0 + _EQUAL) * best.step_s
        if any(best.patience[:2]) and self._come_and_go:
            equal_s = best.step_s - worth_s
        good_s = min(self.present_s - worth_s, equal_s)
        if trial.step_s > good_s:
            return best
        return Shares(shares=shares, patience=divided, beyond_help=beyond, step_s=trial.step_s)

    def _patient(
        self, shares: Floats, least: Patience, others: Sequence[Patience]
    ) -> tuple[Patience, Trial]:
        """The best short steps with these shares; of those that are as good the simplest.

        A grace that is in force costs nothing while nobody is late, and is there when somebody is.

        ``least``: what a step may lack in any case.
        """
        more = [
            each._replace(
                left_out=each.left_out + least.left_out,
                late=each.late and each.late + least.left_out,
            )
            for each in others
        ]
        kept = self._in_force if self._in_force.left_out >= least.left_out else least
        plans = list(dict.fromkeys([self._ready(least), kept, *more]))
        tried = self._record.trials(shares, plans)
        found = min(range(len(plans)), key=lambda place: tried[place].step_s)
        good_s = (1.0 + _SAME) * tried[found].step_s
        found = next(place for place, each in enumerate(tried) if each.step_s <= good_s)
        if kept.late:
            stays = plans.index(kept)
            found = stays if tried[stays].step_s <= (1.0 + _GRACE) * tried[found].step_s else found
        return plans[found], tried[found]

    def _ready(self, least: Patience) -> Patience:
        """Add a grace for the next spell, if spells come and go; it is free until then."""
        now = self._in_force
        late = max(now.left_out, now.late)
        if not self._come_and_go or late <= len(self._shares):
            return least
        level_s = float(np.median(self._fleet.times_s(self._fleet.shares)))
        return Patience(least.left_out, late, now.grace_s or round(_GRACES[0] * level_s, 3))

    @property
    def _come_and_go(self) -> bool:
        """Whether slow spells of this job are over within a minute or so."""
        return float(np.median(self._lasting)) < _PERSISTENT

    def _may_be_short(self) -> bool:
        return (
            self._seen.short_steps
            and self.present_s >= _LEAST_SHORT_S
            and len(self._record) >= _LEAST_RECORD
            and self.present_s >= (1.0 + _SPREAD) * self._record.fluid_s(self._shares)
        )

    def _options(self, shares: Ints, some: Sequence[int]) -> list[Patience]:
        """Short steps that are tried."""
        total, largest = self._seen.global_batch, int(shares.max())
        most = int(_MOST_LEFT_OUT * total * (1.0 + 1e-9))
        one = max(most, largest) if len(shares) * _MOST_LEFT_OUT >= 1.0 else 0
        split = all(each.accumulation == 1 for each in self._seen.workers)
        usual = int(np.median(shares))
        level_s = float(np.median(self._fleet.times_s(shares)))
        found: list[Patience] = []
        for chunks in some:
            if chunks > 1 and not (split and usual >= chunks * _LEAST_CHUNK):
                break
            least = largest if chunks == 1 else 1
            for lacking in sorted({max(int(part * total), least) for part in _LACKING}):
                if lacking > (one if chunks == 1 else most):
                    continue
                found.append(Patience(lacking, 0, 0.0, chunks))
                found += [
                    Patience(0, lacking, round(grace * level_s, 3), chunks) for grace in _GRACES
                ]
        return found

    def restarts(self, workers: Sequence[int]) -> list[Restart]:
        """Return the effect of the restart of each of these, with work divided as well as can be.

        A worker that nobody waits for, or whose samples the others cannot take, saves nothing by
        itself. Where several hold the others up, each saves its part of what they save together,
        and no more than it would save once the others are healed.
        """

        def level_s(healed: Sequence[int]) -> float:
            return self._levelled(self._fleet.healed(healed))[2]

        if not workers:
            return []
        now_s, all_s = level_s([]), level_s(workers)
        found = []
        now, total = self._in_force, self._seen.global_batch
        for worker in workers:
            last_s = level_s([other for other in workers if other != worker]) - all_s
            together_s = min((now_s - all_s) / len(workers), last_s)
            gain_s = max(now_s - level_s([worker]), together_s, 0.0)
            share = int(self._fleet.shares[worker])
            if share <= max(now.left_out, now.late):  # nobody waits for it as it is
                work = max(share, total / len(self._seen.workers))  # it would do once healed
                lost_s = now.grace_s * (share > now.left_out) + all_s * work / total
                gain_s = min(gain_s, lost_s)
            without_s = max(self._without_s(worker), now_s - gain_s)
            found.append(Restart(gain_s / now_s, 1.0 - (now_s - gain_s) / without_s))
        return found

    def _without_s(self, worker: int) -> float:
        """The time of a step whose samples the others compute, as a fluid."""
        others = np.arange(len(self._seen.workers)) != worker
        if not others.any():
            return math.inf
        delays_s, slopes_s = self._fleet.delays_s[others], self._fleet.slopes_s[others]
        order = np.argsort(delays_s, kind="stable")
        rates, from_s = 1.0 / slopes_s[order], delays_s[order]
        levels_s = (self._seen.global_batch + np.cumsum(from_s * rates)) / np.cumsum(rates)
        return float(np.maximum(levels_s, from_s).min())

    def _levelled(self, fleet: Fleet) -> tuple[Ints, Bools, float]:
        """Shares, who is beyond help, and the time of the slowest that is waited for."""
        shares = divided(self._seen, fleet, self._growth)
        times_s = fleet.times_s(shares)
        least = shares <= self._seen.workers[0].accumulation
        level_s = float(times_s[~least].max()) if not least.all() else float(times_s.max())
        # A member of a group can be late for a step, but not for all.
        may_lack = self._seen.short_steps and self._seen.mode == "bsp"
        beyond = least & (times_s > level_s) & may_lack
        return shares, beyond, float(times_s[~beyond].max()) if not beyond.all() else level_s


def divided(seen: Observation, fleet: Fleet, growth: float) -> Ints:
    """Divide a step so that its slowest worker is as fast as can be, in whole batches.

    The batches are of the accumulation in force; where limits leave no division, it stays as it is.

    Args:
        seen: the job.
        fleet: what workers are expected to take.
        growth: a worker gets at most so many times its present, or an even, share.
    """
    unit = seen.workers[0].accumulation
    mixed = any(worker.accumulation != unit for worker in seen.workers)
    if mixed or seen.global_batch % unit:
        return fleet.shares
    even = seen.global_batch / len(seen.workers)
    known = np.array([worker.regime is not None for worker in seen.workers])
    most = np.ceil(np.where(known, growth * np.maximum(fleet.shares, even), even) / unit)
    limits = np.array(
        [math.inf if each.batch_limit is None else each.batch_limit for each in seen.workers]
    )
    upper = np.minimum(most, limits).astype(np.int64)
    try:
        units = solvers.level(
            fleet.delays_s,
            unit * fleet.slopes_s,
            seen.global_batch // unit,
            lower=_least(seen, unit),
            upper=upper,
        )
    except solvers.Infeasible:
        return fleet.shares
    return unit * units


def _least(seen: Observation, unit: int) -> int:
    """Units that each gets: a member of a group computes no single sample, but nothing then."""
    spare = seen.global_batch >= 2 * unit * len(seen.workers)
    return 2 if seen.mode == "allreduce" and unit == 1 and spare else 1


def _messages_s(seen: Observation) -> tuple[float, float]:
    """The time of messages of one contribution more, and of what follows the last one."""
    paces = [worker.short for worker in seen.workers if worker.short is not None]
    if not paces:
        return 0.0, 0.0
    message_s = statistics.median(pace.message_s for pace in paces)
    server_s = statistics.median(pace.server_s for pace in paces)
    return _OF_ROUND_TRIP * message_s, message_s + server_s
