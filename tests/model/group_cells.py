"""The processes of an all-reduce job as the explorer sees them.

A cell owns one production machine and does what its edge does (``member.py``, ``loop.py``, the
master's ``training.py``). A replica is the list of the steps that changed it.
"""

import pickle
from collections.abc import Iterable

import msgspec

from paceline.base.samples import Intervals, SampleSet, Span
from paceline.protocol import acts as master
from paceline.protocol.holding.group.formation import Formation
from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.holding.group.member import (
    Connect,
    Copy,
    Drop,
    Instruction,
    MemberState,
    Say,
)
from paceline.protocol.records import Records
from paceline.protocol.training import MasterState
from paceline.runtime.group.step import num_sharing
from paceline.wire.messages.base import Message
from paceline.wire.messages.feeds import Feed, feed_of
from paceline.wire.messages.group import (
    NO_STEP,
    Broken,
    CatchUp,
    GroupLeft,
    GroupStopped,
    JoinGroup,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.node import GivenUp

from .cells import Violation

MASTER = 0
BITS = 16
"""Samples of a feed at most."""
REPLICA = "m"
DISTANT = "another machine"
"""Address of members there."""

Applied = tuple[int, int]
"""(samples of a step, group that computed it)."""
Model = tuple[Applied, ...]
HALF = (-1, 0)
"""Some parameters are changed by the present step and some are not."""
Output = tuple[int, Message]


def mask(spans: Iterable[Span]) -> int:
    """Samples of all feeds as the bits of an integer."""
    bits = 0
    for span in spans:
        first = feed_of(span.line) * BITS
        bits |= (1 << first + span.stop) - (1 << first + span.start)
    return bits


def make_feed(number: int, size: int, batch_size: int, *, per_worker: bool) -> Feed:
    """One pass over so many samples."""
    return Feed(
        feed=number,
        purpose="train",
        num_samples=size,
        epochs=1,
        batch_size=batch_size,
        per_worker=per_worker,
        shard_size=1,
        shuffle=False,
        seed=0,
    )


def _hook(obj: object) -> object:
    if isinstance(obj, SampleSet):
        return obj.spans()
    if isinstance(obj, Intervals):
        return obj.edges
    return [_plain(value) for _, value in sorted(vars(obj).items())]


def _plain(value: object) -> object:
    """Dictionaries and sets in one order."""
    if isinstance(value, dict):
        return sorted(value.items())
    return sorted(value) if isinstance(value, set) else value


_encoder = msgspec.msgpack.Encoder(enc_hook=_hook)


class MemberCell:
    """One member: `MemberState`, its replica, and a script that trains on all feeds in order.

    It has opened them all before any was complete.
    """

    def __init__(self, state: MemberState, feeds: tuple[Feed, ...]) -> None:
        self.state, self.feeds = state, feeds
        #: The feed that the script is at.
        self.at = 0
        self.model: Model = ()
        #: The group of the step that the script is in.
        self.run: RunGroup | None = None
        #: What the group was told of it: number and samples.
        self.told: tuple[int, int] | None = None
        #: Group in which steps are counted, and steps entered in it.
        self.rounds = (0, 0)
        self.last = False
        #: What is copied, and what has come of it.
        self.arriving: tuple[CatchUp, Model | None] | None = None
        #: Between `begin_update` and `updated`.
        self.changing = False
        #: Most others differ from what it holds.
        self.differs = False
        #: The process was asked to leave.
        self.leaving = False

    def key(self) -> bytes:
        """Equal for equal states."""
        same_run = self.run is self.state.running
        own = [value for name, value in vars(self).items() if name != "feeds"]
        return _encoder.encode([own, same_run])

    def handle(self, event: object) -> list[Output]:
        """One message, or one act of the script, as (name, arguments)."""
        state = self.state
        match event:
            case StopGroup():
                done = state.stop_group(event)
            case CatchUp():
                if event.source.inc == state.inc and state.step == NO_STEP:
                    self.model, self.differs = (), False  # a life of before ends (`Fenced`)
                done = state.catch_up(event)
            case RunGroup():
                done = state.run_group(event)
            case GivenUp():
                self.leaving, done = True, []
            case "join":
                done = state.join()
            case "resend":
                done = []
            case (str() as act, *arguments):
                done = getattr(self, f"_{act}")(*arguments)
            case _:
                raise AssertionError(event)
        return self._perform([*done, *state.resend()])

    # ------------------------------------------------------------------ the script

    def _enter(self) -> list[Instruction]:
        self.run = self.state.enter()
        assert self.run is not None
        return self._end_feed() if self._begins_at_end else []

    @property
    def _begins_at_end(self) -> bool:
        return self.state.copying is None and self.state.is_proven and not self.next_slice()

    def _end_feed(self) -> list[Instruction]:
        self._out_of_step()
        self.at += 1
        return self.state.leave_step()

    def _gather(self) -> list[Instruction]:
        assert self.run is not None
        group, rounds = self.rounds
        self.rounds = self.run.group, rounds + 1 if group == self.run.group else 1
        self.told = self.state.step + 1, mask(self.next_slice())
        return []

    def next_slice(self) -> tuple[Span, ...]:
        """What the next step consists of; empty: the feed is in the model."""
        feed, number = self.feeds[self.at], self.state.step + 1
        workers = num_sharing(self.run, number) if self.run is not None else 1
        return feed.next_slice(self.state.done.line(feed.line()), workers)

    def _begin(self, last: bool) -> list[Instruction]:
        assert self.run is not None
        self.last = last
        if self.state.begin_update(self.run):
            self.model, self.changing = (*self.model, HALF), True
        else:
            self._out_of_step()
        return []

    def _update(self) -> list[Instruction]:
        assert self.run is not None
        whole = self.next_slice()
        self.model, self.changing = (*self.model[:-1], (mask(whole), self.run.group)), False
        self._out_of_step()
        return self.state.updated(whole, last=self.last)

    def _prove(self, last: bool) -> list[Instruction]:
        assert self.run is not None
        done = self.state.proven(self.run, last=last)
        if self.state.is_proven:
            return [*done, *self._end_feed()]
        self._out_of_step()
        return done

    def _fail(self) -> list[Instruction]:
        assert self.run is not None
        run = self.run
        self._out_of_step()
        return self.state.failed(run, "")

    def _differ(self, gives_up: bool) -> list[Instruction]:
        assert self.run is not None
        run = self.run
        self._out_of_step()
        self.differs |= gives_up and run is self.state.running
        return self.state.diverged(run, "", gives_up=gives_up)

    def _out_of_step(self) -> None:
        self.run = self.told = None

    def _leave(self) -> list[Instruction]:
        self.leaving = True
        return []

    def _go(self) -> list[Instruction]:
        self.arriving = None
        return self.state.leave()

    # ------------------------------------------------------------------ copies

    def _arrive(self, model: Model) -> list[Instruction]:
        assert self.arriving is not None
        self.arriving = self.arriving[0], model
        return []

    def _load(self) -> list[Instruction]:
        assert self.arriving is not None
        order, model = self.arriving
        self.arriving = None
        assert model is not None
        if not self.state.may_load(order):
            return []
        self.model, self.differs = model, False
        done = self.state.copied(order)
        return [*done, *self._end_feed()] if self.run and self._begins_at_end else done

    def _perform(self, instructions: Iterable[Instruction]) -> list[Output]:
        done: list[Output] = []
        for instruction in instructions:
            match instruction:
                case Say(message):
                    done.append((MASTER, message))
                case Copy(order):
                    self.arriving = order, None
                case Connect():
                    self.arriving = None
                case Drop():
                    pass
        return done


class MasterCell:
    """The master: `MasterState`, and what a restart would make of its journal."""

    def __init__(
        self,
        state: MasterState,
        journalled: MasterState | None,
        expected: int,
        unjournalled: tuple[type, ...] = (),
    ) -> None:
        self.state, self.journalled, self.expected = state, journalled, expected
        self.unjournalled = unjournalled
        #: (what a restart finds, what had been sent) where this event writes a record after that.
        self.crashes: list[tuple[MasterState, tuple[Output, ...]]] = []

    @property
    def holder(self) -> GroupHolder:
        """Its part that groups are of."""
        assert isinstance(self.state.holder, GroupHolder)
        return self.state.holder

    @property
    def group(self) -> Formation:
        """Its part of re-forming."""
        return self.holder.group

    def key(self) -> bytes:
        """Equal for equal states."""
        return _encoder.encode([_relevant(self.state), _relevant(self.journalled)])

    def handle(self, event: object) -> list[Output]:
        """One message or one call of the master's edge."""
        done = self._perform(self._call(event))
        return [*done, *self._perform(self.state.resend())]

    def _call(self, event: object) -> list[master.Instruction]:
        state = self.state
        match event:
            case JoinGroup() | GroupStopped() | Progress() | Broken() | GroupLeft():
                distant = isinstance(event, JoinGroup) and event.address == DISTANT
                node = str(event.inc)
                return self.holder.member_said(
                    event, node=node, expected=self.expected, distant=distant
                )
            case "form":
                return self.holder.form_group()
            case "anew":
                self.group.broken.update((member.inc, "") for member in self.group.members)
                return self.holder.form_group()
            case "restore":
                return self.holder.restore_group()
            case "resend":
                return []
            case ("restart", tuple() as up, tuple() as lost):
                return self._restart(up, lost)
            case ("up", int() as inc):
                return state.worker_up(inc)
            case ("lost", int() as inc, bool() as returned):
                return state.worker_lost(inc, returned=returned)
        raise AssertionError(event)

    def _restart(self, up: tuple[int, ...], lost: tuple[int, ...]) -> list[master.Instruction]:
        done = self.state.resume()
        for inc in up:
            done += self.state.worker_up(inc)
        for inc in lost:
            done += self.state.worker_lost(inc)
        return done

    def _perform(self, instructions: Iterable[master.Instruction]) -> list[Output]:
        done: list[Output] = []
        for instruction in instructions:
            match instruction:
                case master.Send(inc, StopGroup() | CatchUp() | RunGroup() | GivenUp() as message):
                    done.append((inc, message))
                case master.WriteAhead(record):
                    self._journal(record, done)
                case master.Fail(reason):
                    raise Violation("E", reason)
                case _:
                    pass
        return done

    def _journal(self, record: Records, sent: list[Output]) -> None:
        if self.journalled is not None and not isinstance(record, self.unjournalled):
            if sent:
                self.crashes.append((copy_of(self.journalled), tuple(sent)))
            self.journalled.apply(record)


def copy_of(state: MasterState) -> MasterState:
    """One that changes by itself."""
    return pickle.loads(pickle.dumps(state))  # type: ignore[no-any-return]


def _relevant(state: MasterState | None) -> object:
    """What of the master's state has a bearing on groups."""
    if state is None:
        return None
    assert isinstance(state.holder, GroupHolder)
    return [state.holder.group, sorted(state.workers), state.ledger.done]


Cell = MemberCell | MasterCell
