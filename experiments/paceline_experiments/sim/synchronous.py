"""A job of common steps in virtual time: BSP on parameter servers, and all-reduce.

A step starts with everybody's pull of equal parameters, and is decided when all of its samples (in
a short step: enough of them) are with all servers. A worker that is late for a short step finishes
the batch it is in, which nobody waits for and nobody uses, before it joins the step then under way:
a gradient belongs to the step whose parameters it was computed on.

A worker that is killed in a step leaves its whole part of it to the others, who compute it after
their own; what it had been leased ahead is shared in the same way when its step comes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.base.samples import SampleSet, Span
from paceline.policy.actions import Profile
from paceline.policy.stats.history import ProfiledTimes
from paceline.protocol.records import Place, Plan, Planned
from paceline.protocol.samples.grant_size import lease_steps
from paceline.wire.messages.order import Lacking
from paceline_experiments.sim.costs import Floats, Ints, served_s
from paceline_experiments.sim.job import FEED, SimJob, steps_ahead
from paceline_experiments.sim.slices import Members, Parts, Slices

_OF_ROUND_TRIP = 0.5
"""Part of a round trip that a contribution more costs: that of a step holds its decision, too
(measured: `benchmarks/chunk_cost.py`)."""


def may_lack(known: Sequence[Planned], step: int, size: int, batch_size: int) -> Lacking:
    """Return what may be missing when the leader decides a step whose slice has this size."""
    held = [one.plan for one in known if one.step <= step]
    return held[-1].lacking.of_slice(size, batch_size) if held else Lacking()


class _Round:
    """Some samples of a step, cut between workers, and when each is at which batch of them."""

    def __init__(
        self,
        parts: Parts,
        begin_s: Floats,
        batch_s: Floats,
        *,
        chunks: int,
        batches: Ints,
        message_s: float,
    ) -> None:
        """Begin.

        Args:
            parts: the samples.
            begin_s: when each worker begins.
            batch_s: of each worker.
            chunks: contributions in which each part is handed in.
            batches: of each worker's contribution.
            message_s: from one contribution of a step to the next.
        """
        self.parts, self.begin_s, self.batch_s = parts, begin_s, batch_s
        self.chunks, self.batches, self.count = chunks, batches, chunks * batches
        self._message_s = message_s
        self.sizes = parts.sizes
        self.end_s = np.where(self.sizes > 0, self.ends_s(self.count), begin_s)

    def ends_s(self, batches: Ints) -> Floats:
        """Return when each worker is done with its first so many batches, at least one."""
        between = (batches - 1) // self.batches
        ends_s: Floats = self.begin_s + batches * self.batch_s + between * self._message_s
        return ends_s

    def num_done(self, at_s: float) -> Ints:
        """Batches of each worker that are done by then."""
        spent_s = np.maximum(at_s - self.begin_s, 0.0)
        turn_s = np.maximum(self.batches * self.batch_s + self._message_s, 1e-12)
        whole, rest_s = np.divmod(spent_s, turn_s)
        done = np.minimum(rest_s / np.maximum(self.batch_s, 1e-12) + 1e-9, self.batches)
        done = np.clip(whole * self.batches + np.floor(done), 0, self.count)
        return np.where(self.sizes > 0, done, 0).astype(np.int64)

    def handed_in(self, batches: Ints) -> Ints:
        """Return those of the first batches of each worker that are of whole contributions."""
        whole: Ints = batches - batches % self.batches
        return whole

    def samples_of(self, batches: Ints) -> Ints:
        """Samples in the first batches of each worker."""
        samples: Ints = self.sizes * batches // self.count
        return samples

    def drop(self, worker: int) -> list[Span]:
        """A worker's part is nobody's now."""
        self.sizes[worker] = 0
        self.end_s[worker] = self.begin_s[worker]
        return self.parts.take(worker)


class _Decided(NamedTuple):
    """The decision of a step."""

    closed_s: float
    """Time after which nothing more counts: what had not ended by then is left out."""
    at_s: float
    """Time at which the update is applied."""


class Synchronous(SimJob):
    """A simulated job whose workers share each step."""

    def work(self) -> None:
        """Do the work of the job, step by step."""
        n = self.scenario.workers
        self._slices = Slices(self.plans, self.feed, self.worker_tally.incs)
        self._count_members()
        self._rounds: list[_Round] = []
        self._unclaimed: list[Span] = []
        """Samples of the step that nobody has, as nobody is there."""
        self._free_s: Floats = np.zeros(n)
        """Times at which each worker is done with a batch that came too late."""
        self._late: Floats = np.zeros((2, n))
        """Samples and T^w of that batch; 0: there is none."""
        self._step_s: float | None = None
        self._pause_s = 0.0
        self._may_lack = Lacking()
        """Samples that the step under way may lack."""
        self._stopped_until_s: float | None = None
        """Time at which all workers that were stopped will be back; None: none was stopped."""
        self._kept: tuple[float, int, tuple[Span, ...]] = (0.0, 1, ())
        """The last checkpoint: when, of which step, with which samples."""
        while self._begin():
            decided = self._wait()
            if decided is not None:
                self._finish(decided)
        assert self.ledger.is_complete(FEED)
        self.ledger_calls = self._slices.calls

    def iterations(self) -> float:
        """Steps."""
        return float(self.steps)

    def steps_left(self) -> int:
        """Slices are not all whole; and what short steps leave out makes more of them."""
        samples_left = self.scenario.num_samples * self.scenario.epochs - self.num_committed
        num_decided = self._slices.step - 1
        return max(-(-samples_left // self.feed.batch_size), self.feed.last_step - num_decided)

    def step_s(self) -> float | None:
        """Return the time of the last step; None: there was none."""
        return self._step_s

    def undecided(self) -> int:
        """Return the number of the step that the slices have come to."""
        return self._slices.step

    # ------------------------------------------------------------------ a step

    def _begin(self) -> bool:
        """Deal out the next step; False: there is none."""
        self._catch_up()
        self.now_s += self._pause_s
        self._pause_s = 0.0
        is_complete = bool(self.workers.present.all())
        num_steps = lease_steps(self._step_s, complete=is_complete)
        parts = self._slices.next(self._members, steps_ahead(self._step_s), num_steps)
        if parts is None:
            return False
        step, size = self._slices.step, sum(map(len, parts.whole))
        self._may_lack = may_lack(self.plans.known, step, size, self.feed.batch_size)
        self.workers.disturbances.move(self.now_s, step)
        self.servers.disturbances.move(self.now_s, step)
        plan = self._slices.plan_of(parts)
        shares = (plan.share_of(name) for name in self.workers.names)
        accumulation = [share.accumulation if share else 1 for share in shares]
        begin_s = np.maximum(self.now_s, self._free_s)
        self._rounds = [self._round(parts, begin_s, plan.chunks, np.array(accumulation))]
        self._share_out(self._slices.orphans(parts), self.now_s)
        return True

    def _catch_up(self) -> None:
        """Let happen what has to happen before a step can begin."""
        while self.next_event_s <= self.now_s or not self.workers.present.any():
            self.now_s = max(self.now_s, self.next_event_s)
            self.next_event()
            if self._stopped_until_s is not None:
                self._roll_back(self._stopped_until_s)

    def _round(self, parts: Parts, begin_s: Floats, chunks: int, accumulation: Ints) -> _Round:
        batches: Ints = -(-accumulation // chunks)
        batch_s = self.workers.batch_s(parts.sizes / (chunks * batches), self._slices.step)
        return _Round(
            parts,
            begin_s,
            batch_s,
            chunks=chunks,
            batches=batches,
            message_s=_OF_ROUND_TRIP * self.scenario.traffic.message_s,
        )

    def _share_out(self, spans: list[Span], from_s: float) -> None:
        """Samples of a lost worker's part go to the others in equal parts, once there are any."""
        self._unclaimed += spans
        if not self._unclaimed or not self.workers.present.any():
            return
        parts, self._unclaimed = self._members.cut(Plan(), self._unclaimed), []
        for row in self._members.rows:
            self._slices.give(row, parts.of(row))
        begin_s = np.maximum(self._rounds[-1].end_s, from_s)
        self._rounds.append(self._round(parts, begin_s, 1, np.ones_like(begin_s, dtype=np.int64)))

    def _wait(self) -> _Decided | None:
        """Let happen what happens before the step is decided; None: it never is."""
        decided = self._decided()
        while self.next_event_s < decided.at_s:
            if not self.next_event():
                continue
            if self._stopped_until_s is not None:
                self._roll_back(self._stopped_until_s)
                return None
            decided = self._decided()
        return decided

    def _decided(self) -> _Decided:
        """Return when enough of the step is with all servers, and applied."""
        if self._unclaimed:
            return _Decided(math.inf, math.inf)
        traffic = self.scenario.traffic
        has_part = np.sum([each.sizes for each in self._rounds], axis=0) > 0
        num_parts = int(has_part.sum())
        part_s, update_s = self.servers.slowest_s(num_parts)
        ends_s = self._rounds[-1].end_s[has_part]
        if any(self._may_lack):
            closed_s = self._enough_s(self._may_lack)
            there_s = closed_s + part_s
        else:
            closed_s = float(ends_s.max())
            there_s = served_s(ends_s, part_s)
        sent_s = traffic.round_trip_s(num_parts, self.scenario.servers)
        return _Decided(closed_s, there_s + sent_s + update_s)

    def _enough_s(self, may_lack: Lacking) -> float:
        """Return when no more samples are missing than may be."""
        when, size = [], []
        for each in self._rounds:
            for chunk in range(1, each.chunks + 1):
                there = each.sizes > 0
                last = chunk * each.batches
                when.append(each.ends_s(last)[there])
                size.append((each.samples_of(last) - each.samples_of(last - each.batches))[there])
        at_s, samples = np.concatenate(when), np.concatenate(size)
        order = np.argsort(at_s, kind="stable")
        there = np.cumsum(samples[order])

        def when_s(missing: int) -> float:
            return float(at_s[order[int(np.searchsorted(there, max(1, there[-1] - missing)))]])

        enough_s = when_s(may_lack.left_out)
        if may_lack.late > may_lack.left_out:
            return min(enough_s, when_s(may_lack.late) + may_lack.grace_s)
        return enough_s

    def _finish(self, decided: _Decided) -> None:
        """The step is in the model."""
        self._step_s, self.now_s = decided.at_s - self.now_s, decided.at_s
        self.steps += 1
        self._note_servers()
        self._note_late()
        if any(self._may_lack):
            self._close(decided.closed_s)
        else:
            for each in self._rounds:
                self._note(each, np.where(each.sizes > 0, each.count, 0))
            self._decide(self._rounds[0].parts.whole, {})
        every = self.scenario.report_every
        self.report(self.worker_tally, self.workers.names, every)
        self.report(self.server_tally, self.servers.names, every)
        self._checkpoint()

    def _decide(self, spans: tuple[Span, ...], late: dict[int, list[Span]]) -> None:
        self._slices.decide(spans, late)
        self.num_committed += sum(len(span) for span in spans)
        self.leader.applied(self.now_s)

    def _close(self, closed_s: float) -> None:
        """Leave out what has not ended by then."""
        committed = SampleSet(self._rounds[0].parts.whole)
        busy = np.zeros(len(self._free_s), dtype=np.bool_)
        late: dict[int, list[Span]] = {}
        for each in self._rounds:
            done = each.num_done(closed_s)
            self._note(each, done)
            kept = each.samples_of(each.handed_in(done))
            is_late = kept < each.sizes
            for worker in np.flatnonzero(is_late).tolist():
                late.setdefault(worker, []).extend(each.parts.of(worker, int(kept[worker])))
            # A worker hears of it when the others do, and may have begun another batch by then.
            self._keep_late(each, done, is_late & ~busy, self.now_s)
            busy |= is_late
        for spans in late.values():
            committed.subtract(spans)
        self.left_out += sum(len(span) for spans in late.values() for span in spans)
        self.short_steps += bool(late)
        self._decide(committed.spans(), late)

    def _keep_late(self, each: _Round, done: Ints, late: NDArray[np.bool_], at_s: float) -> None:
        """Let these workers go on with a batch that nobody waits for, if they have begun it."""
        over_s = each.ends_s(np.minimum(done + 1, each.count))
        begun = late & (over_s - each.batch_s < at_s)
        self._free_s = np.where(begun, over_s, self._free_s)
        self._late[0] = np.where(begun, each.sizes / each.count, self._late[0])
        self._late[1] = np.where(begun, each.batch_s, self._late[1])

    # ------------------------------------------------------------------ what nodes will report

    def _note(self, each: _Round, done: Ints) -> None:
        tally = self.worker_tally
        samples = each.samples_of(done)
        part_s = float(self.servers.part_s().max(initial=0.0))
        tally.add(done, samples, each.batch_s)
        tally.server_s += done * part_s
        tally.message_s += done * self.scenario.traffic.message_s
        self.contributed += each.samples_of(each.handed_in(done))

    def _note_late(self) -> None:
        """Batches that came too late for their step, and are over now."""
        over = (self._late[1] > 0) & (self._free_s <= self.now_s)
        self.worker_tally.add(over, np.where(over, self._late[0], 0.0), self._late[1])
        self._late[:, over] = 0.0

    def _note_servers(self) -> None:
        num_pulls = int(self.workers.present.sum())
        tally = self.server_tally
        tally.steps += 1
        tally.server_s += num_pulls * self.servers.part_s() + self.servers.update_s()

    # ------------------------------------------------------------------ actions

    def plan_prepared(self, since: Place) -> None:
        """Make all give back at once."""
        self._slices.recall(since)

    def plan_changed(self) -> None:
        """Do nothing: a plan holds from the step at which it begins."""

    def profile(self, action: Profile) -> None:
        """Measure these batches before the next step; the samples stay in the leases."""
        sizes = np.zeros(len(self._free_s), dtype=np.int64)
        for name, size in action.sizes.items():
            sizes[self.workers.rows[name]] = size
        batch_s = self.workers.batch_s(sizes, self._slices.step)
        for row in np.flatnonzero(sizes).tolist():
            taken_s, size = float(batch_s[row]), int(sizes[row])
            profiled = ProfiledTimes(batch_size=size, batches=action.steps, batch_s=taken_s)
            self.control.profiled(self.workers.names[row], profiled)
        self.pause(action.steps * float(batch_s.max()))

    # ------------------------------------------------------------------ nodes that go and come

    def _count_members(self) -> None:
        present = np.flatnonzero(self.workers.present).tolist()
        self._members = Members(self.workers.names, present)

    def worker_lost(self, worker: int, now_s: float) -> None:
        """The others take over its part of this step, and of those that are granted already."""
        self._count_members()
        self._slices.lose(worker)
        self._free_s[worker], self._late[:, worker] = 0.0, 0.0
        lost = []
        for each in self._rounds:
            spent = (now_s - each.begin_s) / np.maximum(each.end_s - each.begin_s, 1e-12)
            self.redone += int(each.sizes[worker] * np.clip(spent[worker], 0.0, 1.0))
            lost += each.drop(worker)
        self._share_out(lost, now_s)

    def worker_back(self, worker: int, now_s: float) -> None:
        """Give a returned worker part of the first ungranted step, or what nobody else has."""
        self._count_members()
        self._share_out([], now_s)

    def pause(self, seconds: float) -> None:
        """Let everybody wait before the next step."""
        self._pause_s += seconds

    def restart_all(self, until_s: float) -> None:
        """Give up the step under way, and stop all workers until ``until_s``."""
        self._stopped_until_s = max(until_s, self._stopped_until_s or 0.0)

    def _roll_back(self, until_s: float) -> None:
        """Bring all back, with the last checkpoint."""
        self._stopped_until_s = None
        _, step, committed = self._kept
        num_kept = sum(len(span) for span in committed)
        self.redone += self.num_committed - num_kept
        self.num_committed = num_kept
        self._slices.roll_back(step, committed)
        self._rounds, self._unclaimed = [], []
        self._free_s[:], self._late[:] = 0.0, 0.0
        self.now_s = until_s

    def _checkpoint(self) -> None:
        """Save, if that is how this job survives and it is time."""
        recovery = self.scenario.recovery
        every_s = recovery.checkpoint_every_s
        if every_s is not None and self.now_s - self._kept[0] >= every_s:
            self.now_s += recovery.checkpoint_s
            self._kept = self.now_s, self._slices.step, self.ledger.done.spans()
