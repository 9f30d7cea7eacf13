"""Slows the servers of an emulated job, from outside: production code knows nothing of it.

Python imports this at start when this folder is on PYTHONPATH. Only the warm process that servers
are forked from is changed: an update that a server applies takes what the scenario adds for it.
"""

import sys


def _slow_servers() -> None:
    import time
    from collections.abc import Sequence

    from paceline_experiments.stragglers.emulation import EmulatedLife

    from paceline.protocol.holding.servers.server_acts import Key
    from paceline.runtime.process.process import Process
    from paceline.runtime.server import server

    class SlowServer(server.ServerProcess):
        def __init__(self, process: Process) -> None:
            super().__init__(process)
            self.life = EmulatedLife.of_this_process()
            self.updates = 0

        def _apply(self, keys: Sequence[Key], factor: float) -> None:
            start_s = time.time()
            time.sleep(self.life.delay_s(self.updates))
            super()._apply(keys, factor)
            self.life.note(start_s, time.time(), 0)
            self.updates += 1

    server.ServerProcess = SlowServer  # type: ignore[misc]


if {"paceline.runtime.process.zygote", "server"} <= set(sys.orig_argv):
    _slow_servers()
