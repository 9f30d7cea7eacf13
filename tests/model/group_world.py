"""The transition system of one all-reduce job: who may do what, and what must hold."""

from collections.abc import Iterator

import msgspec

from paceline.protocol.records import FeedAdded
from paceline.protocol.training import MasterState
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import GivenUp

from .cells import Violation
from .group_bounds import DIFFER, Entry, Env
from .group_cells import DISTANT, HALF, MASTER, MasterCell, MemberCell
from .group_facts import MemberFacts
from .group_network import GroupNetwork
from .network import Label, Sends, State

Act = tuple[str, int]
"""(what, event)."""


class GroupWorld(GroupNetwork):
    """See the module."""

    # ------------------------------------------------------------------ start

    def initial(self) -> State:
        """All members are up; ``begun``: they were told to run."""
        bounds = self.bounds
        keeps = "master" in bounds.kinds and bounds.failures > 0
        spots = [self.spot(self.cell_id(self._fresh_master(keeps=keeps)), frozenset())]
        env = Env(failures=bounds.failures, joiners=bounds.joiners, next_inc=1)
        state: State = (self.envs(env), *spots)
        for _ in range(bounds.members):
            state = self._joined(state)
        if bounds.begun:
            while (after := self._calm_round(state)) != state:
                state = after
            state = (state[0], *(self._without_inbox(spot) for spot in state[1:]))
        return state

    def _fresh_master(self, *, keeps: bool) -> MasterCell:
        machines = self.machines
        states = []
        for _ in range(2):
            state = MasterState(machines.holder(min_members=1), mode="bsp", samples="exactly-once")
            for feed in self.feeds:
                state.apply(FeedAdded(feed=feed))
            states.append(state)
        kept = states[1] if keeps else None
        return MasterCell(states[0], kept, self.bounds.members, machines.unjournalled)

    def _calm_round(self, state: State) -> State:
        """Everything sent is heard, copies are made; no step is begun."""
        for pid in self._everybody(state):
            state = self._hear_all(state, pid)
        for event in self._due(state):
            state = self.apply(state, 1, event)
        for at in range(2, len(state)):
            for name, event in self._copying(state, self.member(state, at)):
                state = self.apply(state, at, event) if name == "act" else state
                break
        return state

    def _joined(self, state: State, *, distant: bool = False) -> State:
        """One more member comes, and the master is told of it."""
        env = self.envs.values[state[0]]
        inc = env.next_inc
        env = msgspec.structs.replace(env, next_inc=inc + 1)
        state = (self.envs(env), *state[1:])
        state = self.apply(state, 1, self.events(("up", inc)))
        machine = self.machines.member(inc, DISTANT if distant else "")
        cell = MemberCell(machine, self.feeds)
        state = (*state, self.spot(self.cell_id(cell), frozenset()))
        return self.apply(state, len(state) - 1, self.events("join"))

    # ------------------------------------------------------------------ what may happen

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        """All that may happen now, with the state after it."""
        for label, after in self._moves(state):
            if after != state:
                yield label, after
        env = self.envs.values[state[0]]
        if env.failures:
            spent = self.with_env(state, failures=env.failures - 1)
            yield from self._failures(state, spent)

    def _moves(self, state: State) -> Iterator[tuple[Label, State]]:
        for at in range(1, len(state)):
            cell_id, inbox = self.spots.values[state[at]]
            pid = self.pids[cell_id]
            for m in sorted(inbox):
                yield ("deliver", pid, m), self.apply(state, at, m)
        for at in range(2, len(state)):
            inc = self.member(state, at).inc
            for act in self._acts(state, at):
                yield (act[0], inc, act[1]), self._act(state, at, act)
        yield from self._around(state)

    def _around(self, state: State) -> Iterator[tuple[Label, State]]:
        """What happens outside of the members, and is no failure."""
        env, master = self.envs.values[state[0]], self.master(state)
        for inc in sorted(env.dead & master.losable):
            yield ("is known to be dead", inc, 0), self._lost(state, inc)
        for event in self._due(state):
            yield ("act", MASTER, event), self.apply(state, 1, event)
        for at in range(2, len(state)):
            inc = self.member(state, at).inc
            if inc in master.gone:  # it never falls silent, so that it is answered at any time
                given_up = self.events(GivenUp(inc=inc))
                yield ("deliver", inc, given_up), self.apply(state, at, given_up)
        if env.joiners:
            fewer = self.with_env(state, joiners=env.joiners - 1)
            yield ("comes", env.next_inc, 0), self._joined(fewer, distant=self.bounds.distant)

    def _due(self, state: State) -> list[int]:
        """What the master's edge does unasked."""
        master, due = self.master(state), []
        if master.may_form or (master.waits and self._is_short(state)):
            due.append(self.events("form"))
        if master.needs_restore:
            due.append(self.events("restore"))
        return due

    def _is_short(self, state: State) -> bool:
        env = self.envs.values[state[0]]
        return len(state) - 2 - len(env.suspected) < self.bounds.members

    def _lost(self, state: State, inc: int) -> State:
        env = self.envs.values[state[0]]
        event = self.events(("lost", inc, inc in env.returned))
        return self.apply(state, 1, event)

    def _act(self, state: State, at: int, act: Act) -> State:
        what, event = act
        if what in ("exits", "returns"):
            return self._without(state, at, returned=what == "returns")
        state = self.apply(state, at, event)
        facts = self.member(state, at)
        value = self.events.values[event]
        enters = value == ("enter",) and facts.run is not None and facts.arriving is None
        if enters and self._is_told_at_once:
            state = self.apply(state, at, self.events(("gather",)))
            value = ("gather",)
        if value == ("gather",):
            facts = self.member(state, at)
            assert facts.told is not None
            entry = Entry(*facts.rounds, facts.inc, *facts.told, facts.wants_out)
            entries = self.envs.values[state[0]].entries | {entry}
            return self.with_env(state, entries=entries)
        return state

    @property
    def _is_told_at_once(self) -> bool:
        """Nobody is to stop after its step: to learn that once it has begun makes no difference."""
        return self.reducing and self.bounds.begun and not self.bounds.joiners

    def _without(self, state: State, at: int, *, returned: bool = False) -> State:
        """A member has ended."""
        env = self.envs.values[state[0]]
        inc = self.member(state, at).inc
        return self.with_env(
            state[:at] + state[at + 1 :],
            dead=env.dead | {inc},
            suspected=env.suspected - {inc},
            returned=env.returned | ({inc} if returned else set()),
        )

    # ------------------------------------------------------------------ a member's acts

    def _acts(self, state: State, at: int) -> Iterator[Act]:
        """What a member's script and its copies may do, the best for its progress first."""
        facts = self.member(state, at)
        if facts.updating:
            yield "act", self.events(("update",))
            return
        yield from self._copying(state, facts)
        if facts.run is None:
            yield from self._between_steps(facts)
        elif facts.told is None:
            if facts.holds and facts.arriving is None:
                yield "act", self.events(("gather",))
            # Who copies hears of peers by the master alone, and leaves as soon as it is asked to.
            copies = facts.arriving is not None
            if copies and facts.leaving:
                yield "exits", 0
            if not facts.holds or (not copies and self._breaks(state, facts)):
                yield "act", self.events(("fail",))
        else:
            yield from self._in_step(state, facts)

    def _copying(self, state: State, facts: MemberFacts) -> Iterator[Act]:
        if facts.arriving is None:
            return
        order, model = facts.arriving
        if model is not None:
            if facts.told is None:
                yield "act", self.events(("load",))
            return
        source = self.live(state).get(order.source.inc)
        if source is not None and source.hands_out == (order.epoch_no, order.step):
            yield "act", self.events(("arrive", source.model))

    def _between_steps(self, facts: MemberFacts) -> Iterator[Act]:
        if facts.running is None and facts.leaving:
            yield "returns", 0
            yield "exits", 0
            if not facts.left:
                yield "act", self.events(("go",))
        if facts.ended:
            if self.bounds.returns and not facts.leaving:
                yield "returns", 0
        elif facts.running is not None:
            yield "act", self.events(("enter",))

    def _in_step(self, state: State, facts: MemberFacts) -> Iterator[Act]:
        assert facts.run is not None and facts.told is not None
        env = self.envs.values[state[0]]
        told = self._told(state, facts)
        if len(told) == len(facts.run.members):
            if len({(one.number, one.content) for one in told}) > 1:
                raise Violation("H", f"members are in different steps: {told}")
            found = [inc for *rounds, inc in env.differ if tuple(rounds) == facts.rounds]
            if found:
                yield "act", self.events(("differ", facts.inc in found))
                return
            last = any(one.wants_out for one in told)
            name = "begin" if facts.told[1] else "prove"
            yield "act", self.events((name, last))
        if self._breaks(state, facts):
            yield "act", self.events(("fail",))

    def _told(self, state: State, facts: MemberFacts) -> list[Entry]:
        """What the group has told of the step that this member is in."""
        entries = self.envs.values[state[0]].entries
        return sorted(e for e in entries if (e.group, e.round) == facts.rounds)

    def _breaks(self, state: State, facts: MemberFacts) -> bool:
        """Whether some peer has gone, or works in this group no more."""
        run, live = facts.run, self.live(state)
        assert run is not None
        for member in run.members:
            peer = live.get(member.inc)
            if peer is None:
                return True
            works = peer.running is not None and peer.running.group == run.group
            comes = peer.ran < run.group and peer.group <= run.group
            if not works and not comes:
                return True
        return not facts.holds

    # ------------------------------------------------------------------ failures

    def _failures(self, state: State, spent: State) -> Iterator[tuple[Label, State]]:
        kinds = self.bounds.kinds
        env = self.envs.values[state[0]]
        for at in range(2, len(state)):
            facts = self.member(state, at)
            inc = facts.inc
            if "member" in kinds:
                yield ("dies", inc, 0), self._without(spent, at)
            if "suspect" in kinds and inc not in env.suspected:
                suspected = self.with_env(spent, suspected=env.suspected | {inc})
                yield ("is taken for dead", inc, 0), self._lost(suspected, inc)
            if "leave" in kinds and not facts.leaving and not facts.ended:
                leave = self.events(("leave",))
                yield ("act", inc, leave), self.apply(spent, at, leave)
            if DIFFER in kinds and self._may_differ(state, facts):
                differ = env.differ | {(*facts.rounds, inc)}
                yield (DIFFER + "s", inc, 0), self.with_env(spent, differ=differ)
            if "break" in kinds and facts.run is not None and not facts.updating:
                fail = self.events(("fail",))
                yield ("act", inc, fail), self.apply(spent, at, fail)
        if "anew" in kinds and self.master(state).running:
            anew = self.events("anew")
            yield ("act", MASTER, anew), self.apply(spent, 1, anew)
        if "master" in kinds:
            yield from self._restarts(state)

    def _may_differ(self, state: State, facts: MemberFacts) -> bool:
        """Whether a member is in a round of which nobody knows yet what was told."""
        if facts.run is None or facts.told is None:
            return False
        same = [one for one in self.live(state).values() if one.rounds == facts.rounds]
        found = {(group, number) for group, number, _ in self.envs.values[state[0]].differ}
        waits = all(one.run is not None and not one.updating for one in same)
        return waits and facts.rounds not in found

    def _restarts(self, state: State) -> Iterator[tuple[Label, State]]:
        """The master dies: between two events, or where one of them writes a second record."""
        cell_id, inbox = self.spots.values[state[1]]
        cell = self.cell(cell_id)
        assert isinstance(cell, MasterCell) and cell.journalled is not None
        for after in self._restarted_as(state, self.restarted(cell.journalled), ()):
            yield ("dies", MASTER, 0), after
        for m in sorted(inbox):
            for restarted, sends in self.handled(cell_id, m)[2]:
                for after in self._restarted_as(state, restarted, sends):
                    yield ("master dies in", MASTER, m), after

    def _restarted_as(self, state: State, cell_id: int, sends: Sends) -> Iterator[State]:
        env = self.envs.values[state[0]]
        before = self.master(state)
        live = [self.member(state, at).inc for at in range(2, len(state))]
        heard = [inc for inc in env.dead if inc in before.workers]
        up = tuple(sorted({*live, *heard} - env.suspected))
        again = tuple(sorted({*live, *heard}))
        choices = {(up, tuple(sorted(env.suspected)))}
        if self.bounds.forgets:
            choices.add((again, ()))
        inbox = self.spots.values[state[1]][1]
        for ups, lost in sorted(choices):
            spots = [state[0], self.spots((cell_id, inbox)), *state[2:]]
            changed = self.send(spots, sends)
            changed = self.apply(changed, 1, self.events(("restart", ups, lost)))
            suspected = env.suspected if not self.bounds.forgets or lost else frozenset()
            changed = self.with_env(changed, failures=env.failures - 1, suspected=suspected)
            for at in range(2, len(changed)):
                changed = self.apply(changed, at, self.resend)
            yield changed

    # ------------------------------------------------------------------ invariants

    def check(self, state: State) -> None:
        """Raise `Violation` where a process, or two of them together, break an invariant."""
        master, env = self.master(state), self.envs.values[state[0]]
        live = self.live(state)
        for bad in (master.bad, *(facts.bad for facts in live.values())):
            if bad:
                raise Violation(bad[0], bad[3:])
        holders = [
            facts
            for facts in live.values()
            if facts.inc not in env.suspected | master.gone
            and facts.epoch_no == master.epoch_no
            and facts.step != NO_STEP
        ]
        for facts in holders:
            missing = master.done & ~sum(one for one, _ in facts.model if one > 0)
            if missing:
                raise Violation("D", f"{missing:b} is done, and not in the model of {facts.inc}")
        self._compare(holders)

    def _compare(self, holders: list[MemberFacts]) -> None:
        """At equal steps all hold the same replica, bit by bit."""
        first: dict[int, MemberFacts] = {}
        for facts in holders:
            other = first.setdefault(facts.step, facts)
            one, two = _settled(facts.model), _settled(other.model)
            if one != two:
                raise Violation("E", f"{facts.inc} holds {one}, {other.inc} {two}")

    def is_done(self, state: State) -> bool:
        """Everything is counted, and whoever trains has come to the end of the last feed."""
        env, live = self.envs.values[state[0]], self.live(state)
        trains = [facts for inc, facts in live.items() if inc not in env.suspected]
        if self.master(state).done != self.everything:
            return False
        return all(facts.ended for facts in trains) and bool(trains or env.returned)

    # ------------------------------------------------------------------ the end can be reached

    def rounds(self, state: State) -> State:
        """Everyone repeats, works and hears everything; nothing fails."""
        for inc in sorted(self.envs.values[state[0]].dead & self.master(state).losable):
            state = self._lost(state, inc)
        gone = self.envs.values[state[0]].suspected | self.master(state).gone
        if all(inc in gone for inc in self.live(state)):
            state = self._joined(state)
        for pid in self._everybody(state):
            state = self.apply(state, self.find(state, pid), self.resend)
        for pid in self._everybody(state)[1:]:
            state = self._work(self._hear_all(state, pid), pid)
        for pid in self._everybody(state):  # what the master only answers is not repeated
            state = self._hear_all(state, pid)
        for event in self._due(state):
            state = self.apply(state, 1, event)
        if self.master(state).gathers and self._is_short(state):
            state = self.apply(state, 1, self.events("form"))
        return state

    def _work(self, state: State, pid: int) -> State:
        for _ in range(3):
            at = self.find(state, pid)
            act = next(self._acts(state, at), None) if at >= 0 else None
            if act is None:
                return state
            state = self._act(state, at, act)
        return state

    def _hear_all(self, state: State, pid: int) -> State:
        at = self.find(state, pid)
        if at < 0:
            return state
        for m in sorted(self.spots.values[state[at]][1]):
            state = self.apply(state, at, m)
        return state

    def _everybody(self, state: State) -> list[int]:
        return [self.pids[self.spots.values[spot][0]] for spot in state[1:]]

    def without_messages(self, state: State) -> State:
        """The same processes, everything under way lost; nothing more will fail, nobody comes."""
        env = self.envs.values[state[0]]
        env = msgspec.structs.replace(env, failures=0, joiners=0)
        spots = [self._without_inbox(spot) for spot in state[1:]]
        return self.clean([self.envs(env), *spots])

    def _without_inbox(self, spot: int) -> int:
        return self.spot(self.spots.values[spot][0], frozenset())

    # ------------------------------------------------------------------ for people

    def tell(self, label: Label) -> str:
        """One line of a trace."""
        what, pid, event = label
        who = "master" if pid == MASTER else str(pid)
        match what:
            case "deliver" | "master dies in":
                word = "hears" if what == "deliver" else "dies while it handles"
                return f"{who} {word} {self.events.values[event]}"
            case "act":
                return f"{who}: {self.events.values[event]}"
        return f"{who} {what}"


def _settled(model: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return model[:-1] if model and model[-1] == HALF else model
