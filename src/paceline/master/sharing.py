"""How the job shares devices: its class, which its agents must know, and what they tell of it."""

from msgspec.structs import replace

from paceline.base.disk import describe
from paceline.base.errors import ConfigError
from paceline.jobs.jsonl import LineFile
from paceline.jobs.sharing import SharingLine
from paceline.master.parts import MasterParts, Times
from paceline.wire.events.sharing import SharingEvent
from paceline.wire.messages.agent import SharingTold, UpgradeNode
from paceline.wire.sharing import SharingCause
from paceline.wire.spec import load, save

LOG_BYTES = 16 << 20
"""A log that is larger is put aside, and the one that lay there is dropped."""
NEWS: frozenset[SharingCause] = frozenset({"arrival", "newcomer", "regime", "departure"})
"""Causes of decisions that are events, too; the others come every few seconds."""


class DeviceSharing:
    """The job's class, the newest decisions of each node's device, and the log of all."""

    def __init__(self, parts: MasterParts, times: Times) -> None:
        self._job, self._share = parts.job, parts.spec.share
        self._outbox, self._times = parts.outbox, times
        self._newest, self._memory = parts.monitor.sharing, parts.monitor.memory
        self._log = LineFile(parts.job.sharing)

    def told(self, message: SharingTold) -> None:
        """Keep a decision, unless it is the newest one once more."""
        node, decision = message.node, message.decision
        memory = decision.memory
        if not self._share.every or decision == self._newest.get(node):
            return
        if memory is None:
            self._newest[node] = decision
        elif memory.worker == f"{self._job.job_id}/{node}":
            if memory == self._memory.get(node):
                return
            self._memory[node] = memory
        self._log.add(SharingLine(t=self._times.wall(), node=node, decision=decision))
        self._log.flush()
        if self._log.num_bytes > LOG_BYTES:
            self._log.put_aside()
        if decision.cause in NEWS:
            (device,) = self._share.of(node)
            self._outbox.tell(SharingEvent(node=node, device=device, decision=decision))

    def upgrade(self) -> None:
        """Make the job guaranteed: for masters and agents to come in the spec, then for these.

        Raises:
            ConfigError: the disk refuses it.
        """
        if not self._share.every or self._share.kind == "guaranteed":
            return
        share = replace(self._share, kind="guaranteed")
        try:
            save(replace(load(self._job.spec), share=share), self._job.spec)
        except OSError as error:
            raise ConfigError(describe(error, self._job.spec)) from error
        self._share = share
        for node in self._outbox.streams:
            self.hello(node)

    def hello(self, node: str) -> None:
        """Tell an agent what has become of the job, perhaps before it came."""
        if self._share.every and self._share.kind == "guaranteed":
            self._outbox.to_agent(node, UpgradeNode())
