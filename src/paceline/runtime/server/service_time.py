"""Time that a server works for one round: its own T^s, noted in the step ledger.

A *round* is a step of the job where all workers have one in common (bsp), however many pulls each
of them needs for it; else one worker's request (asp, ssp).

Reference: AntDT, section V-D (application state of a server).
"""

import time
from collections.abc import Callable

from paceline.wire.step_ledger import StepLedgerWriter

NOTE_S = 0.05
"""Seconds of rounds that make one record: cheap, however many workers ask."""


class ServiceTime:
    """The service time of a server thread, which waits for messages, then handles all at once."""

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
        self._rounds = 0
        self._noted_s = self._waiting_s = self._working_s = clock()

    def wait(self) -> None:
        """The server begins to wait."""
        self._waiting_s = self._clock()

    def work(self) -> None:
        """Note that something came, or that nothing did for ``patience_s``.

        What a wait took beyond that is no wait: the machine did not let the server run.
        """
        self._working_s = self._clock()
        self._busy_s += max(0.0, self._working_s - self._waiting_s - self._patience_s)

    def round_done(self) -> None:
        """A step is in the model; asp, ssp: a worker's pull was answered."""
        self._rounds += 1

    def rest(self, step: int) -> None:
        """Note that all that had arrived is handled; ``step``: the newest in the model, or 0."""
        now_s = self._clock()
        self._busy_s += now_s - self._working_s
        if not self._rounds or now_s - self._noted_s < NOTE_S:
            return
        self._ledger.write(
            step=step,
            t_start_s=self._noted_s,
            bpt_s=now_s - self._noted_s,
            compute_s=0.0,
            server_s=self._busy_s / self._rounds,
            message_s=0.0,
            wait_s=max(0.0, now_s - self._noted_s - self._busy_s),
            samples=self._rounds,
        )
        self._noted_s, self._busy_s, self._rounds = now_s, 0.0, 0
