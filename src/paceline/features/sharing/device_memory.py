"""The part of a device coordinator that divides the device's memory among jobs."""

import math
from collections.abc import Iterable

from paceline.features.sharing.gate_page import AWAY, LIMIT, MINIMUM, ROOM, SINCE, GatePage
from paceline.features.sharing.policy.law import SharingState
from paceline.features.sharing.policy.memory import decide_memory
from paceline.features.sharing.policy.memory_facts import (
    MemoryFacts,
    MemoryRules,
    MemoryState,
    MemoryWorker,
)
from paceline.features.sharing.wire import SharingDecision


class MemoryCoordinator:
    """Takes in what workers use, and orders their limits, which stand on their pages.

    A successor goes on with these.
    """

    def __init__(self) -> None:
        self._rules, self._state = MemoryRules(), MemoryState()

    def look(
        self, now_s: float, pages: Iterable[GatePage], gates: SharingState
    ) -> list[SharingDecision]:
        """Give orders; what was decided.

        Args:
            now_s: the time.
            pages: of all workers on the device.
            gates: what the law of its time has decided.
        """
        limited = {worker_name(page): page for page in pages if page.words[ROOM]}
        facts = MemoryFacts(
            now_s=now_s,
            room=min((page.words[ROOM] for page in limited.values()), default=0.0),
            workers=tuple(
                _worker(name, page, gates.guaranteed) for name, page in sorted(limited.items())
            ),
            is_steady=gates.phase != "arrival",
            is_unstable=gates.unstable,
            is_paused=gates.phase == "alone",
        )
        self._state, told = decide_memory(self._state, facts, self._rules)
        for limit in told:
            words = limited[limit.worker].words
            words[AWAY] = float(limit.cause == "no room")
            if limit.cause != "no room":
                ordered = math.inf if limit.limit_bytes is None else float(limit.limit_bytes)
                words[LIMIT] = ordered
        return [
            SharingDecision(
                cause="memory",
                mode=gates.mode,
                duty=gates.duty,
                guaranteed=gates.guaranteed,
                num_others=len(gates.others),
                memory=limit,
            )
            for limit in told
        ]


def worker_name(page: GatePage) -> str:
    """Name the worker of a page, as `MemoryLimit` does."""
    return f"{page.job_id}/{page.node}"


def _worker(name: str, page: GatePage, guaranteed: str) -> MemoryWorker:
    said = page.memory
    return MemoryWorker(
        name=name,
        job=page.job_id,
        is_kept=page.job_id == guaranteed,
        since_s=page.words[SINCE],
        is_away=bool(page.words[AWAY]),
        minimum=page.words[MINIMUM],
        ordered=page.words[LIMIT],
        looks=said.looks,
        limit=said.limit,
        device=said.device,
        peak=said.peak,
        host=said.host,
        spilled=said.spilled,
        batches=said.batches,
    )
