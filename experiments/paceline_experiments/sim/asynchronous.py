"""A job without common steps in virtual time: ASP and SSP on parameter servers.

Each worker computes batch after batch of its own leases. A contribution goes to every server, and
counts when all have handled it; each server handles one after the other, in the order in which they
come. A worker goes on at once while few enough of its contributions are under way; in SSP it also
waits for the slowest worker that is not idle.
"""

import heapq
import itertools
import sys
from collections import deque

import numpy as np

from paceline.base.errors import InternalError
from paceline.base.numbering import Inc
from paceline.base.samples import SampleSet, Span, between
from paceline.policy.actions import Profile
from paceline.protocol.records import Place
from paceline.protocol.samples.grant_size import lease_samples, planned_speed, tail_share
from paceline.protocol.samples.plans import fixed_parts, portion_of
from paceline_experiments.sim.job import FEED, FEW_STEPS, SimJob, steps_ahead
from paceline_experiments.sim.nodes import Handling

WINDOW = 2
"""Contributions of a worker that may be under way (docs/protocols/integrity.md, section 3)."""
COMMIT_EVERY_S = 60.0
"""Seconds after which the simulated ledger hears what is in the model: it looks at every lease."""


class _Hands:
    """Work that one life of a worker has in hand."""

    __slots__ = (
        "asks",
        "batch",
        "batch_s",
        "begun",
        "counted",
        "lease",
        "sent",
        "since_s",
        "speed",
    )

    def __init__(self, counted: int) -> None:
        """``counted``: where its clock starts, in SSP."""
        self.lease: deque[Span] = deque()
        """Samples that it has not begun."""
        self.batch: list[Span] = []
        """Samples that it computes; empty: none."""
        self.since_s = self.batch_s = 0.0
        self.sent: deque[list[Span]] = deque()
        """Contributions under way."""
        self.begun = 0
        """Batches."""
        self.counted = counted
        """Contributions in the model: its clock."""
        self.speed: float | None = None
        """Samples per second, of its last batch."""
        self.asks = False
        """True: the worker has asked for a lease and was not granted anything."""

    def next_batch(self, size: int) -> list[Span]:
        """Take a batch from the lease; it may be smaller."""
        taken: list[Span] = []
        while size > 0 and self.lease:
            first = self.lease.popleft()
            stop = min(first.stop, first.start + size)
            taken.append(Span(first.line, first.start, stop))
            size -= stop - first.start
            if stop < first.stop:
                self.lease.appendleft(Span(first.line, stop, first.stop))
        return taken

    def keep(self, size: int) -> list[Span]:
        """Forget what it has not begun, but for so much; that is returned."""
        held, self.lease = self.lease, deque(between(self.lease, 0, size))
        return between(held, size, sys.maxsize)

    @property
    def left(self) -> int:
        """Samples that it has not begun."""
        return sum(map(len, self.lease))

    @property
    def held(self) -> int:
        """Samples of its leases that are not in the model."""
        under_way = itertools.chain(self.batch, *self.sent)
        return self.left + sum(map(len, under_way))

    @property
    def idle(self) -> bool:
        """Tell whether the worker has nothing to do: nobody waits for it."""
        return not (self.batch or self.lease or self.sent)


class Asynchronous(SimJob):
    """A simulated job in mode asp or ssp."""

    def work(self) -> None:
        """Do the work of the job, event by event."""
        self._total = self.scenario.num_samples * self.scenario.epochs
        self._hands = [_Hands(0) for _ in self.workers.names]
        self._queue: list[tuple[float, int, int, _Hands, Handling | None]] = []
        """Ends of batches (None) and of the handling of contributions."""
        self._order = itertools.count()
        self._uncommitted = SampleSet()
        self._committed_s = self._kept_s = 0.0
        self._kept: tuple[Span, ...] = ()
        """The last checkpoint."""
        self._stopped = False
        self._go_on_all(0.0)
        while self.num_committed < self._total:
            self._next()
        self._commit()
        assert self.ledger.is_complete(FEED)

    def steps_left(self) -> int:
        """Count the samples that are left, in contributions of the usual size."""
        return -(-(self._total - self.num_committed) // self.scenario.local_batch)

    def iterations(self) -> float:
        """Count the batches of the mean worker so far."""
        return self.steps / self.scenario.workers

    def step_s(self) -> float | None:
        """Return None: there are no common steps."""
        return None

    def undecided(self) -> int:
        """Return 0: no step is undecided."""
        return 0

    # ------------------------------------------------------------------ events

    def _next(self) -> None:
        if self._queue and self._queue[0][0] < self.next_event_s:
            self.now_s, _, worker, hands, sent = heapq.heappop(self._queue)
            if hands is not self._hands[worker]:
                return
            if sent is not None:
                self._handled(worker, hands, sent)
            else:
                self._computed(worker, hands)
            self._checkpoint()
        elif np.isfinite(self.next_event_s):
            self.now_s = max(self.now_s, self.next_event_s)
            self.next_event()
        else:
            left = self._total - self.num_committed
            raise InternalError(f"{left} samples are left, and nobody computes them")

    def _later(self, at_s: float, worker: int, hands: _Hands, sent: Handling | None = None) -> None:
        heapq.heappush(self._queue, (at_s, next(self._order), worker, hands, sent))

    def _go_on_all(self, now_s: float) -> None:
        for worker in np.flatnonzero(self.workers.present).tolist():
            self._go_on(worker, self._hands[worker], now_s)

    def _go_on(self, worker: int, hands: _Hands, now_s: float) -> None:
        """Begin the next batch, if there is one and it may."""
        if hands.batch or self._stopped or len(hands.sent) >= WINDOW or self._is_ahead(hands):
            return
        if not hands.lease:
            self._ask(worker, hands, starving=True)
        hands.batch = hands.next_batch(self.scenario.local_batch)
        if not hands.batch:
            return
        size = sum(len(span) for span in hands.batch)
        self.workers.disturbances.move_one(worker, now_s, hands.begun)
        hands.since_s = now_s
        hands.batch_s = self.workers.one_batch_s(worker, size, hands.begun)
        hands.begun += 1
        self._later(now_s + hands.batch_s, worker, hands)
        self._order_ahead(worker, hands)

    def _is_ahead(self, hands: _Hands) -> bool:
        """SSP: too far ahead of the slowest."""
        if self.scenario.mode != "ssp":
            return False
        own = hands.counted + len(hands.sent)
        slowest = min((each.counted for each in self._hands if not each.idle), default=own)
        return own - slowest > self.scenario.staleness

    def _computed(self, worker: int, hands: _Hands) -> None:
        """A batch is over; its gradients go to the servers."""
        size = sum(len(span) for span in hands.batch)
        traffic, tally = self.scenario.traffic, self.worker_tally
        hands.speed = size / hands.batch_s
        tally.add_one(worker, size, hands.batch_s)
        sent_s = traffic.round_trip_s(1, self.scenario.servers)
        sent = self.servers.handle(self.now_s + sent_s)
        self._later(sent.over_s, worker, hands, sent)
        tally.server_s[worker] += sent.part_s.max(initial=0.0)
        tally.message_s[worker] += traffic.message_s
        hands.sent.append(hands.batch)
        hands.batch = []
        self.report(tally, self.workers.names, self.scenario.report_every)
        self._go_on(worker, hands, self.now_s)

    def _handled(self, worker: int, hands: _Hands, sent: Handling) -> None:
        """A contribution is in the model."""
        spans = hands.sent.popleft()
        size = sum(len(span) for span in spans)
        self._uncommitted.update(spans)
        self.num_committed += size
        self.contributed[worker] += size
        self.steps += 1
        hands.counted += 1
        self.leader.applied(self.now_s)
        tally, every = self.server_tally, self.scenario.report_every * self.scenario.workers
        tally.steps += 1
        tally.server_s += sent.part_s + sent.update_s
        self.report(tally, self.servers.names, every, step=0)
        if self.now_s - self._committed_s >= COMMIT_EVERY_S:
            self._commit()
        if self.scenario.mode == "ssp":
            self._go_on_all(self.now_s)
        else:
            self._go_on(worker, hands, self.now_s)

    # ------------------------------------------------------------------ leases

    def _order_ahead(self, worker: int, hands: _Hands) -> None:
        """Ask early, as `runtime.holding.servers.works` does."""
        size = self.scenario.local_batch
        starving = hands.left < FEW_STEPS * size
        if starving or (not hands.asks and hands.left < steps_ahead(hands.batch_s) * size):
            self._ask(worker, hands, starving=starving)

    def _ask(self, worker: int, hands: _Hands, *, starving: bool) -> None:
        """The master grants what it would grant."""
        hands.asks = True
        plan, nodes = self.plans.newest, sorted(self.present)
        index = nodes.index(self.workers.names[worker])
        share = portion_of(plan, nodes, index).share if plan.shares else None
        size = self.scenario.local_batch
        count = lease_samples(
            speed=planned_speed(hands.speed, share, (each.speed for each in self._hands)),
            batch_size=size,
            remaining=self.ledger.num_to_do(FEED),
            num_workers=len(nodes),
            held=0 if starving else hands.held,
            share=share,
        )
        if not count:
            return
        if plan.fixed:
            parts = fixed_parts(plan, nodes, index, self.feed)
            spans = between(self.ledger.pick_parts(parts), 0, count)
        else:
            spans = self.ledger.pick(FEED, count, size)
            if not spans and starving:
                self._recall_tail(worker)
                spans = self.ledger.pick(FEED, count, size)
        if spans:
            self.ledger.grant(Inc(int(self.worker_tally.incs[worker])), spans)
            self.ledger_calls += 1
            hands.lease.extend(spans)
            hands.asks = False

    def _recall_tail(self, asker: int) -> None:
        """Let the worker that would take longest give back a part of its lease."""
        rows = np.flatnonzero(self.workers.present).tolist()
        held = {row: self._hands[row].held for row in rows if row != asker}
        leases = {row: size for row, size in held.items() if size}
        speeds = {row: self._hands[row].speed for row in rows}
        found = tail_share(leases, speeds, asker, self.scenario.local_batch)
        back = self._hands[found[0]].keep(found[1]) if found is not None else []
        if found is not None and back:
            self.ledger_calls += 1
            self.ledger.give_back(Inc(int(self.worker_tally.incs[found[0]])), back)
            self.agenda.add(self.now_s, self._go_on_all)  # others may have waited for it

    def plan_prepared(self, since: Place) -> None:
        """Do nothing: a plan begins with the next grant."""

    def plan_changed(self) -> None:
        """Let all workers go on soon: one that had its part may get more under the new plan."""
        self.agenda.add(self.now_s, self._go_on_all)

    def profile(self, action: Profile) -> None:
        """Do nothing: nobody asks for a profile without common steps."""

    def _commit(self) -> None:
        self.ledger.commit(self._uncommitted)
        self._uncommitted = SampleSet()
        self._committed_s = self.now_s

    # ------------------------------------------------------------------ nodes that go and come

    def worker_lost(self, worker: int, now_s: float) -> None:
        """Return what is not in the model, and give it to idle workers."""
        self._commit()
        hands = self._hands[worker]
        self._note_redone(hands, now_s)
        inc = Inc(int(self.worker_tally.incs[worker]))
        self.ledger.lose(inc)
        self.ledger_calls += 1
        self._hands[worker] = _Hands(0)
        self._go_on_all(now_s)

    def _note_redone(self, hands: _Hands, now_s: float) -> None:
        self.redone += sum(len(span) for spans in hands.sent for span in spans)
        if hands.batch:
            share = min(1.0, (now_s - hands.since_s) / hands.batch_s)
            self.redone += int(share * sum(len(span) for span in hands.batch))

    def worker_back(self, worker: int, now_s: float) -> None:
        """Let the worker ask for a lease; its clock is that of the slowest."""
        others = [each.counted for each in self._hands if not each.idle]
        self._hands[worker] = _Hands(min(others, default=0))
        self._go_on(worker, self._hands[worker], now_s)

    def pause(self, seconds: float) -> None:
        """Servers begin nothing for so long; what is under way ends at another time."""
        self.servers.pause(self.now_s, seconds)
        self._queue = [
            (at_s if sent is None else sent.over_s, order, worker, hands, sent)
            for at_s, order, worker, hands, sent in self._queue
        ]
        heapq.heapify(self._queue)

    def restart_all(self, until_s: float) -> None:
        """Make all drop what they have; the ledger goes back to the last checkpoint."""
        self._commit()
        for hands in self._hands:
            self._note_redone(hands, self.now_s)
        num_kept = sum(len(span) for span in self._kept)
        self.redone += self.num_committed - num_kept
        self.num_committed = num_kept
        self.ledger.restore(self._kept)
        self._hands = [_Hands(0) for _ in self._hands]
        self._stopped = True
        self.agenda.add(until_s, self._resume)

    def _resume(self, now_s: float) -> None:
        if self.is_restarting:
            return  # the last one that is waited for resumes
        self._stopped = False
        self._go_on_all(now_s)

    def _checkpoint(self) -> None:
        recovery = self.scenario.recovery
        every_s = recovery.checkpoint_every_s
        if every_s is not None and self.now_s - self._kept_s >= every_s and not self._stopped:
            self._commit()
            self._kept, self._kept_s = self.ledger.done.spans(), self.now_s
            self.pause(recovery.checkpoint_s)
