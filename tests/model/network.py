"""Processes with inboxes: what one event does to a state of a small job.

A state is the tuple of the environment and one *spot* per live process. A spot is a process
(`cells.py`) with its inbox: the set of messages ever sent to it that may still matter. Nothing is
taken out of an inbox by delivery, so every message may come late, twice and in any order; a lost
message is one that is never delivered. Senders repeat at once whatever is unanswered, because a
message more in a set takes no behaviour away.

Handlers are pure, so their results are remembered per (process, event): almost every transition
is a few look-ups.
"""

import pickle
from functools import lru_cache
from typing import NamedTuple

import msgspec

from paceline.protocol import training as master_state
from paceline.wire.messages.data import At, Held, Ordered, Pulled
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    ChangeMap,
    Committed,
    Copied,
    Fence,
    GiveBack,
    Joined,
    JoinServers,
    LeaseRequest,
    Restore,
    TakeCut,
)

from .bounds import Bounds, Env, Machines, Table
from .cells import (
    FEED,
    MASTER,
    Cell,
    File,
    MasterCell,
    MoveOver,
    Output,
    ServerCell,
    Violation,
    WorkerCell,
    cut_directory,
    mask,
)
from .facts import Facts, epoch_of, ignores

State = tuple[int, ...]
"""(environment, spot of the master, spots of the other processes by incarnation)."""
Label = tuple[str, int, int]
"""(what, process, event)."""
Sends = tuple[tuple[int, tuple[int, ...]], ...]
"""(receiver, messages)."""


HEARD_AT_ONCE = (Held, Ordered, At, Pulled, JoinServers, Joined)
"""To hear these later is the same as if what follows came later."""
ANSWERED_AGAIN = (Restore, TakeCut, Fence, GiveBack, JoinServers, ChangeMap)
"""Whoever repeats these needs the answer, although nothing changes."""


class Step(NamedTuple):
    """A spot after an event, and what it sends."""

    spot: int
    sends: Sends


def by_receiver(outputs: tuple[tuple[int, int], ...]) -> Sends:
    found: dict[int, list[int]] = {}
    for to, message in outputs:
        found.setdefault(to, []).append(message)
    return tuple((to, tuple(messages)) for to, messages in found.items())


class Handled(msgspec.Struct, frozen=True):
    """What a process does on one event."""

    cell_id: int
    outputs: tuple[tuple[int, int], ...]
    crashes: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


class Network:
    """The processes of one job within `Bounds`, and the messages under way."""

    def __init__(self, bounds: Bounds, machines: Machines | None = None) -> None:
        self.bounds, self.machines = bounds, machines or Machines()
        #: Off while it is tried whether the end can be reached.
        self.reducing = bounds.reduce
        vars(master_state)["NUM_BUCKETS"] = 2  # who owns which bucket does not matter here
        self.envs: Table[Env] = Table()
        self.events: Table[object] = Table()
        self.labels: Table[Label] = Table()
        self._cell_ids: dict[tuple[int, bytes], int] = {}
        self._pickled: list[bytes] = []
        self.pid_of: list[int] = []
        self.facts: list[Facts] = []
        self.spots: Table[tuple[int, frozenset[int]]] = Table()
        self._handled: dict[tuple[int, int], Handled] = {}
        self._dead: dict[tuple[int, int], bool] = {}
        self._calm_master: dict[int, int] = {}
        self._steps: dict[tuple[int, int, bool], Step] = {}
        self._received: dict[tuple[int, tuple[int, ...], bool], Step] = {}
        self._deliveries: dict[int, tuple[int, ...]] = {}
        self._known_moves: dict[int, tuple[tuple[Label, int, Step | None], ...]] = {}
        #: Of each spot: the process in this state, and its incarnation.
        self.cell_of: list[int] = []
        self.pid_at: list[int] = []
        self._instant = () if bounds.late else HEARD_AT_ONCE
        self._read = lru_cache(50_000)(self.cell)
        self.resend = self.events("resend")
        self.grace_over = self.events("grace over")
        self.work = self.events("work")
        self.pull = self.events("pull")
        size = bounds.samples
        self.feed = Feed(
            feed=FEED,
            purpose="train",
            num_samples=size,
            epochs=bounds.epochs,
            batch_size=bounds.slice if bounds.mode == "bsp" else 1,
            shard_size=1,
            shuffle=False,
            seed=0,
        )
        self.everything = (1 << size * bounds.epochs) - 1

    # ------------------------------------------------------------------ cells

    def cell_id(self, cell: Cell) -> int:
        """The number of a process in this state."""
        pid = MASTER if isinstance(cell, MasterCell) else cell.state.inc
        key = (pid, cell.key())
        found = self._cell_ids.get(key)
        if found is None:
            facts = Facts.of(cell)
            found = self._cell_ids[key] = len(self._pickled)
            self._pickled.append(pickle.dumps(cell))
            self.pid_of.append(pid)
            self.facts.append(facts)
        return found

    def cell(self, cell_id: int) -> Cell:
        """A fresh copy of the process."""
        return pickle.loads(self._pickled[cell_id])  # type: ignore[no-any-return]

    def handled(self, cell_id: int, event_id: int) -> Handled:
        """What a process does on an event; remembered."""
        key = (cell_id, event_id)
        found = self._handled.get(key)
        if found is None:
            cell = self.cell(cell_id)
            event = self.events.values[event_id]
            outputs = cell.handle(event)
            crashes: list[tuple[int, tuple[tuple[int, int], ...]]] = []
            if isinstance(cell, MasterCell):
                crash_points = [c for k, c in enumerate(cell.crashes) if k or c[1]]
                for journalled, sent in crash_points:
                    restarted = MasterCell(journalled, pickle.loads(pickle.dumps(journalled)))
                    again = self._outputs(restarted.handle(("resume",)))
                    crashes.append((self.cell_id(restarted), self._outputs(list(sent)) + again))
                cell.crashes = []
            found = Handled(self.cell_id(cell), self._outputs(outputs), tuple(crashes))
            self._handled[key] = found
        return found

    def _outputs(self, outputs: list[Output]) -> tuple[tuple[int, int], ...]:
        return tuple(dict.fromkeys((to, self.events(message)) for to, message in outputs))

    # ------------------------------------------------------------------ one event

    def apply(self, state: State, pid: int, event: int) -> State:
        """The state after a process has handled an event and its messages are under way."""
        at = self.find(state, pid)
        if at < 0:
            return state
        message = self.events.values[event]
        if isinstance(message, Restore):
            event = self._with_file(state[0], message)
        return self._take(state, at, self.step(state[at], event))

    def _take(self, state: State, at: int, step: Step) -> State:
        spots = list(state)
        spots[at] = step.spot
        self._send(spots, step.sends)
        after = tuple(spots)
        if after[0] == state[0] and len(after) == len(state) and self._alike(after[1], state[1]):
            return after
        return self._clean(spots)

    def _alike(self, spot: int, before: int) -> bool:
        """Whether the master's step leaves nothing to `_clean`."""
        one, two = self.facts[self.cell_of[spot]], self.facts[self.cell_of[before]]
        return one is two or (
            one.epoch_no == two.epoch_no
            and one.workers == two.workers
            and one.owing == two.owing
            and one.loadable == two.loadable
        )

    def step(self, spot: int, event: int) -> Step:
        """What one process does on an event."""
        key = (spot, event, self.reducing)
        found = self._steps.get(key)
        if found is None:
            cell_id, inbox = self.spots.values[spot]
            handled = self.handled(cell_id, event)
            if handled.cell_id != cell_id:
                spot = self._spot(handled.cell_id, inbox)
            found = self._steps[key] = Step(spot, by_receiver(handled.outputs))
        return found

    def _receive(self, spot: int, messages: tuple[int, ...]) -> Step:
        """Messages arrive in an inbox; instant ones are handled, and lead to more."""
        key = (spot, messages, self.reducing)
        found = self._received.get(key)
        if found is None:
            sends: list[tuple[int, int]] = []
            for message_id in messages:
                spot, more = self._receive_one(spot, message_id)
                sends += more
            found = self._received[key] = Step(spot, by_receiver(tuple(sends)))
        return found

    def _receive_one(self, spot: int, message_id: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        cell_id, inbox = self.spots.values[spot]
        message = self.events.values[message_id]
        if type(message) in self._instant or (
            self.reducing and self._is_harmless(cell_id, message)
        ):
            handled = self.handled(cell_id, message_id)
            if handled.cell_id == cell_id:
                return spot, handled.outputs if isinstance(message, ANSWERED_AGAIN) else ()
            return self._spot(handled.cell_id, inbox), handled.outputs
        if self.reducing and self.is_dead(cell_id, message_id):
            if isinstance(message, Restore):
                message_id = self.events((message, None))
            if isinstance(message, ANSWERED_AGAIN):  # changes nothing, is answered again
                return spot, self.handled(cell_id, message_id).outputs
            return spot, ()
        if message_id in inbox:
            return spot, ()
        inbox |= {message_id}
        if self.reducing and isinstance(message, Committed):
            inbox = self._without_older_reports(inbox)
        return self._new_spot(cell_id, inbox), ()

    def _is_harmless(self, cell_id: int, message: object) -> bool:
        """Reports to the master that change no answer of its: when they come makes no difference.

        The last copy of a cut and the report that completes the feed are heard at any time.
        """
        facts = self.facts[cell_id]
        if facts.kind != "master" or facts.epoch_no != epoch_of(message) or facts.restoring:
            return False
        if isinstance(message, Committed):
            return not facts.planning and mask(message.committed) != self.everything
        if isinstance(message, Copied) and facts.cutting and not message.stored:
            return len(facts.copied | {message.inc}) < facts.num_sharers
        if isinstance(message, Copied) and facts.storing and message.stored:
            return len(facts.stored | {message.inc}) < facts.num_sharers
        return False

    def _new_spot(self, cell_id: int, inbox: frozenset[int]) -> int:
        spot = self.spots((cell_id, inbox))
        if spot == len(self.cell_of):
            self.cell_of.append(cell_id)
            self.pid_at.append(self.pid_of[cell_id])
        return spot

    def _spot(self, cell_id: int, inbox: frozenset[int]) -> int:
        if self.reducing:
            inbox = frozenset(m for m in inbox if not self.is_dead(cell_id, m))
            inbox = self._without_older_reports(inbox)
        return self._new_spot(cell_id, inbox)

    def _send(self, spots: list[int], sends: Sends) -> None:
        for to, messages in sends:
            if to < 0:
                for message_id in messages:
                    self._outside(spots, self.events.values[message_id])
                continue
            at = self.find(spots, to)
            if at >= 0:
                step = self._receive(spots[at], messages)
                spots[at] = step.spot
                if step.sends:
                    self._send(spots, step.sends)

    def _outside(self, spots: list[int], message: object) -> None:
        env = self.envs.values[spots[0]]
        if isinstance(message, File):
            directory = message.directory
            if self.machines.cut_directory is not cut_directory:
                epoch_no, cut_no = map(int, directory.split("-"))
                directory = self.machines.cut_directory(epoch_no, cut_no)
                message = msgspec.structs.replace(message, directory=directory)
            other = [f for f in env.files if (f.directory, f.inc) != (directory, message.inc)]
            files = tuple(sorted([*other, message], key=lambda f: (f.directory, f.inc)))
            spots[0] = self.envs(msgspec.structs.replace(env, files=files))
        elif isinstance(message, MoveOver):
            self._move_over(spots, message)
        else:
            self._exit(spots, message.inc)  # type: ignore[attr-defined]

    def _move_over(self, spots: list[int], message: MoveOver) -> None:
        """The joining servers stand beside those that stay, or they go."""
        env = self.envs.values[spots[0]]
        if message.joining != env.joiners:
            return
        slots, next_inc, gone = list(env.slots), env.next_inc, env.joiners
        if message.moved:
            gone = message.leaving
            # One that is dead by now died as a server, and is replaced as such.
            for inc in env.joiners:
                if inc in env.joiners_dead:
                    inc, next_inc = next_inc, next_inc + 1
                    fresh = self.cell_id(ServerCell(self.machines.server(inc)))
                    spots.append(self._new_spot(fresh, frozenset()))
                slots.append(inc)
            slots = [inc for inc in slots if inc not in gone]
        for inc in gone:
            at = self.find(spots, inc)
            if at >= 0:
                del spots[at]
        env = msgspec.structs.replace(env, slots=tuple(slots), next_inc=next_inc)
        env = msgspec.structs.replace(env, joiners=(), leavers=(), joiners_dead=frozenset())
        if self.bounds.fails_in_moves and not env.moves:
            env = msgspec.structs.replace(env, failures=0)
        spots[0] = self.envs(env)

    def _exit(self, spots: list[int], inc: int) -> None:
        """A process is gone, with its inbox."""
        at = self.find(spots, inc)
        env = self.envs.values[spots[0]]
        if at < 0:
            return
        del spots[at]
        env = msgspec.structs.replace(
            env,
            dead=env.dead | {inc},
            unheard=env.unheard - {inc},
            suspected=env.suspected - {inc},
        )
        spots[0] = self.envs(env)

    def _with_file(self, env_id: int, message: Restore) -> int:
        directory = self.machines.cut_directory(message.cut.epoch_no, message.cut.cut_no)
        files = [f for f in self.envs.values[env_id].files if f.directory == directory]
        if len({(f.step, f.content) for f in files}) != 1:
            raise Violation("E", f"the files of cut {directory} are not of one state")
        return self.events((message, files[0]))

    def find(self, state: State | list[int], pid: int) -> int:
        """Where the process stands in a state; -1: it is gone."""
        pids = self.pid_at
        for at in range(1, len(state)):
            if pids[state[at]] == pid:
                return at
        return -1

    def cell_at(self, state: State | list[int], at: int) -> int:
        """The process at a place of a state."""
        return self.cell_of[state[at]]

    # ------------------------------------------------------------------ reduction

    def is_dead(self, cell_id: int, message_id: int) -> bool:
        """Whether a message can do nothing here, now or later (and does nothing now)."""
        key = (cell_id, message_id)
        found = self._dead.get(key)
        if found is None:
            message = self.events.values[message_id]
            found = ignores(self._read(cell_id), message)
            if found and not isinstance(message, Restore | LeaseRequest | TakeCut):
                found = self.handled(cell_id, message_id).cell_id == cell_id
            self._dead[key] = found
        return found

    def _without_older_reports(self, inbox: frozenset[int]) -> frozenset[int]:
        """What the leader said is in the model only grows: the newest word says it all."""
        reports = {m: self.events.values[m] for m in inbox}
        sizes = {
            m: (report.epoch_no, report.step, mask(report.committed).bit_count())
            for m, report in reports.items()
            if isinstance(report, Committed)
        }
        if len(sizes) < 2:
            return inbox
        return inbox - (set(sizes) - {max(sizes, key=lambda m: sizes[m])})

    def _clean(self, spots: list[int]) -> State:
        """Forget what can no longer influence anything."""
        env = self.envs.values[spots[0]]
        master = self.facts[self.cell_at(spots, 1)]
        known = frozenset(i for i in env.dead if i in master.workers or i in master.owing)
        files = tuple(f for f in env.files if self._may_be_loaded(f, master))
        if known != env.dead or files != env.files:
            spots[0] = self.envs(msgspec.structs.replace(env, dead=known, files=files))
        if self.bounds.failures and not env.failures and master.journalled:
            cell = self.cell(self.cell_at(spots, 1))
            assert isinstance(cell, MasterCell)
            cell.journalled = None
            spots[1] = self._new_spot(self.cell_id(cell), self.spots.values[spots[1]][1])
        if self.reducing:
            self._forget_old_epochs(spots, master.epoch_no)
        return tuple(spots)

    def _may_be_loaded(self, file: File, master: Facts) -> bool:
        if self.machines.cut_directory is not cut_directory or not self.reducing:
            return True
        return (
            file.directory in master.loadable
            or int(file.directory.split("-")[0]) == master.epoch_no
        )

    def _forget_old_epochs(self, spots: list[int], epoch_no: int) -> None:
        """A process of an older epoch waits for the restore, and everything of it is void."""
        env = self.envs.values[spots[0]]
        for at in range(len(spots) - 1, 1, -1):
            cell_id, inbox = self.spots.values[spots[at]]
            facts = self.facts[cell_id]
            if not 0 < facts.epoch_no < epoch_no:
                continue
            inc = self.pid_of[cell_id]
            if facts.kind == "server" and inc not in env.slots:
                del spots[at]
                continue
            fresh: Cell = self._server(inc) if facts.kind == "server" else self._worker(inc)
            kept = frozenset(m for m in inbox if epoch_of(self.events.values[m]) >= epoch_no)
            spots[at] = self._spot(self.cell_id(fresh), kept)
        master_cell, inbox = self.spots.values[spots[1]]
        spots[1] = self._spot(master_cell, inbox)

    def _server(self, inc: int) -> ServerCell:
        missing = max(self.bounds.left_out, self.bounds.in_grace)
        return ServerCell(self.machines.server(inc), missing)

    def _worker(self, inc: int) -> WorkerCell:
        state = self.machines.worker(
            inc, mode=self.bounds.mode, samples="exactly-once", window=self.bounds.window
        )
        return WorkerCell(
            state,
            self.feed,
            prefetch=self.bounds.prefetch,
            eager=self.bounds.reduce,
            pull_first=self.bounds.pull_first,
        )
