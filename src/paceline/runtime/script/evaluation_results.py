"""The results of `job.evaluate`, by way of the master: handed in span by span, then read whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from safetensors import numpy as safetensors

from paceline.base.numbering import NO_EPOCH, EpochNo
from paceline.base.samples import Span
from paceline.cuts.reach import evaluated
from paceline.protocol.samples.leases import Leases
from paceline.runtime.data.work import Array, Work
from paceline.runtime.process.process import Process
from paceline.wire.messages.node import Evaluated, EvaluateResult, NodeUp

MESSAGE_BYTES = 8 << 20
"""Bytes beyond which results travel in several messages."""


class Until(Protocol):
    """Blocks until ``done``; until then sends the master what ``ask`` returns, again and again."""

    def __call__(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[NodeUp]] = ...
    ) -> None: ...


class EvaluationResults:
    """One worker's side; ``answered`` is called with the master's word.

    Args:
        leases: of the worker.
        until: waits.
        process: whose job's results are read.
    """

    def __init__(self, leases: Leases, until: Until, process: Process) -> None:
        self._leases, self._until, self._process = leases, until, process
        self._answer: Evaluated | None = None

    def answered(self, message: Evaluated) -> None:
        """The master has this span; for the empty one: all results are there."""
        self._answer = message

    def put(self, work: Work, values: Mapping[str, Array], epoch_no: EpochNo) -> None:
        """Put the result of a work; the work is of this epoch, and void in the next."""
        sample_bytes = sum(array.nbytes for array in values.values()) / work.num_samples
        start = 0
        for span in _pieces(work.spans, max(1, int(MESSAGE_BYTES // max(1.0, sample_bytes)))):
            stop = start + len(span)
            part = {name: np.ascontiguousarray(array[start:stop]) for name, array in values.items()}
            if self._hand_in(work.feed, span, safetensors.save(part), epoch_no) is None:
                return
            start = stop

    def get(self, feed: int) -> Mapping[str, Array] | None:
        """Return the results of all; None: they are void, and the feed must be evaluated again.

        A finds a feed complete when it comes; then an epoch begins, of which A does not hear before
        it joins, and all others have their results.
        """
        epoch_no = self._leases.epoch_no
        answer = self._hand_in(feed, Span(self._leases.feeds[feed].line(), 0, 0), b"", epoch_no)
        if answer is None:
            return None
        store = evaluated(self._process.job, answer.epoch_no)
        names = [name for name in store.files(feed) if name.endswith(".safetensors")]
        parts: dict[str, list[Array]] = {}
        for part in sorted(names, key=lambda name: int(name.split("-")[0])):
            for name, array in safetensors.load(b"".join(store.get(feed, part))).items():
                parts.setdefault(name, []).append(array)
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def _hand_in(self, feed: int, span: Span, values: bytes, epoch_no: EpochNo) -> Evaluated | None:
        """Give results to the master; an empty span waits until all are there.

        Returns:
            The master's word; None: a new epoch has begun, which makes them void.
        """
        leases = self._leases
        message = EvaluateResult(
            epoch_no=epoch_no, inc=leases.inc, feed=feed, span=span, values=values
        )
        self._answer = None

        def answer() -> Evaluated | None:
            found = self._answer
            mine = found is not None and (found.feed, found.span) == (feed, span)
            return found if found is not None and mine and found.stored else None

        def is_void() -> bool:
            """Tell whether the evaluation, once complete, has to be done again: see `get`."""
            refused = self._answer is not None and not self._answer.stored
            return leases.epoch_no != epoch_no or (epoch_no == NO_EPOCH and refused)

        self._until(lambda: answer() is not None or is_void(), ask=lambda: [message])
        return answer() if leases.epoch_no == epoch_no else None


def _pieces(spans: Iterable[Span], count: int) -> Iterator[Span]:
    """Yield the same samples in spans of at most ``count``."""
    for span in spans:
        for start in range(span.start, span.stop, count):
            yield Span(span.line, start, min(start + count, span.stop))
