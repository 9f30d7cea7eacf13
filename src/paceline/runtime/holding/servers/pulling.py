"""One pull under way: what was asked of the servers, and their answers put together."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.partition import Partition, Split
from paceline.runtime.holding.servers.port import PulledModel
from paceline.wire.messages.data import Part, Pulled
from paceline.wire.messages.feeds import feed_of


class Pushed:
    """Asynchronous: what this worker has pushed that may not be in the model that it pulled."""

    def __init__(self) -> None:
        #: seq, feed and number of samples.
        self._sizes: deque[tuple[int, int, int]] = deque()

    def add(self, part: Part) -> None:
        """Note that a contribution was offered."""
        self._sizes.append((part.seq, feed_of(part.spans[0].line), part.weight))

    def renumber(self, old: int, new: int) -> None:
        """Note that a contribution was offered again, with another number."""
        self._sizes = deque(
            (new if seq == old else seq, feed, size) for seq, feed, size in self._sizes
        )

    def clear(self) -> None:
        """Forget all contributions: the model went back."""
        self._sizes.clear()

    def before(self, feed: int, answers: Iterable[Pulled]) -> int:
        """Samples of the feed before the work that was pulled for: in the model, or ours.

        A loop that was left early may have pushed what is of another feed.
        """
        first = min(answers, key=lambda answer: answer.counted)
        while self._sizes and self._sizes[0][0] <= first.last_seq:
            self._sizes.popleft()
        return first.counted + sum(size for _, of, size in self._sizes if of == feed)


class Pulling:
    """A pull under way: what was asked, and the answers so far."""

    def __init__(self, work: Work | None, split: Split, ticket: int) -> None:
        self.work = work
        self.split = split
        self.ticket = ticket
        self.answers: dict[int, tuple[Pulled, Sequence[memoryview]]] = {}
        self.start_s = time.perf_counter()
        #: Time at which the last server had answered; 0.0: not yet.
        self.done_s = 0.0
        #: The answers put together.
        self.result: PulledModel | None = None

    def ask_again(self, split: Split, ticket: int) -> None:
        """Ask other servers; what some have answered does not count, nor the time until now.

        How long the pull had waited for its step is not known of servers that did not answer.
        """
        self.split, self.ticket = split, ticket
        self.answers.clear()
        self.start_s = time.perf_counter()

    def assemble(self, partition: Partition, servers: Sequence[int]) -> PulledModel:
        """Put the answers together."""
        dtypes = self.answers[servers[0]][0].dense
        shares = list(zip(*(self.answers[server][1] for server in servers), strict=True))
        dense = {
            dtype: partition.join_dense(dtype, [np.frombuffer(f, dtype) for f in share])
            for dtype, share in zip(dtypes, shares, strict=False)
        }
        rows = {}
        for table, share in zip(self.split.ids, shares[len(dtypes) :], strict=True):
            dtype = partition.schema.tables[table].dtype
            values = [np.frombuffer(frame, dtype) for frame in share]
            rows[table] = partition.join_rows(self.split, table, values)
        server_s = max(message.handler_s for message, _ in self.answers.values())
        # Else T^m of an early worker would be the lateness of the others.
        waited_s = max(message.waited_s for message, _ in self.answers.values())
        message_s = max(0.0, self.done_s - self.start_s - waited_s - server_s)
        scripts = [message.script for message, _ in self.answers.values() if message.script]
        script = max(scripts, key=lambda one: one.position, default=None)
        counted = min(message.counted for message, _ in self.answers.values())
        return PulledModel(
            dense, rows, server_s=server_s, message_s=message_s, script=script, counted=counted
        )
