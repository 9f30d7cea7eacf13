"""Plants bugs in every process of a job: the chaos kit must find them.

Python imports this at start when this folder is on PYTHONPATH. Each plant that PACELINE_PLANTS
names is patched into its production module as soon as that is imported; no production code knows
of it. Some bugs are hidden by another rule of the protocol: what uncovers them is a plant, too.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

LATE_STREAK = 6
"""Lives that ended early: with the 0.1 s of chaos jobs the next one begins 3.2 s later."""


def ready_before_all_held(module: ModuleType) -> None:
    """WorkerState says `ready` when the first server holds a part."""
    state = module.WorkerState
    original = state.held

    def held(self, message):  # type: ignore[no-untyped-def]
        if not self.exactly_once:
            return original(self, message)
        offer = self.offers.get(message.seq)
        if message.epoch_no != self.epoch_no or offer is None:
            return []
        offer.not_held_by.clear()
        return self._ready()

    state.held = held


def fence_ignored(module: ModuleType) -> None:
    """The leader answers a fence and goes on taking the worker's contributions."""
    state = module.ServerState
    fence = state.fence

    def forgetful(self, message):  # type: ignore[no-untyped-def]
        kept, ready = dict(self.contents.parts), dict(self.readiness.last_of)
        done = fence(self, message)
        self.fenced.pop(message.fenced, None)
        self.contents.parts, self.readiness.last_of = kept, ready
        return [one for one in done if type(one).__name__ != "Forget"]

    state.fence = forgetful


def silence_believed(module: ModuleType) -> None:
    """Uncovers the one above: a silent worker is given up, and its next life begins late.

    Otherwise the next agent takes the silent worker over, and nobody who lives is ever fenced: as
    if no place could be had for that agent, nor for the next life before the worker comes back.
    """
    members = module.Membership
    on_silence = members._on_silence

    def believe(self, node, now_s, lost_after_s, others_wait):  # type: ignore[no-untyped-def]
        silent_s = now_s - node.agent.heard_s
        if node.role != "worker" or not node.life.up or silent_s < lost_after_s:
            return on_silence(self, node, now_s, lost_after_s, others_wait)
        reason = f"unreachable, silent for {silent_s:.1f} s"
        node.past.since_s, node.past.streak = now_s, LATE_STREAK
        gone = module.Judged("unreachable", module.Verdict.RETRYABLE, reason)
        return [*self.lost(node), *self._again(node, gone, now_s)]

    members._on_silence = believe


def ledger_not_rewound(module: ModuleType) -> None:
    """A restore leaves the ledger as it is but for the leases."""

    def restore(self, committed, *, again=True):  # type: ignore[no-untyped-def]
        del committed, again
        for inc in list(self.leases):
            self.lose(inc)

    module.Ledger.restore = restore


def duplicate_part_applied(module: ModuleType) -> None:
    """A repeated part that is in the model is taken, and applied again, as if it were new."""
    state = module.ServerState
    part = state.part

    def forgetful(self, message):  # type: ignore[no-untyped-def]
        last = self.contents.last_seq.get(message.inc, 0)
        if message.epoch_no != self.epoch_no or message.seq > last:
            return part(self, message)
        self.contents.last_seq[message.inc] = message.seq - 1
        if self.exactly_once:  # what comes next of this worker orders it a second time
            self.contents.committed.subtract(message.spans)
            return part(self, message)
        applied = part(self, message)
        self.contents.last_seq[message.inc] = last
        return [*applied, *part(self, message)]

    state.part = forgetful


def newer_epoch_accepted(module: ModuleType) -> None:
    """A server takes messages of an epoch that it has not entered, and believes to be in it."""
    state = module.ServerState
    part, pull = state.part, state.pull

    def enter(self, message):  # type: ignore[no-untyped-def]
        if 0 < self.epoch_no < message.epoch_no:
            self.epoch_no = message.epoch_no

    def eager_part(self, message):  # type: ignore[no-untyped-def]
        enter(self, message)  # type: ignore[no-untyped-call]
        return part(self, message)

    def eager_pull(self, message):  # type: ignore[no-untyped-def]
        enter(self, message)  # type: ignore[no-untyped-call]
        return pull(self, message)

    state.part, state.pull = eager_part, eager_pull


def workers_told_first(module: ModuleType) -> None:
    """Uncovers the one above: workers start before servers hear of the epoch.

    As if the first `Restore` had been lost on its way; the repeated one comes a second later.
    """
    state = module.ServerHolder
    start = state.start_epoch

    def start_epoch(self, servers):  # type: ignore[no-untyped-def]
        journal = start(self, servers)[0]
        restoring, self.restoring = self.restoring, set()
        told = [one for inc in sorted(self.untold) for one in self.tell_epoch(inc)]
        self.restoring = restoring
        return [journal, *told]

    state.start_epoch = start_epoch


def schedule_begins_again(module: ModuleType) -> None:
    """A member that takes over the state of another one keeps its own schedulers."""
    replica = module.Replica
    become = replica._become

    def forgetful(self, state):  # type: ignore[no-untyped-def]
        own = [scheduler.state_dict() for scheduler in self.schedulers]
        become(self, {**state, "schedulers": own})

    replica._become = forgetful


def momentum_lost(module: ModuleType) -> None:
    """A member that takes over the state of another one begins without momentum."""
    replica = module.Replica
    become = replica._become

    def forgetful(self, state):  # type: ignore[no-untyped-def]
        become(self, state)
        for optimizer in self.optimizers:
            for kept in optimizer.state.values():
                if kept.get("momentum_buffer") is not None:
                    kept["momentum_buffer"].zero_()

    replica._become = forgetful


WORKER, SERVER = (
    "paceline.protocol.holding.servers.worker",
    "paceline.protocol.holding.servers.server",
)
MASTER, LEDGER = "paceline.protocol.holding.servers.master", "paceline.protocol.samples.ledger"
MEMBERS, REPLICA = "paceline.protocol.nodes.membership", "paceline.runtime.state.replica"

Plant = Callable[[ModuleType], None]
PLANTS: dict[str, tuple[str, Plant]] = {
    "ready_before_all_held": (WORKER, ready_before_all_held),
    "fence_ignored": (SERVER, fence_ignored),
    "silence_believed": (MEMBERS, silence_believed),
    "ledger_not_rewound": (LEDGER, ledger_not_rewound),
    "duplicate_part_applied": (SERVER, duplicate_part_applied),
    "newer_epoch_accepted": (SERVER, newer_epoch_accepted),
    "workers_told_first": (MASTER, workers_told_first),
    "schedule_begins_again": (REPLICA, schedule_begins_again),
    "momentum_lost": (REPLICA, momentum_lost),
}
"""By name: where it is planted, and how."""


class Planter(importlib.abc.MetaPathFinder):
    """Patches modules right after they were executed."""

    def __init__(self, names: Iterable[str]) -> None:
        self.plants: dict[str, list[Plant]] = {}
        for name in names:
            where, plant = PLANTS[name]
            self.plants.setdefault(where, []).append(plant)

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        plants = self.plants.pop(fullname, None)
        if plants is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def exec_and_plant(module):  # type: ignore[no-untyped-def]
            execute(module)
            for plant in plants:
                plant(module)

        loader.exec_module = exec_and_plant  # type: ignore[union-attr, method-assign]
        return spec


if os.environ.get("PACELINE_PLANTS"):
    sys.meta_path.insert(0, Planter(os.environ["PACELINE_PLANTS"].split(",")))
