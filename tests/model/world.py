"""All interleavings of a small job: what may happen next, what may fail, what must hold."""

import pickle
from collections.abc import Iterator
from itertools import combinations

import msgspec

from paceline.base.errors import PacelineError
from paceline.protocol.records import CutValid, FeedAdded, Records, SchemaFixed
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import CutRef, Server
from paceline.wire.messages.data import MapIs, Pull, Pulled, Refused
from paceline.wire.messages.node import LeaseRequest, NewEpoch, Prepared, Restore, Restored

from .bounds import Bounds, Env
from .cells import (
    MASTER,
    SCHEMA,
    Cell,
    File,
    MasterCell,
    Violation,
)
from .facts import Facts, compare
from .network import Label, Network, State, Step, by_receiver

BROKEN = (PacelineError, KeyError, IndexError, AssertionError, AttributeError, ValueError)


class World(Network):
    """The transition system of one job."""

    # ------------------------------------------------------------------ start

    def initial(self) -> State:
        """All processes are up, epoch 1 has begun, no sample was granted."""
        bounds = self.bounds
        slots = tuple(range(1, bounds.servers + 1))
        incs = tuple(range(bounds.servers + 1, bounds.servers + bounds.workers + 1))
        master = MasterCell(self._master(), self._master() if self._master_may_die() else None)
        cut = CutRef(cut_no=0)
        directory = self.machines.cut_directory(0, 0)
        servers = _servers(slots)
        records: list[Records] = [
            SchemaFixed(model=SCHEMA),
            FeedAdded(feed=self.feed),
            CutValid(cut=cut, step=0, committed=(), epoch_no=0),
        ]
        for record in records:
            master.state.apply(record)
            if master.journalled is not None:
                master.journalled.apply(record)
        env = Env(
            failures=bounds.failures,
            cuts=bounds.cuts,
            moves=bounds.moves,
            plans=bounds.plans,
            next_inc=incs[-1] + 1,
            slots=slots,
            unheard=frozenset(incs),
            files=tuple(File(directory=directory, inc=i, step=0, content=0) for i in slots),
        )
        cells: list[Cell] = [master]
        cells += [self._server(inc) for inc in slots]
        cells += [self._worker(inc) for inc in incs]
        spots = [self._new_spot(self.cell_id(cell), frozenset()) for cell in cells]
        state = (self.envs(env), *spots)
        for inc in incs:
            state = self._up(state, inc)
        state = self.apply(state, MASTER, self.events(("start_epoch", servers)))
        if bounds.left_out or bounds.in_grace:
            event = self.events(("short", bounds.left_out, bounds.in_grace))
            state = self.apply(state, MASTER, event)
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
        mode = self.bounds.mode
        return self.machines.master(self.machines.holder(), mode=mode, samples="exactly-once")

    def _master_may_die(self) -> bool:
        return self.bounds.failures > 0 and "master" in self.bounds.kinds

    # ------------------------------------------------------------------ successors

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        """All that may happen next, as (label, state)."""
        if self.is_done(state):
            return
        if self.bounds.moves_first and self.envs.values[state[0]].moves == self.bounds.moves:
            yield from self._changes(state)
            return
        forced = self._forced_epoch(state)
        if forced is not None:
            yield forced
            return
        rests = self.bounds.rests_in_moves and self._is_changing(state)
        for at in range(1, len(state)):
            for label, event, step in self._moves(state[at]):
                if rests and at == 1 and isinstance(self.events.values[event], tuple):
                    continue  # the size of a grant is chosen with the request for it
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
        if self._may_fail(state):
            yield from self._failures(state)

    def _moves(self, spot: int) -> tuple[tuple[Label, int, Step | None], ...]:
        """What a process can do by itself or on a message, with its label."""
        found = self._known_moves.get(spot)
        if found is None:
            pid = self.pid_at[spot]
            moves: list[tuple[Label, int, Step | None]] = []
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
            if self.facts[self.cell_of[spot]].in_grace:
                step = self.step(spot, self.grace_over)
                moves.append((("act", pid, self.grace_over), self.grace_over, step))
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
                for size in self.bounds.leases if self.bounds.mode != "bsp" else (1,):
                    yield self.events((message, size))
            else:
                yield message_id

    def _crashes(self, state: State, pid: int, event: int) -> Iterator[tuple[Label, State]]:
        """The master dies between two records of one event."""
        if pid != MASTER or not self._may_fail(state) or "master" not in self.bounds.kinds:
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
        return self._take(state, at, Step(self._spot(cell_id, inbox), by_receiver(tuple(outputs))))

    def _refused(self, state: State, pid: int, where: int, pull: int) -> State | None:
        """A server did not answer a pull: the worker may be fenced, or the map a newer one."""
        for to, event in self.handled(self.cell_at(state, where), pull).outputs:
            message = self.events.values[event]
            if to == pid and (isinstance(message, MapIs) or _is_fence(message)):
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
        if tuple(sorted(env.slots)) != master.map:
            yield ("new epoch", 0, 0), self._new_epoch(state)
        if self._may_restart(state):
            yield ("is started", env.next_inc, 0), self._start_worker(state)
        for inc in sorted(env.joiners_unseen):
            yield ("is seen dead", inc, 0), self._joiner_lost(state, inc)
        yield from self._changes(state)
        if env.cuts and not (master.cutting or master.storing or master.restoring):
            cuts = self.envs(msgspec.structs.replace(env, cuts=env.cuts - 1))
            after = self.apply((cuts, *state[1:]), MASTER, self.events(("take_cut",)))
            yield ("asks for a cut", 0, 0), after
        if env.plans and not master.restoring:
            for lead in self.bounds.leads:
                yield (f"asks for a plan {lead} ahead", 0, 0), self._new_plan(state, lead)

    def _changes(self, state: State) -> Iterator[tuple[Label, State]]:
        """Servers join, or leave, or both."""
        env = self.envs.values[state[0]]
        master = self.facts[self.cell_at(state, 1)]
        moving = env.joiners or env.leavers or master.moving or master.restoring
        if env.moves and not moving and tuple(sorted(env.slots)) == master.map:
            for leaving in combinations(env.slots, self.bounds.leaves):
                told = ("servers change, without", leaving[0] if leaving else 0, 0)
                yield told, self._move(state, leaving)

    def _new_plan(self, state: State, lead: int) -> State:
        """From some step on all of it is one worker's."""
        env = self.envs.values[state[0]]
        env = msgspec.structs.replace(env, plans=env.plans - 1)
        event = self.events(("plan", _node(self.bounds, env.plans), lead))
        return self.apply((self.envs(env), *state[1:]), MASTER, event)

    def _move(self, state: State, leaving: tuple[int, ...]) -> State:
        """Fresh servers are to take what others have, some of which leave."""
        env = self.envs.values[state[0]]
        joining = tuple(range(env.next_inc, env.next_inc + self.bounds.joins))
        env = msgspec.structs.replace(
            env,
            moves=env.moves - 1,
            next_inc=env.next_inc + len(joining),
            joiners=joining,
            leavers=leaving,
        )
        fresh = [self._new_spot(self.cell_id(self._server(inc)), frozenset()) for inc in joining]
        servers = tuple(Server(inc, f"server-{inc}", "") for inc in joining)
        change = self.events(("change_servers", servers, leaving))
        return self.apply((self.envs(env), *state[1:], *fresh), MASTER, change)

    def _joiner_lost(self, state: State, inc: int) -> State:
        env = self.envs.values[state[0]]
        unseen = env.joiners_unseen - {inc}
        env_id = self.envs(msgspec.structs.replace(env, joiners_unseen=unseen))
        return self.apply((env_id, *state[1:]), MASTER, self.events(("joiner_lost", inc)))

    def _up(self, state: State, inc: int) -> State:
        env = self.envs.values[state[0]]
        env_id = self.envs(msgspec.structs.replace(env, unheard=env.unheard - {inc}))
        event = self.events(("worker_up", inc, _node(self.bounds, inc)))
        state = self.apply((env_id, *state[1:]), MASTER, event)
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
        same = tuple(sorted(env.slots)) == master.map
        if same or master.cutting or master.storing or master.moving:
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

    def _may_fail(self, state: State) -> bool:
        is_time = not self.bounds.fails_in_moves or self._is_changing(state)
        return is_time and self.envs.values[state[0]].failures > 0

    def _is_changing(self, state: State) -> bool:
        """Whether servers join or leave."""
        env = self.envs.values[state[0]]
        return bool(env.joiners or env.leavers)

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
            elif inc in env.joiners and inc not in env.joiners_dead:
                if "server" in kinds:
                    yield ("dies", inc, 0), self._joiner_dies(start, inc, at)
                if "suspect-server" in kinds:
                    yield ("is taken for dead", inc, 0), self._joiner_dies(start, inc)
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

    def _joiner_dies(self, state: State, inc: int, at: int = 0) -> State:
        """``at`` 0: it is only taken for dead."""
        env = self.envs.values[state[0]]
        dead, unseen = env.joiners_dead | {inc}, env.joiners_unseen | {inc}
        env = msgspec.structs.replace(env, joiners_dead=dead, joiners_unseen=unseen)
        spots = [self.envs(env), *state[1:]]
        if at:
            del spots[at]
        return self._clean(spots)

    def _replace(self, state: State, at: int, *, dies: bool) -> State:
        """A fresh process in the place of a server that died or is taken for dead."""
        env = self.envs.values[state[0]]
        old, new = self.pid_of[self.cell_at(state, at)], env.next_inc
        slots = tuple(new if inc == old else inc for inc in env.slots)
        env = msgspec.structs.replace(env, next_inc=new + 1, slots=slots)
        spots = [self.envs(env), *state[1:]]
        if dies:
            del spots[at]
        fresh = self.cell_id(self._server(new))
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
            joiners_unseen=env.joiners_dead,
        )
        spots = [self.envs(env), *state[1:]]
        spots[1] = self._spot(cell_id, self.spots.values[spots[1]][1])
        self._send(spots, by_receiver(outputs))
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
        servers = [f for f in others if f.kind == "server" and f.placed]
        for i, one in enumerate(servers):
            for two in servers[i + 1 :]:
                if one.epoch_no == two.epoch_no:
                    compare(one, two)
        present = [s for s in servers if s.epoch_no == master.epoch_no]
        env = self.envs.values[state[0]]
        all_alive = set(env.slots) <= {s.inc for s in present} and not env.joiners_dead
        if all_alive and tuple(sorted(env.slots)) == master.map:
            # Whoever is furthest has what was decided; it leads, or led before it handed over.
            leader = max(present, key=lambda s: (s.position, len(s.fenced)))
            self._check_samples(master, leader, [f for f in others if f.kind == "worker"])

    def _check_samples(self, master: Facts, leader: Facts, workers: list[Facts]) -> None:
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
        for inc in sorted(self.envs.values[state[0]].joiners_unseen):
            state = self._joiner_lost(state, inc)
        if (
            tuple(sorted(self.envs.values[state[0]].slots))
            != self.facts[self.cell_at(state, 1)].map
        ):
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
        env = msgspec.structs.replace(env, moves=0, plans=0)
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


def _is_fence(message: object) -> bool:
    return isinstance(message, Refused) and message.fenced


def _node(bounds: Bounds, number: int) -> str:
    """A worker's node, by its incarnation."""
    return f"worker-{number % bounds.workers}"


def _servers(slots: tuple[int, ...]) -> tuple[Server, ...]:
    return tuple(Server(inc, f"server-{k}", "") for k, inc in enumerate(slots))
