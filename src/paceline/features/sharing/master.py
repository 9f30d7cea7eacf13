"""The sharing of devices in a master: the job's class, and what its agents tell of decisions."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from paceline.base.disk import describe
from paceline.base.errors import ConfigError
from paceline.features.sharing.log import SharingLine, log_of
from paceline.features.sharing.wire import (
    MemoryLimit,
    SharingCause,
    SharingDecision,
    SharingEvent,
    SharingTold,
    UpgradeNode,
    UpgradeShare,
)
from paceline.jobs.jsonl import LineFile
from paceline.master.feature_port import Core, MasterPart
from paceline.wire.client import Shown, ShownTable
from paceline.wire.spec import ShareSpec, load, save

LOG_BYTES = 16 << 20
"""Bytes beyond which a log is put aside, and the one that lay there is dropped."""
NEWS: frozenset[SharingCause] = frozenset({"arrival", "newcomer", "regime", "departure"})
"""Causes of decisions that are events, too; the others come every few seconds."""
COLUMNS = ("node", "device", "class", "opportunistic jobs may use", "why")

_decode = msgspec.msgpack.Decoder(SharingTold).decode
_decode_call = msgspec.msgpack.Decoder(UpgradeShare).decode


class SharingPart(MasterPart):
    """The job's class, the newest decisions of each node's device, and the log of all."""

    def __init__(self, core: Core) -> None:
        self._core, self._share = core, core.spec.share
        self._newest: dict[str, SharingDecision] = {}
        """The newest decision about the device that a node shares."""
        self._limits: dict[str, MemoryLimit] = {}
        """The newest limit of a node's memory on its device, where one was ever decided."""
        self._log = LineFile(log_of(core.job))

    def heard_agent(self, node: str, body: msgspec.Raw) -> None:
        """Keep a decision, unless it is the newest one once more."""
        decision = _decode(body).decision
        memory = decision.memory
        if not self._share.every or decision == self._newest.get(node):
            return
        if memory is None:
            self._newest[node] = decision
        elif memory.worker == f"{self._core.job.job_id}/{node}":
            if memory == self._limits.get(node):
                return
            self._limits[node] = memory
        self._log.add(SharingLine(t=self._core.wall(), node=node, decision=decision))
        self._log.flush()
        if self._log.num_bytes > LOG_BYTES:
            self._log.put_aside()
        if decision.cause in NEWS:
            (device,) = self._share.of(node)
            self._core.tell(SharingEvent(node=node, device=device, decision=decision))

    def answer(self, call: msgspec.Raw) -> bool:
        """Make the job guaranteed: for masters and agents to come in the spec, then for these.

        Raises:
            ConfigError: the disk refuses it.
        """
        _decode_call(call)
        if self._share.every and self._share.kind != "guaranteed":
            self._upgrade()
        return bool(self._share.every)

    def _upgrade(self) -> None:
        share, path = replace(self._share, kind="guaranteed"), self._core.job.spec
        try:
            save(replace(load(path), share=share), path)
        except OSError as error:
            raise ConfigError(describe(error, path)) from error
        self._share = share
        for node in self._core.roster.nodes:
            self.agent_came(node)

    def agent_came(self, node: str) -> None:
        """Tell an agent what has become of the job, perhaps before it came."""
        if self._share.every and self._share.kind == "guaranteed":
            self._core.send_agent(node, UpgradeNode())

    def shown(self) -> Shown:
        nodes = self._core.roster.nodes.values()
        workers = [node.name for node in nodes if node.role == "worker"]
        found = rows(self._core.job.job_id, self._share, workers, self._newest, self._limits)
        values = {
            name: {
                "sharing": msgspec.to_builtins(self._newest.get(name)),
                "memory": msgspec.to_builtins(self._limits.get(name)),
            }
            for name in {*self._newest, *self._limits}
        }
        tables = (ShownTable(COLUMNS, tuple(found)),) if found else ()
        return Shown(tables=tables, nodes=values)


def rows(
    job_id: str,
    share: ShareSpec,
    workers: Iterable[str],
    newest: Mapping[str, SharingDecision],
    limits: Mapping[str, MemoryLimit],
) -> list[tuple[str, ...]]:
    """Return one or two rows per node that shares a device, as `COLUMNS` has it.

    Args:
        job_id: of the job.
        share: how it shares devices.
        workers: names of its workers.
        newest: the newest decision about each one's device.
        limits: the newest limit of each one's memory.
    """
    found: list[tuple[str, ...]] = []
    for node in workers if share.every else ():
        now = newest.get(node)
        told = ("-", "nothing is decided yet") if now is None else (now.allowed, now.why)
        kind: str = share.kind
        if now is not None and kind == "auto":
            kind += ", guaranteed now" if now.guaranteed == job_id else ", opportunistic now"
        (device,) = share.of(node)
        found.append((node, device, kind, *told))
        if (memory := limits.get(node)) is not None:
            told = (f"this worker {memory.allowed}", memory.why)
            found.append((node, f"memory of {device}", kind, *told))
    return found
