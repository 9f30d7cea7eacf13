"""Probes of silent machines: whether the kernel there answers, whatever its processes do.

`paceline.protocol.nodes.silence` decides which machines are probed, and what follows.
"""

from collections.abc import Callable, Coroutine
from functools import partial

from paceline.base.machine_probe import answers
from paceline.master.asking import Answered
from paceline.master.inbox import Inbox
from paceline.master.members import MembersEdge
from paceline.master.parts import MasterParts, Times
from paceline.protocol.nodes.silence import SilentMachines
from paceline.wire.messages.agent import MachineProbed, ProbeMachine

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
        self._monitor, self._times, self._outbox = parts.monitor, times, parts.outbox
        self._inbox, self._spawn, self._members = inbox, spawn, members
        self._machines = SilentMachines(
            parts.members.roster, parts.spec.report_s, here=parts.spec.listen
        )

    def tick(self) -> None:
        """Probe what is due."""
        for order in self._machines.due(self._times.own(), stands=self._stands()):
            self._spawn(self._probe(order.machine))
            for node in order.witnesses:
                self._outbox.to_agent(node, ProbeMachine(machine=order.machine))

    def witnessed(self, word: MachineProbed) -> None:
        """Take in what the agent of a node on another machine has seen."""
        gone = self._machines.witnessed(
            word.machine,
            word.node,
            self._times.own(),
            answered=word.answered,
            stands=self._stands(),
        )
        self._members.machine_gone(gone)

    def _stands(self) -> bool:
        stands_s = max(STANDS_S, STANDS_STEPS * (self._monitor.step_s() or 0.0))
        return self._times.steady() - self._monitor.progress_s >= stands_s

    async def _probe(self, machine: str) -> None:
        answered = await answers(machine)
        self._inbox.put(Answered(partial(self._probed, machine, answered)))

    def _probed(self, machine: str, answered: bool, _: float) -> None:
        own_s = self._times.own()
        gone = self._machines.probed(machine, own_s, answered=answered, stands=self._stands())
        self._members.machine_gone(gone)
