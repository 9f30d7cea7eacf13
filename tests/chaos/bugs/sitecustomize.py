"""Plants one bug in every process of a job: the chaos kit must find it.

Python imports this at start when this folder is on PYTHONPATH. The bug named by
PACELINE_PLANTED_BUG is patched into the production class as soon as its module is imported; no
production code knows of it.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType


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
        kept, ready = dict(self.parts), dict(self.ready_for_step)
        done = fence(self, message)
        self.fenced.pop(message.fenced, None)
        self.parts, self.ready_for_step = kept, ready
        return [one for one in done if type(one).__name__ != "Forget"]

    state.fence = forgetful


def silence_believed(module: ModuleType) -> None:
    """Goes with the one above: a node is given up before another agent had the time to start.

    Otherwise that agent takes the silent worker over, and nobody who lives is ever fenced.
    """
    module.AGENT_START_S = 0.0


def ledger_not_rewound(module: ModuleType) -> None:
    """A restore leaves the ledger as it is but for the leases."""

    def restore(self, committed, *, again=True):  # type: ignore[no-untyped-def]
        del committed, again
        for inc in list(self.leases):
            self.lose(inc)

    module.Ledger.restore = restore


def duplicate_part_applied(module: ModuleType) -> None:
    """A repeated part is taken, and applied again, as if it were new."""
    state = module.ServerState
    part, unordered = state.part, state._apply_unordered

    def forgetful(self, message):  # type: ignore[no-untyped-def]
        if self.exactly_once and self.last_seq.get(message.inc, 0) >= message.seq:
            self.last_seq[message.inc] = message.seq - 1
            self.committed.subtract(message.spans)
        return part(self, message)

    def again(self, message):  # type: ignore[no-untyped-def]
        self.last_seq[message.inc] = message.seq - 1
        return unordered(self, message)

    state.part, state._apply_unordered = forgetful, again


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
    """Goes with the one above, which it uncovers: workers start before servers hear of the epoch.

    As if the first `Restore` had been lost on its way; the repeated one comes a second later.
    """
    state = module.MasterState
    start = state.start_epoch

    def start_epoch(self, servers):  # type: ignore[no-untyped-def]
        journal = start(self, servers)[0]
        restoring, self.restoring = self.restoring, set()
        told = [one for inc in sorted(self.untold) for one in self._tell_epoch(inc)]
        self.restoring = restoring
        return [journal, *told]

    state.start_epoch = start_epoch


WORKER, SERVER = "paceline.runtime.ps.worker_state", "paceline.runtime.ps.state"
MASTER, LEDGER = "paceline.master.state", "paceline.master.shards.ledger"
MEMBERS = "paceline.master.membership"

BUGS: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "ready_before_all_held": {WORKER: ready_before_all_held},
    "fence_ignored": {SERVER: fence_ignored, MEMBERS: silence_believed},
    "ledger_not_rewound": {LEDGER: ledger_not_rewound},
    "duplicate_part_applied": {SERVER: duplicate_part_applied},
    "newer_epoch_accepted": {SERVER: newer_epoch_accepted, MASTER: workers_told_first},
}


class Planter(importlib.abc.MetaPathFinder):
    """Patches modules right after they were executed."""

    def __init__(self, bug: str) -> None:
        self.plants = dict(BUGS[bug])

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        plant = self.plants.pop(fullname, None)
        if plant is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def exec_and_plant(module):  # type: ignore[no-untyped-def]
            execute(module)
            plant(module)

        loader.exec_module = exec_and_plant  # type: ignore[union-attr, method-assign]
        return spec


if os.environ.get("PACELINE_PLANTED_BUG"):
    sys.meta_path.insert(0, Planter(os.environ["PACELINE_PLANTED_BUG"]))
