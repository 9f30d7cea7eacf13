"""One look at the division of a device's memory, whose law is in `memory`."""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from paceline.features.sharing.policy.memory_facts import (
    MemoryFacts,
    MemoryRules,
    MemoryShare,
    MemoryState,
    MemoryWorker,
)
from paceline.features.sharing.wire import MemoryCause, MemoryLimit


class MemoryDivision:
    """One look at the division of the memory: limits change, until all is served."""

    def __init__(self, state: MemoryState, facts: MemoryFacts, rules: MemoryRules) -> None:
        """``state``: of the look before."""
        self.facts, self.rules, self.came_s = facts, rules, state.came_s
        self._limited = all(0.0 < worker.ordered < math.inf for worker in facts.workers)
        begins = not state.shares and self._limited
        self.goes_on = (state.goes_on or begins) and self._limited and not facts.is_steady
        self.workers = {worker.name: worker for worker in facts.workers}
        self.kept = [worker for worker in facts.workers if worker.is_kept]
        self.others = [worker for worker in facts.workers if not worker.is_kept]
        self.shares: dict[str, MemoryShare] = {}
        self.least = rules.least_of(facts.room)
        self.told: dict[str, MemoryLimit] = {}
        self.reserved = 0.0
        """Bytes kept free for a worker that comes back."""

    @property
    def free(self) -> float:
        """Memory that nobody has, and nobody is owed."""
        held = sum(self.held(worker) for worker in self.workers.values())
        owed = sum(share.owed for share in self.shares.values())
        return self.facts.room - held - owed - self.reserved

    def held(self, worker: MemoryWorker) -> float:
        """Return what a worker may use now, by its order or until it has taken that in."""
        ordered = self.shares[worker.name].limit
        most = max(ordered, worker.limit) if worker.looks else ordered
        return min(most, max(self.facts.room, worker.device))

    def spare(self, worker: MemoryWorker) -> float:
        """Return the memory that an opportunistic worker could do without."""
        return self.shares[worker.name].limit - worker.floor

    def order(
        self, name: str, limit: float, cause: MemoryCause, seen: float = 0.0, by: str = ""
    ) -> None:
        """Change a limit."""
        share, limit = self.shares[name], float(max(round(limit), 1))
        if limit == share.limit:
            return
        self.shares[name] = replace(
            share,
            limit=limit,
            calm_since_s=self.facts.now_s,
            top=0.0,
            was_lowered=cause == "unused",
            taken=share.taken and limit < share.limit,
            lacks=share.lacks if limit < share.limit else 0.0,
        )
        self.told[name] = MemoryLimit(
            worker=name,
            limit_bytes=int(limit),
            cause=cause,
            seen_bytes=int(seen),
            by=by,
            room_bytes=int(self.facts.room),
        )

    # ------------------------------------------------------------------ the steps of a look

    def take_in(self, before: Mapping[str, MemoryShare]) -> None:
        """See what each worker spilled and used."""
        for name, worker in self.workers.items():
            share = before.get(name) or MemoryShare(
                limit=worker.ordered, calm_since_s=self.facts.now_s, calm_s=self.rules.calm_s
            )
            self.shares[name] = self._seen(replace(share, limit=worker.ordered), worker)

    def _seen(self, share: MemoryShare, worker: MemoryWorker) -> MemoryShare:
        looks = worker.looks - share.looks
        lacks = share.lacks
        if not share.taken:
            lacks = 0.0
        elif looks > 0:
            lacks = max(worker.host, (worker.spilled - share.spilled) / looks)
        is_near = lacks > 0 or worker.peak > self.rules.near * share.limit
        return replace(
            share,
            batches=worker.batches,
            batch_at_s=share.batch_at_s if worker.batches == share.batches else self.facts.now_s,
            taken=worker.looks > 0 and worker.limit >= share.limit,
            looks=worker.looks,
            spilled=worker.spilled,
            lacks=lacks,
            top=0.0 if is_near else max(share.top, worker.peak),
            calm_since_s=self.facts.now_s if is_near else share.calm_since_s,
        )

    def admit(self) -> None:
        """Limit those that have come, and those that had no limit."""
        if self._limited:
            return
        self.came_s = self.facts.now_s
        for worker in self.others:
            share = self.shares[worker.name]
            part = 0.0 if self.kept or not share.limit else self.facts.room / len(self.others)
            if share.limit > part or not share.limit:
                self.order(worker.name, max(part, worker.floor), "arrival")
        left = self.facts.room - sum(worker.floor for worker in self.others)
        for worker in self.kept:
            share = self.shares[worker.name]
            part = max(left / len(self.kept), self.rules.slack * worker.peak, 1.0)
            part = min(part, self.facts.room)
            if not share.limit:
                self.order(worker.name, 1.0, "arrival")
            elif share.limit > part:
                self.order(worker.name, part, "arrival")

    def squeeze(self) -> None:
        """Have opportunistic workers keep their least until the guaranteed job is steady."""
        if self.facts.is_steady or self.goes_on or not self.kept:
            return
        for worker in self.others:
            if self.spare(worker) > 0:
                self.order(worker.name, worker.floor, "squeeze", by=self.kept[0].job)
        part = self.free / len(self.kept)
        for worker in self.kept:
            limit = self.shares[worker.name].limit
            if part > 0 and (part >= self.least / 4 or limit <= 1.0):
                self.order(worker.name, limit + part, "arrival")

    def serve_kept(self) -> None:
        """Give what the guaranteed job spills, first of all."""
        for worker in self.kept:
            share = self.shares[worker.name]
            if share.lacks and not share.owed:
                need = self._need(share)
                lack = need - max(self.free, 0.0)
                for other in sorted(self.others, key=self.spare, reverse=True):
                    taken = min(lack, self.spare(other))
                    if taken > 0:
                        limit = self.shares[other.name].limit - taken
                        self.order(other.name, limit, "spill", share.lacks, by=worker.name)
                        lack -= taken
                self.owe(worker.name, need - max(lack, 0.0), "spill")
        for name in sorted(self.shares, key=lambda name: not self.workers[name].is_kept):
            self._pay(name)

    def owe(self, name: str, amount: float, cause: MemoryCause) -> None:
        """Have a worker get so much as soon as it is free."""
        if amount > 0:
            self.shares[name] = replace(
                self.shares[name], owed=amount, owed_since_s=self.facts.now_s, owed_cause=cause
            )

    def _pay(self, name: str) -> None:
        share = self.shares[name]
        if not share.owed:
            return
        amount = min(share.owed, self.free + share.owed)
        if amount >= min(share.owed, self.least / 4):
            left = max(share.owed - amount, 0.0)
            self.shares[name] = replace(share, owed=left if left >= 1.0 else 0.0)
            self._raise(name, share.limit + amount, share.owed_cause)
        elif self.facts.now_s - share.owed_since_s > self.rules.owed_s:
            self.shares[name] = replace(share, owed=0.0)

    def reserve(self, amount: float) -> None:
        """Keep so much for a worker that comes back, from those with most to spare."""
        lack = amount - self.free
        self.reserved = amount
        for other in sorted(self.others, key=self.spare, reverse=True):
            taken = min(lack, self.spare(other))
            if taken > 0:
                self.order(other.name, self.shares[other.name].limit - taken, "arrival")
                lack -= taken

    def serve_others(self) -> None:
        """Give what nobody has to opportunistic workers that spill; equally, when some are new."""
        if self.facts.is_unstable or not self.facts.is_steady or not self.others:
            return
        left = self.facts.room - sum(self.shares[worker.name].limit for worker in self.kept)
        is_new = self.facts.now_s - self.came_s < self.rules.calm_s
        if is_new or not all(worker.looks for worker in self.others):
            left /= len(self.others)
        for worker in sorted(self.others, key=lambda worker: self.shares[worker.name].limit):
            share = self.shares[worker.name]
            need = self._need(share) if share.lacks and not share.owed else 0.0
            need = min(need, left - share.limit)
            amount = min(need, self.free)
            if amount > 0 and amount >= min(need, self.least / 4):
                self._raise(worker.name, share.limit + amount, "room")

    def lower(self) -> None:
        """Take what a worker has not used for a while."""
        for worker in self.workers.values():
            share = self.shares[worker.name]
            waits = self.facts.is_paused if not worker.is_kept else not self.facts.is_steady
            calm_s = self.facts.now_s - share.calm_since_s
            if share.owed or waits or not share.top or calm_s < share.calm_s:
                continue
            limit = max(self.rules.slack * share.top, worker.floor)
            if limit < share.limit:
                self.order(worker.name, limit, "unused", share.top)

    def _need(self, share: MemoryShare) -> float:
        need = max(self.rules.slack * share.lacks, self.least)
        return max(min(need, self.facts.room - share.limit), 0.0)

    def _raise(self, name: str, limit: float, cause: MemoryCause) -> None:
        """Raise a limit; if it was lowered for want of use, that takes longer from now on."""
        share = self.shares[name]
        if share.was_lowered:
            calm_s = min(2 * share.calm_s, self.rules.most_calm_s)
            self.shares[name] = replace(share, calm_s=calm_s)
        self.order(name, limit, cause, share.lacks)
