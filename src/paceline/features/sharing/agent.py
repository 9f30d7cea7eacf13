"""A node's part in sharing a device: its page, and for one node of all, the device coordinator.

The agents of all jobs that share a device try to take one lock. The one that holds it is the device
coordinator; when it ends, however it ends, another one's next try succeeds. The state of the law is
not handed over: the new one begins with the least duty, which harms no guaranteed job.
"""

import contextlib
import errno
import logging
import os
import socket
from pathlib import Path
from time import monotonic

import msgspec
from msgspec.structs import replace

from paceline.agent.feature_port import AgentHere, AgentPart
from paceline.base.cgroups import give_way
from paceline.base.devices import gpu_index, shared_name
from paceline.base.errors import ConfigError
from paceline.base.jobdir import role_of
from paceline.features.sharing.device_memory import MemoryCoordinator, worker_name
from paceline.features.sharing.gate_page import (
    AWAY,
    FREE,
    HELD_AT,
    LIFE,
    MINIMUM,
    ROOM,
    SINCE,
    STALE_S,
    GatePage,
    page_of,
)
from paceline.features.sharing.pages import open_page, page_paths
from paceline.features.sharing.policy.law import (
    SharingFacts,
    SharingJob,
    SharingRules,
    SharingState,
    decide,
    guaranteed_of,
)
from paceline.features.sharing.wire import GateMode, SharingDecision, SharingTold, UpgradeNode
from paceline.wire.spec import ShareSpec
from paceline.wire.step_ledger import StepLedgerReader

WEIGH_EVERY = 5
"""Looks, after which the weight of the job is looked at."""
FIND_EVERY = 3
"""Looks, between two of which pages of new jobs are looked for."""

_log = logging.getLogger(__name__)


_decode = msgspec.msgpack.Decoder(UpgradeNode).decode


class NodeShare(AgentPart):
    """The part of one node, as its agent has it.

    Args:
        here: the node; its spec names a device for it.
    """

    def __init__(self, here: AgentHere) -> None:
        share = _shared(here)
        (self._device,) = share.of(here.node)
        self._here = here
        page = page_of(here.job, here.node)
        self._page = GatePage.create(page, self._device, share.kind)
        self._page.words[ROOM] = share.device_memory_bytes or 0
        self._page.words[MINIMUM] = share.minimum_memory_bytes or 0
        self._told = 0
        """Number of the newest decision that the master knows."""
        self._newest: dict[bool, SharingDecision] = {}
        """The newest decision on the node's gate (True) and on the node's own memory (False)."""
        self._again = False
        self._looks = 0
        self._coordinator: DeviceCoordinator | None = None

    def tick(self, now_s: float) -> None:
        """Keep up the device coordinator, if it is here, and tell the master of decisions."""
        if self._coordinator is None:
            self._coordinator = coordinate(self._device)
        if self._coordinator is not None:
            self._coordinator.look(now_s)
        if self._looks % WEIGH_EVERY == 0 and gpu_index(self._device) is None:
            self._weigh()
        self._looks += 1
        for number, decision in self._page.decisions(self._told):
            self._told = number
            memory = decision.memory
            if memory is None or memory.worker == worker_name(self._page):
                self._newest[memory is None] = decision
            self._here.send(SharingTold(decision=decision))
        if self._again:
            self._again = False
            for decision in self._newest.values():
                self._here.send(SharingTold(decision=decision))

    def _weigh(self) -> None:
        """Let the kernel prefer the guaranteed job between two gates of ours.

        Control groups weigh whole jobs, so one node that is held has all of them give way. Where
        groups are not permitted, gates alone hold the job back.
        """
        pages = filter(None, map(open_page, self._here.job.run_dir.glob("*.share")))
        held = []
        for page in pages:
            held.append(page.newest.mode is not GateMode.OFF)
            page.close()
        with contextlib.suppress(OSError):
            give_way(self._here.job.job_id, any(held))

    def connected(self) -> None:
        """Have the newest decisions told again, to a master that may not know them."""
        self._again = True

    def told(self, body: msgspec.Raw) -> None:
        """The job is guaranteed from now on."""
        _decode(body)
        self._page.share = "guaranteed"

    def began(self) -> None:
        """Hold the process again: it is a new life."""
        self._page.words[FREE] = 0.0

    def must_end(self) -> None:
        """Hold the process no more at its gate."""
        self._page.words[FREE] = 1.0

    def has_room(self) -> bool:
        """Tell whether the device's memory has room for the process."""
        return not self._page.words[AWAY]

    def holds(self) -> bool:
        """Tell whether the process has waited at its gate just now."""
        return monotonic() - self._page.words[HELD_AT] < STALE_S

    def close(self) -> None:
        """Leave the device to others."""
        if self._coordinator is not None:
            self._coordinator.close()
        self._page.close()


def make(here: AgentHere) -> NodeShare | None:
    """Return the part of a node that shares a device; None: it shares none."""
    shares = here.spec.share.every and role_of(here.node) == "worker"
    return NodeShare(here) if shares else None


def _shared(here: AgentHere) -> ShareSpec:
    """Return how the node shares its device, by the name that the device has for all jobs."""
    (device,) = here.spec.share.of(here.node)
    name = shared_name(device, {**os.environ, **here.spec.env})
    return replace(here.spec.share, device=name, devices=())


class DeviceCoordinator:
    """The device coordinator.

    Args:
        device: its name.
        lock: bound to the name that only one may have.
    """

    def __init__(self, device: str, lock: socket.socket) -> None:
        self._device, self._lock = device, lock
        self._rules, self._state = SharingRules(), SharingState()
        self._memory = MemoryCoordinator()
        self._pages: dict[Path, GatePage] = {}
        self._ledgers: dict[Path, StepLedgerReader] = {}
        self._looks = 0
        _log.info("device_coordinator device=%s", device)

    def look(self, now_s: float) -> None:
        """Take in what the jobs do, and give orders."""
        self._find()
        jobs = [
            SharingJob(name=page.job_id, share=page.share, since_s=page.words[SINCE])
            for page in self._pages.values()
        ]
        guaranteed = guaranteed_of(jobs)
        kept = [page for page in self._pages.values() if page.job_id == guaranteed]
        facts = SharingFacts(
            now_s=now_s,
            guaranteed=guaranteed,
            life=sum(int(page.words[LIFE]) for page in kept),
            others=tuple(sorted({job.name for job in jobs} - {guaranteed})),
            steps_s=tuple(step_s for page in kept for step_s in self._steps(page)),
            tells_gaps=len(kept) == 1 and kept[0].tells_gaps,
        )
        self._state, decision = decide(self._state, facts, self._rules)
        state, beside = self._state, str(kept[0].path) if kept else ""
        decisions = self._memory.look(now_s, self._pages.values(), state)
        if decision is not None:
            decisions.append(decision)
        for page in self._pages.values():
            if page.job_id == guaranteed:
                page.order(GateMode.OFF, 1.0, "")
            else:
                page.order(state.mode, state.duty, beside)
            for one in decisions:
                page.tell(one)

    def _find(self) -> None:
        """Let go of jobs that are over, and now and then look for new ones."""
        for path, page in list(self._pages.items()):
            if not (path.exists() and page.is_held):
                page.close()
                del self._pages[path]
                self._ledgers.pop(path, None)
        if self._looks % FIND_EVERY == 0:
            for path in page_paths():
                page_found = None if path in self._pages else open_page(path)
                if page_found is not None and page_found.device == self._device:
                    self._pages[path] = page_found
                elif page_found is not None:
                    page_found.close()
        self._looks += 1

    def _steps(self, page: GatePage) -> list[float]:
        """Read the steps that a worker has made since the last look, but for those marked."""
        path = page.path.with_suffix(".ledger")
        ledger = self._ledgers.setdefault(page.path, StepLedgerReader(path))
        with contextlib.suppress(ConfigError):
            found = ledger.read()
            records = found.records if found is not None else ()
            return [one.bpt_s for one in records if not one.marks and one.bpt_s > 0]
        return []

    def close(self) -> None:
        """Leave the device to another one."""
        for page in self._pages.values():
            page.close()
        self._lock.close()


def coordinate(device: str) -> DeviceCoordinator | None:
    """Become the device coordinator; None: there is one.

    The lock is a name of a socket without a file: the kernel frees it when its holder ends, however
    that is, and nothing is left.
    """
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0paceline-share-{os.geteuid()}-{device}")
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return DeviceCoordinator(device, lock)
