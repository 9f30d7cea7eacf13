"""All interleavings of a small job: states, their successors, and what may fail.

A state is the tuple of the environment and one *spot* per live process. A spot is a process
(`cells.py`) with its inbox: the set of messages ever sent to it that may still matter. Nothing is
taken out of an inbox by delivery, so every message may come late, twice and in any order; a lost
message is one that is never delivered. Senders repeat at once whatever is unanswered, because a
message more in a set takes no behaviour away.

Handlers are pure, so their results are remembered per (process, event): almost every transition
is a few look-ups.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import msgspec

from paceline.base.errors import PacelineError
from paceline.base.samples import Span
from paceline.master import state as master_state
from paceline.master.state import CutValid, FeedAdded, MasterState, SchemaFixed
from paceline.runtime.ps.state import ServerState
from paceline.runtime.ps.worker_state import WorkerState
from paceline.wire.messages import (
    At,
    Committed,
    Copied,
    CutRef,
    Feed,
    Fence,
    FenceAnswer,
    Grant,
    Held,
    LeaseRequest,
    Message,
    NewEpoch,
    Order,
    Ordered,
    Part,
    Prepared,
    Pull,
    Pulled,
    Ready,
    Refused,
    Restore,
    Restored,
    Server,
    ServerMap,
    Stop,
    TakeCut,
)

from .cells import (
    FEED,
    FILES,
    MASTER,
    SCHEMA,
    Cell,
    File,
    MasterCell,
    Output,
    ServerCell,
    Violation,
    WorkerCell,
    cut_directory,
    mask,
)

T = TypeVar("T")
BROKEN = (PacelineError, KeyError, IndexError, AssertionError, AttributeError, ValueError)
FAILURES = ("worker", "server", "master", "suspect-worker", "suspect-server")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How large the explored job is and what may happen to it."""

    mode: str = "asp"
    samples: int = 2
    epochs: int = 1
    """``samples`` are those of one epoch."""
    slice: int = 2
    """Samples of a step (bsp)."""
    workers: int = 2
    servers: int = 2
    leases: tuple[int, ...] = (1,)
    """Sizes that a grant may have (asp)."""
    window: int = 1
    failures: int = 0
    kinds: tuple[str, ...] = FAILURES
    cuts: int = 1
    restarts: str = "alone"
    """``alone``: no worker is started again while one lives; ``any``."""
    prefetch: bool = False
    """Workers ask before they have nothing left."""
    late: bool = False
    """Answers of servers to workers are messages like all others; else heard at once."""
    reduce: bool = True
    """Forget what an epoch left behind, and messages that can do nothing any more."""
    pull_first: bool = True
    """A worker pulls from all servers of an epoch before it works in it."""


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The classes under test; a planted flaw replaces one."""

    server: type[ServerState] = ServerState
    worker: type[WorkerState] = WorkerState
    master: type[MasterState] = MasterState
    cut_directory: Callable[[int, int], str] = cut_directory


class Env(msgspec.Struct, frozen=True):
    """What belongs to no process."""

    failures: int
    cuts: int
    next_inc: int
    slots: tuple[int, ...]
    """The newest incarnation of each server."""
    dead: frozenset[int] = frozenset()
    """Workers that have ended; the master may not know."""
    unheard: frozenset[int] = frozenset()
    """Live workers that this life of the master has not heard of."""
    suspected: frozenset[int] = frozenset()
    """Live workers that this life of the master takes for dead."""
    files: tuple[File, ...] = ()


class Table(Generic[T]):
    """Numbers for values."""

    def __init__(self) -> None:
        self.ids: dict[T, int] = {}
        self.values: list[T] = []

    def __call__(self, value: T) -> int:
        found = self.ids.get(value)
        if found is None:
            found = self.ids[value] = len(self.values)
            self.values.append(value)
        return found


State = tuple[int, ...]
"""(environment, spot of the master, spots of the other processes by incarnation)."""
Label = tuple[str, int, int]
"""(what, process, event)."""


class World:
    """The transition system of one job within `Bounds`."""

    def __init__(self, bounds: Bounds, machines: Machines | None = None) -> None:
        self.bounds, self.machines = bounds, machines or Machines()
        #: Off while it is tried whether the end can be reached.
        self.reducing = bounds.reduce
        master_state.NUM_BUCKETS = 2  # who owns which bucket does not matter here
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
        self._instant = () if bounds.late else (Held, Ordered, At, Pulled)
        self._read = lru_cache(50_000)(self.cell)
        self.resend = self.events("resend")
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

    # ------------------------------------------------------------------ start

    def initial(self) -> State:
        """All processes are up, epoch 1 has begun, no sample was granted."""
        bounds = self.bounds
        slots = tuple(range(1, bounds.servers + 1))
        incs = tuple(range(bounds.servers + 1, bounds.servers + bounds.workers + 1))
        master = MasterCell(self._master(), self._master() if self._master_may_die() else None)
        cut = CutRef(cut_no=0, directory=self.machines.cut_directory(0, 0))
        servers = _servers(slots)
        records = [
            SchemaFixed(model=SCHEMA),
            FeedAdded(feed=self.feed),
            CutValid(cut=cut, step=0, committed=(), epoch_no=0),
        ]
        for state in (master.state, master.journalled):
            for record in records if state else ():
                state.apply(record)
        env = Env(
            failures=bounds.failures,
            cuts=bounds.cuts,
            next_inc=incs[-1] + 1,
            slots=slots,
            unheard=frozenset(incs),
            files=tuple(File(directory=cut.directory, inc=i, step=0, content=0) for i in slots),
        )
        cells: list[Cell] = [master]
        cells += [ServerCell(self.machines.server(inc)) for inc in slots]
        cells += [self._worker(inc) for inc in incs]
        spots = [self._new_spot(self.cell_id(cell), frozenset()) for cell in cells]
        state = (self.envs(env), *spots)
        for inc in incs:
            state = self._up(state, inc)
        state = self.apply(state, MASTER, self.events(("start_epoch", servers)))
        return self._settle(state)

    def _settle(self, state: State) -> State:
        """Deliver what leads to the first grants, and nothing else."""
        wanted = (Prepared, Restore, Restored, NewEpoch)
        while True:
            for pid, event in self.deliveries(state):
                if isinstance(self.events.values[event], wanted):
                    after = self.apply(state, pid, event)
                    if after != state:
                        state = after
                        break
            else:
                return state

    def _master(self) -> MasterState:
        return self.machines.master(mode=self.bounds.mode, samples="exactly-once")

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

    def _master_may_die(self) -> bool:
        return self.bounds.failures > 0 and "master" in self.bounds.kinds

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

    def handled(self, cell_id: int, event_id: int, argument: object = None) -> "Handled":
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

    def _take(self, state: State, at: int, step: "Step") -> State:
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

    def step(self, spot: int, event: int) -> "Step":
        """What one process does on an event."""
        key = (spot, event, self.reducing)
        found = self._steps.get(key)
        if found is None:
            cell_id, inbox = self.spots.values[spot]
            handled = self.handled(cell_id, event)
            if handled.cell_id != cell_id:
                spot = self._spot(handled.cell_id, inbox)
            found = self._steps[key] = Step(spot, _by_receiver(handled.outputs))
        return found

    def _receive(self, spot: int, messages: tuple[int, ...]) -> "Step":
        """Messages arrive in an inbox; instant ones are handled, and lead to more."""
        key = (spot, messages, self.reducing)
        found = self._received.get(key)
        if found is None:
            sends: list[tuple[int, int]] = []
            for message_id in messages:
                spot, more = self._receive_one(spot, message_id)
                sends += more
            found = self._received[key] = Step(spot, _by_receiver(tuple(sends)))
        return found

    def _receive_one(self, spot: int, message_id: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        cell_id, inbox = self.spots.values[spot]
        message = self.events.values[message_id]
        if type(message) in self._instant or (
            self.reducing and self._is_harmless(cell_id, message)
        ):
            handled = self.handled(cell_id, message_id)
            if handled.cell_id == cell_id:
                return spot, ()
            return self._spot(handled.cell_id, inbox), handled.outputs
        if self.reducing and self.is_dead(cell_id, message_id):
            if isinstance(message, Restore):
                message_id = self.events((message, None))
            if isinstance(message, Restore | TakeCut | Fence):  # changes nothing, is answered again
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
        if facts.kind != "master" or facts.epoch_no != _epoch(message) or facts.restoring:
            return False
        if isinstance(message, Committed):
            return mask(message.committed) != self.everything
        if isinstance(message, Copied) and facts.cutting:
            return len(facts.copied | {message.inc}) < len(facts.map)
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

    def _send(self, spots: list[int], sends: "Sends") -> None:
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
        else:
            self._exit(spots, message.inc)  # type: ignore[attr-defined]

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
        files = [f for f in self.envs.values[env_id].files if f.directory == message.cut.directory]
        if len({(f.step, f.content) for f in files}) != 1:
            raise Violation("E", f"the files of cut {message.cut.directory} are not of one state")
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
            found = _ignores(self._read(cell_id), message)
            if found and not isinstance(message, Restore | LeaseRequest | TakeCut):
                found = self.handled(cell_id, message_id).cell_id == cell_id
            self._dead[key] = found
        return found

    def _without_older_reports(self, inbox: frozenset[int]) -> frozenset[int]:
        """What the leader said is in the model only grows: the newest word says it all."""
        reports = [m for m in inbox if isinstance(self.events.values[m], Committed)]
        if len(reports) < 2:
            return inbox
        size = lambda m: (  # noqa: E731
            self.events.values[m].epoch_no,
            self.events.values[m].step,
            mask(self.events.values[m].committed).bit_count(),
        )
        return inbox - (set(reports) - {max(reports, key=size)})

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

    def _may_be_loaded(self, file: File, master: "Facts") -> bool:
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
            fresh: Cell = (
                ServerCell(self.machines.server(inc))
                if facts.kind == "server"
                else self._worker(inc)
            )
            kept = frozenset(m for m in inbox if _epoch(self.events.values[m]) >= epoch_no)
            spots[at] = self._spot(self.cell_id(fresh), kept)
        master_cell, inbox = self.spots.values[spots[1]]
        spots[1] = self._spot(master_cell, inbox)

    # ------------------------------------------------------------------ successors

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        """All that may happen next, as (label, state)."""
        if self.is_done(state):
            return
        forced = self._forced_epoch(state)
        if forced is not None:
            yield forced
            return
        for at in range(1, len(state)):
            for label, event, step in self._moves(state[at]):
                if step is None:
                    after = self.apply(state, self.pid_at[state[at]], event)
                else:
                    after = self._take(state, at, step)
                if after != state:
                    yield label, after
                if at == 1:
                    yield from self._crashes(state, MASTER, event)
            if at > 1 and self.facts[self.cell_of[state[at]]].may_pull:
                pulled = self._pull(state, at)
                if pulled is not None:
                    yield ("act", self.pid_at[state[at]], self.pull), pulled
        yield from self._environment(state)
        if self.envs.values[state[0]].failures:
            yield from self._failures(state)

    def _moves(self, spot: int) -> "tuple[tuple[Label, int, Step | None], ...]":
        """What a process can do by itself or on a message, with its label."""
        found = self._known_moves.get(spot)
        if found is None:
            pid, moves = self.pid_at[spot], []
            for event in self._arrivals(spot):
                if isinstance(self.events.values[event], Restore):
                    moves.append((("deliver", pid, event), event, None))
                    continue
                step = self.step(spot, event)
                if step.spot != spot or step.sends:
                    moves.append((("deliver", pid, event), event, step))
            if self.facts[self.cell_of[spot]].may_work:
                step = self.step(spot, self.work)
                moves.append((("act", pid, self.work), self.work, step))
            found = self._known_moves[spot] = tuple(moves)
        return found

    def deliveries(self, state: State) -> Iterator[tuple[int, int]]:
        """Messages that may arrive, with the size of the grant where it is a request."""
        for at in range(1, len(state)):
            spot = state[at]
            found = self._deliveries.get(spot)
            if found is None:
                found = self._deliveries[spot] = tuple(self._arrivals(spot))
            pid = self.pid_at[spot]
            for event in found:
                yield pid, event

    def _arrivals(self, spot: int) -> Iterator[int]:
        for message_id in sorted(self.spots.values[spot][1]):
            message = self.events.values[message_id]
            if isinstance(message, LeaseRequest):
                for size in self.bounds.leases if self.bounds.mode != "bsp" else (0,):
                    yield self.events((message, size))
            else:
                yield message_id

    def _crashes(self, state: State, pid: int, event: int) -> Iterator[tuple[Label, State]]:
        """The master dies between two records of one event."""
        env = self.envs.values[state[0]]
        if pid != MASTER or not env.failures or "master" not in self.bounds.kinds:
            return
        for cell_id, outputs in self.handled(self.cell_at(state, 1), event).crashes:
            yield ("master dies in", pid, event), self._restarted(state, cell_id, outputs)

    def _pull(self, state: State, at: int) -> State | None:
        """A pull from all servers as one step; None: not all would answer now."""
        spots = list(state)
        pid = self.pid_at[state[at]]
        handled = self.handled(self.cell_at(spots, at), self.pull)
        pulls = [(to, e) for to, e in handled.outputs if isinstance(self.events.values[e], Pull)]
        cell_id = handled.cell_id
        _, inbox = self.spots.values[spots[at]]
        outputs = [o for o in handled.outputs if o not in pulls]
        for to, event in pulls:
            where = self.find(spots, to)
            if where < 0:
                return None
            answer = [
                e
                for _, e in self.handled(self.cell_at(spots, where), event).outputs
                if isinstance(self.events.values[e], Pulled)
            ]
            if not answer:
                return self._refused(state, pid, where, event)
            done = self.handled(cell_id, answer[0])
            cell_id = done.cell_id
            outputs += [o for o in done.outputs if not isinstance(self.events.values[o[1]], Pull)]
        if not self.facts[cell_id].pulled or self.facts[cell_id].pulling:
            return None
        return self._take(state, at, Step(self._spot(cell_id, inbox), _by_receiver(tuple(outputs))))

    def _refused(self, state: State, pid: int, where: int, pull: int) -> State | None:
        """A server did not answer a pull; only the word that the worker is fenced matters."""
        for _, event in self.handled(self.cell_at(state, where), pull).outputs:
            message = self.events.values[event]
            if isinstance(message, Refused) and message.fenced:
                after = self.apply(state, pid, event)
                return None if after == state else after
        return None

    # ------------------------------------------------------------------ environment

    def _environment(self, state: State) -> Iterator[tuple[Label, State]]:
        env = self.envs.values[state[0]]
        master = self.facts[self.cell_at(state, 1)]
        for inc in sorted(env.unheard):
            yield ("is up", inc, 0), self._up(state, inc)
        for inc in sorted(env.dead):
            yield ("is seen dead", inc, 0), self._lost(state, inc)
        if env.slots != master.map:
            yield ("new epoch", 0, 0), self._new_epoch(state)
        if self._may_restart(state):
            yield ("is started", env.next_inc, 0), self._start_worker(state)
        if env.cuts and not master.cutting and not master.restoring:
            cuts = self.envs(msgspec.structs.replace(env, cuts=env.cuts - 1))
            after = self.apply((cuts, *state[1:]), MASTER, self.events(("take_cut",)))
            yield ("asks for a cut", 0, 0), after

    def _up(self, state: State, inc: int) -> State:
        env = self.envs.values[state[0]]
        env_id = self.envs(msgspec.structs.replace(env, unheard=env.unheard - {inc}))
        state = self.apply((env_id, *state[1:]), MASTER, self.events(("worker_up", inc)))
        return self.apply(state, inc, self.resend)

    def _lost(self, state: State, inc: int) -> State:
        return self.apply(state, MASTER, self.events(("worker_lost", inc)))

    def _new_epoch(self, state: State) -> State:
        servers = _servers(self.envs.values[state[0]].slots)
        return self.apply(state, MASTER, self.events(("start_epoch", servers)))

    def _forced_epoch(self, state: State) -> tuple[Label, State] | None:
        """A server is lost and no cut can become valid: all that counts is the restore."""
        master = self.facts[self.cell_at(state, 1)]
        env = self.envs.values[state[0]]
        if not self.bounds.reduce:
            return None
        if env.slots == master.map or master.cutting:
            return self._forced_pull(state) if self.bounds.mode != "bsp" else None
        return ("new epoch", 0, 0), self._new_epoch(state)

    def _forced_pull(self, state: State) -> tuple[Label, State] | None:
        """Asynchronous: when the first pull happens makes no difference to anyone."""
        for at in range(2, len(state)):
            if self.facts[self.cell_at(state, at)].may_pull:
                after = self._pull(state, at)
                if after is not None:
                    return ("act", self.pid_at[state[at]], self.pull), after
        return None

    def _may_restart(self, state: State) -> bool:
        env = self.envs.values[state[0]]
        alive = sum(
            self.facts[self.cell_at(state, at)].kind == "worker"
            and self.pid_of[self.cell_at(state, at)] not in env.suspected
            for at in range(2, len(state))
        )
        return alive < (1 if self.bounds.restarts == "alone" else self.bounds.workers)

    def _start_worker(self, state: State) -> State:
        env = self.envs.values[state[0]]
        inc = env.next_inc
        env = msgspec.structs.replace(env, next_inc=inc + 1, unheard=env.unheard | {inc})
        spot = self._new_spot(self.cell_id(self._worker(inc)), frozenset())
        return (self.envs(env), *state[1:], spot)

    # ------------------------------------------------------------------ failures

    def _failures(self, state: State) -> Iterator[tuple[Label, State]]:
        env, kinds = self.envs.values[state[0]], self.bounds.kinds
        less = msgspec.structs.replace(env, failures=env.failures - 1)
        master = self.facts[self.cell_at(state, 1)]
        start = (self.envs(less), *state[1:])
        for at in range(2, len(state)):
            facts = self.facts[self.cell_at(state, at)]
            inc = facts.inc
            if facts.kind == "worker":
                if "worker" in kinds:
                    spots = list(start)
                    self._exit(spots, inc)
                    yield ("dies", inc, 0), self._clean(spots)
                if "suspect-worker" in kinds and (inc in master.workers or inc in env.unheard):
                    yield ("is taken for dead", inc, 0), self._suspect(start, inc)
            elif inc in env.slots:
                if "server" in kinds:
                    yield ("dies", inc, 0), self._replace(start, at, dies=True)
                if "suspect-server" in kinds and facts.epoch_no:
                    yield ("is taken for dead", inc, 0), self._replace(start, at, dies=False)
        if "master" in kinds:
            cell = self.cell(self.cell_at(state, 1))
            assert isinstance(cell, MasterCell) and cell.journalled is not None
            fresh = MasterCell(cell.journalled, pickle.loads(pickle.dumps(cell.journalled)))
            outputs = self._outputs(fresh.handle(("resume",)))
            yield ("dies", 0, 0), self._restarted(state, self.cell_id(fresh), outputs)

    def _suspect(self, state: State, inc: int) -> State:
        env = self.envs.values[state[0]]
        env = msgspec.structs.replace(
            env, suspected=env.suspected | {inc}, unheard=env.unheard - {inc}
        )
        return self._lost((self.envs(env), *state[1:]), inc)

    def _replace(self, state: State, at: int, *, dies: bool) -> State:
        """A fresh process in the place of a server that died or is taken for dead."""
        env = self.envs.values[state[0]]
        old, new = self.pid_of[self.cell_at(state, at)], env.next_inc
        slots = tuple(new if inc == old else inc for inc in env.slots)
        env = msgspec.structs.replace(env, next_inc=new + 1, slots=slots)
        spots = [self.envs(env), *state[1:]]
        if dies:
            del spots[at]
        fresh = self.cell_id(ServerCell(self.machines.server(new)))
        spots.append(self._new_spot(fresh, frozenset()))
        return self._clean(spots)

    def _restarted(self, state: State, cell_id: int, outputs: tuple[tuple[int, int], ...]) -> State:
        """The master died and reads its journal; all senders repeat."""
        env = self.envs.values[state[0]]
        master = self.facts[self.cell_at(state, 1)]
        workers = [
            self.pid_of[self.cell_at(state, at)]
            for at in range(2, len(state))
            if self.facts[self.cell_at(state, at)].kind == "worker"
        ]
        env = msgspec.structs.replace(
            env,
            failures=env.failures - 1,
            cuts=env.cuts + bool(master.cutting),
            unheard=frozenset(workers),
            suspected=frozenset(),
        )
        spots = [self.envs(env), *state[1:]]
        spots[1] = self._spot(cell_id, self.spots.values[spots[1]][1])
        self._send(spots, _by_receiver(outputs))
        after = self._clean(spots)
        for at in range(2, len(after)):
            after = self.apply(after, self.pid_of[self.cell_at(after, at)], self.resend)
        return after

    # ------------------------------------------------------------------ invariants

    def check(self, state: State) -> None:
        """Raise `Violation` where processes contradict each other."""
        key = (state[0], *(self.cell_at(state, at) for at in range(1, len(state))))
        facts = [self.facts[cell_id] for cell_id in key[1:]]
        master, others = facts[0], facts[1:]
        servers = [f for f in others if f.kind == "server" and f.epoch_no]
        for i, one in enumerate(servers):
            for two in servers[i + 1 :]:
                if one.epoch_no == two.epoch_no:
                    _compare(one, two)
        leader = next(
            (s for s in servers if s.inc == master.map[0] and s.epoch_no == master.epoch_no), None
        )
        if leader is not None:
            self._check_samples(master, leader, [f for f in others if f.kind == "worker"])

    def _check_samples(self, master: "Facts", leader: "Facts", workers: "list[Facts]") -> None:
        if master.done & ~leader.content:
            raise Violation("D", f"DONE {master.done:b} is ahead of the model {leader.content:b}")
        if master.complete and leader.content != self.everything:
            raise Violation("D", "the feed is complete and the model is not")
        taken = master.to_do & ~leader.content
        for worker in workers:
            if worker.epoch_no != master.epoch_no or worker.inc in leader.fenced:
                continue
            holds = worker.holds & ~leader.content
            if holds & taken:
                raise Violation("C", f"{holds & taken:b} is at worker {worker.inc} and elsewhere")
            taken |= holds

    def is_done(self, state: State) -> bool:
        """Whether a valid cut holds every sample: the workers may leave their loops."""
        return self.facts[self.cell_at(state, 1)].safe

    # ------------------------------------------------------------------ the end can be reached

    def rounds(self, state: State) -> State:
        """Everyone repeats, works and hears everything once; nothing fails."""
        for pid in self._pids(state):
            state = self.apply(state, pid, self.resend)
        env = self.envs.values[state[0]]
        for inc in sorted(env.unheard):
            state = self._up(state, inc)
        for inc in sorted(self.envs.values[state[0]].dead):
            state = self._lost(state, inc)
        if self.envs.values[state[0]].slots != self.facts[self.cell_at(state, 1)].map:
            state = self._new_epoch(state)
        if self._may_restart(state):
            state = self._start_worker(state)
        return self._calm(state)

    def _calm(self, state: State) -> State:
        """Deliver and work until nothing new happens."""
        heard: set[tuple[int, int]] = set()
        for _ in range(5000):
            new = next((d for d in self.deliveries(state) if d not in heard), None)
            if new is not None:
                heard.add(new)
                state = self.apply(state, *new)
                continue
            after = self._act(state)
            if after == state:
                return state
            state = after
        return state

    def _act(self, state: State) -> State:
        for pid in self._pids(state):
            at = self.find(state, pid)
            if at < 0:
                continue
            facts = self.facts[self.cell_at(state, at)]
            if facts.may_work:
                state = self.apply(state, pid, self.work)
            elif facts.may_pull:
                state = self._pull(state, at) or state
        return state

    def _pids(self, state: State) -> list[int]:
        return [self.pid_of[self.cell_at(state, at)] for at in range(1, len(state))]

    def without_messages(self, state: State) -> State:
        """The same processes, everything under way lost; nothing more will fail or be copied."""
        env = msgspec.structs.replace(self.envs.values[state[0]], failures=0, cuts=0)
        spots = [self._new_spot(self.cell_of[spot], frozenset()) for spot in state[2:]]
        cell_id = self.cell_of[state[1]]
        calm = self._calm_master.get(cell_id)
        if calm is None:
            cell = self.cell(cell_id)
            assert isinstance(cell, MasterCell)
            cell.journalled, cell.sent = None, {}
            calm = self._calm_master[cell_id] = self._new_spot(self.cell_id(cell), frozenset())
        return (self.envs(env), calm, *spots)

    # ------------------------------------------------------------------ for people

    def tell(self, label: Label) -> str:
        """One line of a trace."""
        what, pid, event = label
        value = self.events.values[event]
        who = "master" if pid == MASTER else str(pid)
        match what:
            case "deliver" | "master dies in":
                message, *size = value if isinstance(value, tuple) else (value,)
                tail = f", grants {size[0]}" if size and size[0] else ""
                word = "hears" if what == "deliver" else "dies while it handles"
                return f"{who} {word} {message}{tail}"
            case "act":
                return f"{who}: {value}"
        return f"{who} {what}"


Sends = tuple[tuple[int, tuple[int, ...]], ...]
"""(receiver, messages)."""


class Step(NamedTuple):
    """A spot after an event, and what it sends."""

    spot: int
    sends: Sends


def _by_receiver(outputs: tuple[tuple[int, int], ...]) -> Sends:
    found: dict[int, list[int]] = {}
    for to, message in outputs:
        found.setdefault(to, []).append(message)
    return tuple((to, tuple(messages)) for to, messages in found.items())


class Handled(msgspec.Struct, frozen=True):
    """What a process does on one event."""

    cell_id: int
    outputs: tuple[tuple[int, int], ...]
    crashes: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What checks and choices need to know of a process, read once per process state."""

    kind: str
    inc: int
    epoch_no: int
    # a server
    position: int = 0
    step: int = 0
    content: int = 0
    fenced: frozenset[int] = frozenset()
    # a worker
    holds: int = 0
    may_work: bool = False
    may_pull: bool = False
    pulled: bool = False
    pulling: bool = False
    # the master
    done: int = 0
    to_do: int = 0
    complete: bool = False
    safe: bool = False
    map: tuple[int, ...] = ()
    workers: frozenset[int] = frozenset()
    owing: frozenset[int] = frozenset()
    cutting: bool = False
    copied: frozenset[int] = frozenset()
    restoring: bool = False
    journalled: bool = False
    loadable: frozenset[str] = frozenset()

    @staticmethod
    def of(cell: Cell) -> "Facts":
        """Read a process; raises `Violation` where it contradicts itself."""
        match cell:
            case ServerCell(state=state):
                return Facts(
                    kind="server",
                    inc=state.inc,
                    epoch_no=state.epoch_no,
                    position=state.position,
                    step=state.step,
                    content=cell.content,
                    fenced=frozenset(state.fenced),
                )
            case WorkerCell(state=state):
                leased = [s for spans in state.lease.values() for s in spans]
                offered = [s for o in state.offers.values() for s in o.part.spans]
                return Facts(
                    kind="worker",
                    inc=state.inc,
                    epoch_no=state.epoch_no,
                    holds=mask([*leased, *offered]),
                    may_work=cell.may_work(),
                    may_pull=cell.may_pull(),
                    pulled=cell.pulled,
                    pulling=state.pulling is not None,
                )
        return _master_facts(cell)


def _ignores(cell: Cell, message: object) -> bool:
    """Whether a message can do nothing in this process, now or later."""
    match cell:
        case ServerCell(state=state):
            return _server_ignores(state, message)
        case WorkerCell(state=state):
            return _worker_ignores(state, message)
    return _master_ignores(cell, message)


def _master_facts(cell: MasterCell) -> Facts:
    state = cell.state
    ledger = state.ledger
    line = ledger.lines.get(0)
    done, to_do = mask(ledger.done), 0
    parts = [done] + [mask(lease) for lease in ledger.leases.values()]
    if line is not None:
        to_do = mask(Span(0, a, b) for a, b in line.returned)
        parts += [to_do]
        fresh = mask([Span(0, line.cursor, line.end)])
        to_do |= fresh
        parts += [fresh]
        if sum(p.bit_count() for p in parts) != line.end or sum(parts) != (1 << line.end) - 1:
            raise Violation("C", f"a sample has two places in the ledger, or none: {parts}")
    if cell.journalled is not None:
        _compare_durable(state, cell.journalled)
    return Facts(
        kind="master",
        inc=0,
        epoch_no=state.epoch_no,
        done=done,
        to_do=to_do,
        complete=FEED in ledger.feeds and ledger.is_complete(FEED),
        safe=FEED in state.safe,
        map=tuple(s.inc for s in state.map.servers) if state.map else (),
        workers=frozenset(state.workers),
        owing=frozenset(state.ledger.leases),
        cutting=state.cutting is not None,
        copied=frozenset(state.copied),
        restoring=bool(state.restoring),
        journalled=cell.journalled is not None,
        loadable=frozenset(c.cut.directory for c in (*state.cuts[-1:], state.start) if c),
    )


def _compare_durable(state: MasterState, journalled: MasterState) -> None:
    for name in ("epoch_no", "map", "start", "cuts", "last_cut_no", "safe", "grants", "gone"):
        if getattr(state, name) != getattr(journalled, name):
            raise Violation("journal", f"{name} is not what the journal says")


def _compare(one: Facts, two: Facts) -> None:
    """Two servers of one epoch."""
    if one.position > two.position:
        one, two = two, one
    if one.content & ~two.content:
        raise Violation("A", f"server {one.inc} has {one.content:b}, {two.inc} has not")
    if one.position == two.position and (one.content, one.step) != (two.content, two.step):
        raise Violation("A", f"servers {one.inc} and {two.inc} differ at position {one.position}")


def _servers(slots: tuple[int, ...]) -> tuple[Server, ...]:
    return tuple(Server(inc, f"server-{k}", "") for k, inc in enumerate(slots))


def _epoch(message: object) -> int:
    return getattr(message, "epoch_no", 1 << 30)


# ---------------------------------------------------------------------- what is ignored for good


def _server_ignores(state: ServerState, message: object) -> bool:
    """The reasoning behind the reduction; `World.is_dead` also tries that nothing happens."""
    epoch_no = _epoch(message)
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    match message:
        case Part(inc=inc, seq=seq, step=step):
            known = (inc, seq) in state.parts or seq <= state.last_seq.get(inc, 0)
            return known or inc in state.fenced or 0 < step <= state.step
        case Ready(inc=inc, seq=seq, step=step):
            if inc in state.fenced:
                return True
            if not step:
                return seq <= state.last_seq.get(inc, 0)
            known = step == state.step + 1 and state.ready_for_step.get(inc, 0) >= seq
            return known or step <= state.step
        case Order(start=start, entries=entries, fenced=fenced):
            told = all(inc in state.fenced for inc, _ in fenced)
            return start + len(entries) - 1 <= state.position and told
        case At(server=server, position=position):
            return state.applied_at.get(server, 0) >= position
        case Fence(fenced=inc):
            return inc in state.fenced
        case TakeCut(cut_no=cut_no):
            return cut_no <= state.last_cut
        case Restore():
            return True
    return False


def _worker_ignores(state: WorkerState, message: object) -> bool:
    epoch_no = _epoch(message)
    if isinstance(message, Stop):
        return False
    if isinstance(message, NewEpoch):
        return epoch_no <= state.epoch_no
    if isinstance(message, Refused) and not message.fenced:
        return True
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    match message:
        case Grant(n=n):
            return n <= state.last_n
        case Held(server=server, seq=seq):
            return seq not in state.offers or server not in state.offers[seq].not_held_by
        case Ordered(seq=seq):
            return all(known > seq for known in state.offers)
    return False


def _master_ignores(cell: MasterCell, message: object) -> bool:
    state = cell.state
    epoch_no = _epoch(message)
    match message:
        case Prepared(inc=inc):
            return inc in state.prepared
        case LeaseRequest(inc=inc, n=n):
            if epoch_no < state.epoch_no:
                return inc in state.prepared
            last = state.grants.get(inc)
            known = last is not None and (n < last.n or (n == last.n == cell.sent.get(inc)))
            return (known or n == 0) and inc in state.workers and inc not in state.untold
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    match message:
        case Restored(inc=inc):
            return inc not in state.restoring
        case FenceAnswer(fenced=inc):
            return inc in state.gone
        case Committed(step=step, committed=committed):
            if state.restoring:
                return False
            return step <= state.step and not mask(committed) & ~mask(state.ledger.done)
        case Copied(cut_no=cut_no):
            return cut_no <= state.last_cut_no
    return False


__all__ = ["FAILURES", "FILES", "Bounds", "Env", "Machines", "Message", "ServerMap", "World"]
