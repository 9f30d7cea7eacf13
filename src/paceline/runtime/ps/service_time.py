"""How long a server works for one request of a worker: its own T^s, noted in the step ledger.

Reference: AntDT, section V-D (application state of a server).
"""

import time
from collections.abc import Callable

from paceline.wire.step_ledger import StepLedgerWriter

NOTE_S = 0.05
"""Requests of so long make one record: cheap, however many workers ask."""


class ServiceTime:
    """Of one server thread, which waits for messages, then handles all that have arrived."""

    def __init__(
        self,
        ledger: StepLedgerWriter,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``patience_s``: the server's longest wait for a message."""
        self._ledger, self._clock = ledger, clock
        self._patience_s = patience_s
        self._busy_s = 0.0
        self._requests = 0
        self._noted_s = self._waiting_s = self._working_s = clock()

    def wait(self) -> None:
        """The server begins to wait."""
        self._waiting_s = self._clock()

    def work(self) -> None:
        """Something came, or nothing did for ``patience_s``.

        What a wait took beyond that is no wait: the machine did not let the server run.
        """
        self._working_s = self._clock()
        self._busy_s += max(0.0, self._working_s - self._waiting_s - self._patience_s)

    def answered(self) -> None:
        """A worker's pull was answered: all that it asked for in its step is done."""
        self._requests += 1

    def rest(self, step: int) -> None:
        """All that had arrived is handled; ``step`` is the newest in the model."""
        now_s = self._clock()
        self._busy_s += now_s - self._working_s
        if not self._requests or now_s - self._noted_s < NOTE_S:
            return
        self._ledger.write(
            step=step,
            t_start_s=self._noted_s,
            bpt_s=now_s - self._noted_s,
            compute_s=0.0,
            server_s=self._busy_s / self._requests,
            message_s=0.0,
            wait_s=max(0.0, now_s - self._noted_s - self._busy_s),
            samples=self._requests,
        )
        self._noted_s, self._busy_s, self._requests = now_s, 0.0, 0
