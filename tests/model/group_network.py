"""Processes of an all-reduce job with inboxes: what one event does to a state.

A state is the tuple of the environment and one *spot* per live process, a process with its inbox:
the set of messages ever sent to it that may still matter. Delivery takes nothing out, so every
message may come late, twice, in any order or never; whatever is unanswered is repeated at once,
because a message more in a set takes no behaviour away. Results are remembered per (process,
event), as in ``network.py``.
"""

import pickle
from collections.abc import Iterable

import msgspec

from paceline.protocol.training import MasterState
from paceline.wire.messages.group import (
    NO_STEP,
    CatchUp,
    GroupLeft,
    GroupStopped,
    JoinGroup,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.node import GivenUp

from .bounds import Table
from .group_bounds import Bounds, Entry, Env, Machines
from .group_cells import MASTER, Cell, MasterCell, copy_of, make_feed, mask
from .group_facts import MasterFacts, MemberFacts, master_facts
from .network import Label, Sends, State, Step, by_receiver

Crashes = tuple[tuple[int, Sends], ...]


class GroupNetwork:
    """The processes of one job within `Bounds`, and the messages under way."""

    def __init__(self, bounds: Bounds, machines: Machines | None = None) -> None:
        self.bounds, self.machines = bounds, machines or Machines()
        #: Off while it is tried whether the end can be reached.
        self.reducing = bounds.reduce
        size = bounds.slices * bounds.slice
        self.feeds = tuple(
            make_feed(n, size, bounds.slice, per_worker=bounds.per_worker)
            for n in range(bounds.feeds)
        )
        self.everything = sum(
            mask([f.slice_no(n + 1) for n in range(f.num_slices)]) for f in self.feeds
        )
        self.envs: Table[Env] = Table()
        self.events: Table[object] = Table()
        self.labels: Table[Label] = Table()
        self.spots: Table[tuple[int, frozenset[int]]] = Table()
        self._cell_ids: dict[tuple[int, bytes], int] = {}
        self._pickled: list[bytes] = []
        self.members: dict[int, MemberFacts] = {}
        self.masters: dict[int, MasterFacts] = {}
        self._handled: dict[tuple[int, int], tuple[int, Sends, Crashes]] = {}
        self._steps: dict[tuple[int, int, bool], Step] = {}
        self._received: dict[tuple[int, tuple[int, ...], bool], int] = {}
        self.pids: list[int] = []
        self.resend = self.events("resend")

    # ------------------------------------------------------------------ processes

    def cell_id(self, cell: Cell) -> int:
        """The number of a process in this state."""
        pid = MASTER if isinstance(cell, MasterCell) else cell.state.inc
        key = (pid, cell.key())
        found = self._cell_ids.get(key)
        if found is None:
            found = self._cell_ids[key] = len(self._pickled)
            self._pickled.append(pickle.dumps(cell))
            self.pids.append(pid)
            if isinstance(cell, MasterCell):
                self.masters[found] = master_facts(cell)
            else:
                self.members[found] = MemberFacts.of(cell)
        return found

    def cell(self, cell_id: int) -> Cell:
        """A fresh copy of the process."""
        return pickle.loads(self._pickled[cell_id])  # type: ignore[no-any-return]

    def handled(self, cell_id: int, event: int) -> tuple[int, Sends, Crashes]:
        key = (cell_id, event)
        found = self._handled.get(key)
        if found is None:
            cell = self.cell(cell_id)
            outputs = cell.handle(self.events.values[event])
            crashes: list[tuple[int, Sends]] = []
            if isinstance(cell, MasterCell):
                for journalled, sent in cell.crashes:
                    crashes.append((self.restarted(journalled), self._sends(sent)))
                cell.crashes = []
            found = self.cell_id(cell), self._sends(outputs), tuple(crashes)
            self._handled[key] = found
        return found

    def restarted(self, journalled: MasterState) -> int:
        expected, unjournalled = self.bounds.members, self.machines.unjournalled
        return self.cell_id(MasterCell(journalled, copy_of(journalled), expected, unjournalled))

    def _sends(self, outputs: Iterable[tuple[int, object]]) -> Sends:
        numbered = tuple(dict.fromkeys((to, self.events(message)) for to, message in outputs))
        return by_receiver(numbered)

    def member(self, state: State, at: int) -> MemberFacts:
        return self.members[self.spots.values[state[at]][0]]

    def master(self, state: State) -> MasterFacts:
        return self.masters[self.spots.values[state[1]][0]]

    def live(self, state: State) -> dict[int, MemberFacts]:
        found = (self.member(state, at) for at in range(2, len(state)))
        return {facts.inc: facts for facts in found}

    def find(self, state: State | list[int], pid: int) -> int:
        for at in range(1, len(state)):
            if self.pids[self.spots.values[state[at]][0]] == pid:
                return at
        return -1

    # ------------------------------------------------------------------ one event

    def apply(self, state: State, at: int, event: int) -> State:
        """The state after a process has handled an event and its messages are under way."""
        spot, sends = self._step(state[at], event)
        spots = list(state)
        spots[at] = spot
        return self.send(spots, sends)

    def _step(self, spot: int, event: int) -> Step:
        key = (spot, event, self.reducing)
        found = self._steps.get(key)
        if found is None:
            before, inbox = self.spots.values[spot]
            cell_id, sends, _ = self.handled(before, event)
            after = spot if cell_id == before else self.spot(cell_id, inbox)
            found = self._steps[key] = Step(after, sends)
        return found

    def send(self, spots: list[int], sends: Sends) -> State:
        for to, messages in sends:
            at = self.find(spots, to)
            if at >= 0:
                spots[at] = self._receive(spots[at], messages)
        return self.clean(spots)

    def _receive(self, spot: int, messages: tuple[int, ...]) -> int:
        key = (spot, messages, self.reducing)
        found = self._received.get(key)
        if found is None:
            cell_id, inbox = self.spots.values[spot]
            found = self._received[key] = self.spot(cell_id, inbox.union(messages))
        return found

    def spot(self, cell_id: int, inbox: frozenset[int]) -> int:
        """A process with its inbox, without what can do nothing any more."""
        if not self.reducing:
            return self.spots((cell_id, inbox))
        if cell_id in self.masters:
            cell_id, inbox = self._hear_progress(cell_id, inbox)
        return self.spots((cell_id, frozenset(m for m in inbox if not self._is_dead(cell_id, m))))

    def _hear_progress(self, cell_id: int, inbox: frozenset[int]) -> tuple[int, frozenset[int]]:
        """What is in the model only grows, and decides nothing: to hear it at once is strictest."""
        newest: dict[tuple[int, int, int], tuple[int, int]] = {}
        for m in sorted(inbox):
            message = self.events.values[m]
            if isinstance(message, Progress):
                cell_id = self.handled(cell_id, m)[0]
                key = (message.inc, message.epoch_no, message.group)
                newest[key] = max(newest.get(key, (NO_STEP - 1, 0)), (message.step, m))
        kept = {m for _, m in newest.values()}
        stale = {m for m in inbox if isinstance(self.events.values[m], Progress)} - kept
        return cell_id, inbox - stale

    def _is_dead(self, cell_id: int, m: int) -> bool:
        message = self.events.values[m]
        facts = self.members.get(cell_id)
        if facts is not None:
            return _ignores(facts, message)
        master = self.masters[cell_id]
        if message.inc in master.gone:  # type: ignore[attr-defined]
            return True  # see `_around`
        if isinstance(message, JoinGroup | GroupLeft):
            return False
        epoch_no, number, running = master.kept
        if message.epoch_no < epoch_no or message.group < number:  # type: ignore[attr-defined]
            return True
        if isinstance(message, Progress):
            heard = running and self.handled(cell_id, m)[0] == cell_id
            return heard and not master.may_die
        return isinstance(message, GroupStopped) and running

    def clean(self, spots: list[int]) -> State:
        """Forget what nobody can come to know any more."""
        env = self.envs.values[spots[0]]
        master = self.masters[self.spots.values[spots[1]][0]]
        if not env.failures and master.may_die:
            cell_id, inbox = self.spots.values[spots[1]]
            cell = self.cell(cell_id)
            assert isinstance(cell, MasterCell)
            cell.journalled = None
            spots[1] = self.spot(self.cell_id(cell), inbox)
        if env.entries:
            entries = self._still_read(tuple(spots), env.entries)
            if entries != env.entries:
                spots[0] = self.envs(msgspec.structs.replace(env, entries=entries))
        return tuple(spots)

    def _still_read(self, state: State, entries: frozenset[Entry]) -> frozenset[Entry]:
        """Those that somebody may still wait for."""
        if not self.reducing:
            return entries
        needed: dict[int, int] = {}
        unborn: list[tuple[int, int]] = []
        for facts in self.live(state).values():
            unborn.append((facts.ran, facts.group))
            counted, rounds = facts.rounds
            if facts.run is not None:
                group = facts.run.group
                own = rounds if facts.told is not None else rounds + 1
                needed[group] = min(needed.get(group, 99), own if counted == group else 1)
            if facts.running is not None and not facts.holds:
                group = facts.running.group
                own = rounds + 1 if counted == group else 1
                needed[group] = min(needed.get(group, 99), own)
        return frozenset(
            entry
            for entry in entries
            if entry.round >= needed.get(entry.group, 99)
            or any(ran < entry.group and group <= entry.group for ran, group in unborn)
        )

    def with_env(self, state: State, **changes: object) -> State:
        env = msgspec.structs.replace(self.envs.values[state[0]], **changes)
        return self.clean([self.envs(env), *state[1:]])


def _ignores(facts: MemberFacts, message: object) -> bool:
    """Whether a message can do nothing to this member, now or later."""
    if isinstance(message, GivenUp):
        return facts.leaving
    assert isinstance(message, StopGroup | CatchUp | RunGroup)
    if message.epoch_no < facts.epoch_no or message.group < facts.group:
        return True
    return not isinstance(message, CatchUp) and message.group <= facts.ran
