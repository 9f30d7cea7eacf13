"""Probes of silent machines: whether the kernel there answers, whatever its processes do.

`paceline.protocol.nodes.silence` decides which machines are probed, and what follows.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from urllib.parse import urlsplit

from paceline.master.asking import Answered
from paceline.master.inbox import Inbox
from paceline.master.members import MembersEdge
from paceline.master.parts import MasterParts, Times
from paceline.protocol.nodes.silence import SilentMachines

PROBE_PORT = 1
"""Port at which nothing listens: the kernel refuses, and no backlog fills."""
NUM_PROBES = 3
"""Connections that are tried at once: one packet in a hundred may be lost on its way."""
WAIT_S = 0.3
"""Seconds that a machine has to answer; the longest way through a cluster takes tenths of that."""


STANDS_S, STANDS_STEPS = 0.6, 2.2
"""Seconds, and steps, without progress after which a job stands; members report twice a second."""


class MachineWatch:
    """Has silent machines probed, and gives up the nodes of those that are gone.

    Args:
        parts: of the master.
        times: its clocks.
        inbox: takes the answers.
        spawn: runs a probe beside the master's task.
        members: the nodes.
    """

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        inbox: Inbox,
        spawn: Callable[[Coroutine[None, None, None]], None],
        members: MembersEdge,
    ) -> None:
        self._monitor, self._times = parts.monitor, times
        self._inbox, self._spawn, self._members = inbox, spawn, members
        self._machines = SilentMachines(parts.members.roster, parts.spec.report_s)

    def tick(self) -> None:
        """Probe what is due."""
        for machine in self._machines.due(self._times.own()):
            self._spawn(self._probe(machine))

    async def _probe(self, machine: str) -> None:
        answered = await answers(machine)
        self._inbox.put(Answered(partial(self._probed, machine, answered)))

    def _probed(self, machine: str, answered: bool, now_s: float) -> None:
        stands_s = max(STANDS_S, STANDS_STEPS * (self._monitor.step_s() or 0.0))
        stands = now_s - self._monitor.progress_s >= stands_s
        own_s = self._times.own()
        gone = self._machines.probed(machine, own_s, answered=answered, stands=stands)
        self._members.machine_gone(gone)


async def answers(machine: str) -> bool:
    """Tell whether a machine refuses a connection, or takes it, within `WAIT_S`."""
    host, loop = urlsplit(machine).hostname or machine, asyncio.get_running_loop()
    try:  # in a thread: the master must not wait for a name
        info = (await loop.getaddrinfo(host, PROBE_PORT, type=socket.SOCK_STREAM))[0]
    except OSError:
        return False
    tries = [asyncio.ensure_future(_try(info)) for _ in range(NUM_PROBES)]

    async def first() -> bool:
        for done in asyncio.as_completed(tries):
            if await done:
                return True
        return False

    try:
        return await asyncio.wait_for(first(), WAIT_S)
    except TimeoutError:
        return False
    finally:
        for one in tries:
            one.cancel()


async def _try(info: tuple[object, ...]) -> bool:
    family, kind, protocol, _, place = info
    with socket.socket(family, kind, protocol) as probe:  # type: ignore[arg-type]
        probe.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(probe, place)  # type: ignore[arg-type]
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True
