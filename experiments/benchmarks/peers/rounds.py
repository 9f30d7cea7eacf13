"""What an arm of a throughput benchmark does between rounds: wait for its turn, report a figure.

Runs in every arm's process, TensorFlow's too, and needs nothing but the standard library.
"""

import json
import socket
import time

WARM_STEPS = 6
"""Unmeasured steps of every round, after which caches are warm and pipelines as full as ever."""


class Rounds:
    """Connects to the benchmark at ``path`` as arm ``name``; call ``turn`` before every step."""

    def __init__(self, path: str, name: str) -> None:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
        self._lines = peer.makefile("rw")
        self._left = -1
        self._num_steps = 0
        self._start_s = self._start_cpu_s = 0.0
        self._tell({"arm": name})

    def turn(self) -> bool:
        """Count a step; blocks between rounds. False: the benchmark is over."""
        if self._left <= 0:
            if self._left == 0:
                self._report()
            told = self._lines.readline()
            if not told.strip():
                return False
            self._num_steps = int(told)
            self._left = self._num_steps + WARM_STEPS
        if self._left == self._num_steps:
            self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()
        self._left -= 1
        return True

    def _report(self) -> None:
        steps = self._num_steps
        self._tell(
            {
                "step_s": (time.perf_counter() - self._start_s) / steps,
                "cpu_s": (time.process_time() - self._start_cpu_s) / steps,
            }
        )

    def _tell(self, what: dict[str, object]) -> None:
        self._lines.write(json.dumps(what) + "\n")
        self._lines.flush()
