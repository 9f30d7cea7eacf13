"""The works of one worker of servers: batches cut from its leases, ahead of time and in hand.

All calls are made with the client's lock held.
"""

from paceline.base.samples import Span, num_samples
from paceline.protocol.samples.leases import Ask
from paceline.protocol.samples.step_leases import StepLeases
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Work
from paceline.wire.spec import JobSpec

FEW_STEPS = 2
"""Steps of work left at which a worker is about to run out."""
AHEAD_S = 3.5
"""Seconds of work left for which more is asked for: a dead master is back sooner."""
MAX_STEPS_AHEAD = 512
ASK_AGAIN_STEPS = 16


class Works:
    """Works of this worker, and what it asks for to have enough of them.

    Args:
        spec: of the job.
        num_workers: of the job when this one was started; grants say what has become of it.
        leases: of this worker.
    """

    def __init__(self, spec: JobSpec, num_workers: int, leases: StepLeases) -> None:
        self._spec, self._num_workers, self._leases = spec, num_workers, leases
        #: Work that was shown as upcoming, by its samples: `take` returns the same object.
        self._shown: dict[tuple[Span, ...], Work] = {}
        self.in_hand: list[Work] = []
        """Taken and not pushed; a new epoch withdraws it."""
        #: Feed -> how far its partitions reach, where that is not known in advance.
        self._growth: dict[int, Growth] = {}
        #: Recent mean of the seconds of a step; 0.0: not measured.
        self._step_s = 0.0

    # ------------------------------------------------------------------ feeds

    def follow(self, feed: int, growth: Growth) -> None:
        """Tell the master how far the partitions of this feed reach, with each request."""
        self._growth[feed] = growth

    def trains(self, feed: int) -> bool:
        """Tell whether the feed is trained on."""
        return self._leases.feeds[feed].purpose == "train"

    def synchronous(self, feed: int) -> bool:
        """Tell whether the feed is trained on in steps."""
        return self._leases.synchronous and self.trains(feed)

    def _batch_size(self, feed: int) -> int:
        definition = self._leases.feeds[feed]
        if not self.trains(feed) or self.synchronous(feed):
            return definition.batch_size
        granted = self._leases.batch_sizes.get(feed)
        return granted or max(1, definition.batch_size // self._num_workers)

    # ------------------------------------------------------------------ requests

    def want(self, feed: int, *, starving: bool | None = None) -> list[Ask]:
        """Ask for more of a feed; see `Leases.want`."""
        growth = self._growth.get(feed)
        if growth is None:
            return self._leases.want(feed, starving=starving)
        ends, finished = growth.look()
        return self._leases.want(feed, ends, finished=finished, starving=starving)

    def order_ahead(self, feed: int) -> list[Ask]:
        """Ask for the next lease early: a master that dies is back before the present one ends."""
        leases, ahead = self._leases, FEW_STEPS
        if self._step_s and feed not in self._growth:
            ahead += min(int(AHEAD_S / self._step_s), MAX_STEPS_AHEAD)
        if self.synchronous(feed):
            # An open one may have come too early for the master; it knows steps by their number.
            asked = leases.request.step if leases.request else leases.step + 1 - ASK_AGAIN_STEPS
            if leases.step + 1 - asked >= ASK_AGAIN_STEPS and not leases.reaches(feed, ahead):
                return self.want(feed)
            return []
        left, size = leases.leased(feed), self._batch_size(feed)
        if left < FEW_STEPS * size:
            return self.want(feed, starving=True)
        if leases.request is None and left < ahead * size:
            return self.want(feed, starving=False)
        return []

    def took(self, step_s: float) -> None:
        """A step has taken so long."""
        self._step_s += (step_s - self._step_s) * (0.1 if self._step_s else 1.0)

    # ------------------------------------------------------------------ work

    def take(self, feed: int) -> Work | None:
        """Take the next batch of a feed in hand, if there is one to compute now."""
        leases, synchronous = self._leases, self.synchronous(feed)
        size = leases.next_size(feed) if synchronous else self._batch_size(feed)
        spans = leases.take(feed, size)
        if not spans:
            return None
        work = self._work(feed, spans, leases.step + 1 if synchronous else 0)
        if synchronous:
            work.ends_contribution = leases.is_whole(feed)
            work.ends_step = not leases.has_work(feed)
        self.in_hand.append(work)
        return work

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        """Return the works that will be taken next, at most ``limit``."""
        leases = self._leases
        found: list[tuple[int, tuple[Span, ...]]] = []
        if self.synchronous(feed):
            # With nothing left for step + 1 its share is in hand: next comes that of step + 2.
            for after in range(limit + 1):
                batches = leases.step_batches(feed, after, limit - len(found))
                found += [(leases.step + 1 + after, spans) for spans in batches]
        else:
            size = self._batch_size(feed)
            found = [(0, spans) for spans in leases.batches(feed, size, limit)]
        works = [self._work(feed, spans, step) for step, spans in found if spans]
        self._shown = {work.spans: work for work in works}
        return tuple(works)

    def _work(self, feed: int, spans: tuple[Span, ...], step: int) -> Work:
        known = self._shown.pop(spans, None)
        if known is not None and known.step == step:
            return known
        return Work(feed, spans, num_samples(spans), step)

    def is_known(self, work: Work) -> bool:
        """Tell whether a work is in hand, or shown as upcoming."""
        return work in self.in_hand or self._shown.get(work.spans) is work

    def give_back(self, work: Work) -> None:
        """Have the samples of work in hand come first again."""
        if work in self.in_hand:
            self.in_hand.remove(work)
            self._leases.put_back(work.feed, work.spans)

    def withdraw(self) -> None:
        """Drop the work in hand for steps that were decided without it."""
        decided = self._leases.step
        self.in_hand = [work for work in self.in_hand if not 0 < work.step <= decided]

    def clear(self) -> None:
        """Drop all: a new epoch has begun."""
        self._shown.clear()
        self.in_hand.clear()
