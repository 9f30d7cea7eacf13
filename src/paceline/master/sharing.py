"""What is decided about a device that the job shares: kept for people, as its agents tell it."""

from paceline.jobs.jsonl import LineFile
from paceline.jobs.sharing import SharingLine
from paceline.master.parts import MasterParts, Times
from paceline.wire.events.sharing import SharingEvent
from paceline.wire.messages.agent import SharingTold
from paceline.wire.sharing import SharingCause

LOG_BYTES = 16 << 20
"""A log that is larger is put aside, and the one that lay there is dropped."""
NEWS: frozenset[SharingCause] = frozenset({"arrival", "newcomer", "regime", "departure"})
"""Causes of decisions that are events, too; the others come every few seconds."""


class SharingKept:
    """The newest decisions of each node's device, and the log of all."""

    def __init__(self, parts: MasterParts, times: Times) -> None:
        self._device, self._outbox, self._times = parts.spec.share.device, parts.outbox, times
        self._job_id, self._newest = parts.job.job_id, parts.monitor.sharing
        self._memory = parts.monitor.memory
        self._log = LineFile(parts.job.sharing)

    def told(self, message: SharingTold) -> None:
        """Keep a decision, unless it is the newest one once more."""
        node, decision = message.node, message.decision
        memory = decision.memory
        if self._device is None or decision == self._newest.get(node):
            return
        if memory is None:
            self._newest[node] = decision
        elif memory.worker == f"{self._job_id}/{node}":
            if memory == self._memory.get(node):
                return
            self._memory[node] = memory
        self._log.add(SharingLine(t=self._times.wall(), node=node, decision=decision))
        self._log.flush()
        if self._log.num_bytes > LOG_BYTES:
            self._log.put_aside()
        if decision.cause in NEWS:
            self._outbox.tell(SharingEvent(node=node, device=self._device, decision=decision))
