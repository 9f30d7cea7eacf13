"""The master: one task that owns the state machines and feeds them.

Streams, calls, the backend and the clock put facts into one inbox. The task takes all that is
there, handles it, and flushes the outbox: one transaction for all records of the batch (group
commit), then everything that leaves. It never waits in between, so no fact sees half of another
one's effect. What is done with a fact is in the rooms of `paceline.master.rooms`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from typing import assert_never

from paceline.base.jobdir import JobDir
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.master.asking import Answered
from paceline.master.cut_folders import CutChosen
from paceline.master.facts import Asked, Fact, FromAgent, FromPlatform, StopAsked, Tick
from paceline.master.journal import Journal
from paceline.master.parts import make_parts
from paceline.master.ports import Backend
from paceline.master.rooms import build
from paceline.master.waiting import until_written
from paceline.protocol.nodes.node import JobEnded
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.spec import JobSpec

METRICS_S = 1.0
PICTURE_S = 10.0
"""Seconds for the platform to say what runs, when a master begins: no node is lost without it."""


class Master:
    """One job's master; create and `run` it in an event loop, holding the job's master lock."""

    def __init__(
        self,
        job: JobDir,
        spec: JobSpec,
        backend: Backend,
        *,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
    ) -> None:
        self._job, self._spec = job, spec
        self.parts, self._times = make_parts(job, spec, backend, clock, journal)
        self.rooms = build(self.parts, self._times)
        self._last_metrics_s = 0.0

    # ------------------------------------------------------------------ life

    async def run(self) -> Outcome:
        """Return when the job has ended, and the outcome is written.

        Raises:
            PermanentError: the journal is damaged.
        """
        await self._begin()
        rooms, outbox = self.rooms, self.parts.outbox
        while not rooms.end.is_over:
            await rooms.inbox.wait()
            self._handle_batch()
            if outbox.refused:  # until its disk takes the journal, the master stands still
                disk_s = self._spec.timeouts.disk_s
                lost = await until_written(outbox, rooms.inbox.facts, rooms.replies.to, disk_s)
                if lost:
                    rooms.end.fail(lost)
        return await self._close()

    async def _begin(self) -> None:
        """Go on where the master before this one has ended."""
        rooms, outbox = self.rooms, self.parts.outbox
        restarted, ended = rooms.recovery.replay()
        await rooms.sources.open()
        outbox.tell(MasterStartedEvent(restarted=restarted))
        rooms.training.resume(ended=ended)
        rooms.features.begin()
        rooms.members.taken_over()
        rooms.members.act(rooms.recovery.resize())
        goes_on = restarted and not ended
        found = await self._picture()
        rooms.members.act(self.parts.members.begin(self._times.own(), found if goes_on else ()))
        outbox.flush()
        rooms.sources.begin()

    async def _picture(self) -> Collection[str]:
        """Return which nodes may still run; without an answer in time, all of them."""
        nodes = self.parts.members.roster.nodes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PICTURE_S):
                return await self.parts.backend.picture(nodes)
        return nodes.keys()

    async def _close(self) -> Outcome:
        rooms, outbox, ending = self.rooms, self.parts.outbox, self.rooms.end.ending
        assert ending is not None
        rooms.sources.refuse_calls()
        for name in self.parts.members.roster.nodes:
            self.parts.backend.stop(name)
        await self.parts.backend.close()
        if rooms.uploads is not None:
            await rooms.uploads.finish(outbox.flush, self._is_told_to_stop)
        if not ending.is_complete and (lost := rooms.training.cuts.not_kept()):
            # Said no earlier: a last cut may have been stored just now.
            outbox.tell(lost)
            outbox.events.flush()
        rooms.features.close()
        rooms.reporting.measure_last(self._times.wall())
        outcome = rooms.reporting.outcome(ending)
        rooms.training.close()
        rooms.agents.close()
        write_outcome(outcome, self._job.outcome)
        await rooms.features.ended(outcome)
        outbox.events.flush()
        outbox.close(JobEnded())
        await rooms.sources.close()
        return outcome

    def _is_told_to_stop(self) -> bool:
        return self.rooms.end.at_once or self.rooms.inbox.asks_to_stop

    def stop_nowait(self, number: int) -> None:
        """A signal of this number asks for the end of the job; the second one, at once."""
        self.rooms.inbox.put(StopAsked(number))

    # ------------------------------------------------------------------ facts

    def _handle_batch(self) -> None:
        rooms = self.rooms
        for fact in rooms.inbox.take():
            self._handle(fact)
        for measured in self.parts.monitor.restarts.take_fresh():
            rooms.members.started(measured)
            rooms.features.works(measured)
        if rooms.training.edge.group_broke and not rooms.keeping.stands:
            rooms.members.look_for_departed()  # one may have been out of reach before it broke
        if rooms.inbox.changed:
            rooms.inbox.changed = False
            self._go_on()
        rooms.features.happened()
        self.parts.outbox.flush()
        rooms.recovery.compact()

    def _handle(self, fact: Fact) -> None:
        rooms = self.rooms
        match fact:
            case FromAgent(stream=stream, message=message):
                rooms.agents.handle(stream, message)
            case Tick():
                self._tick()
            case Asked():
                rooms.replies.answer(fact)
            case CutChosen():
                rooms.inbox.changed = True
                rooms.training.epochs.start(fact, self._times.steady())
                rooms.shutdown.ask_again()
            case StopAsked(number=number):
                rooms.shutdown.signalled(number)
            case Answered(take=take):
                take(self._times.steady())
            case FromPlatform(word=word):
                rooms.members.platform_said(word)
            case _:
                assert_never(fact)

    def _go_on(self) -> None:
        """Do what follows from the state of the whole rather than from one message."""
        rooms = self.rooms
        rooms.shutdown.go_on()
        change = self.parts.members.roster.change_due()
        if change is not None:
            rooms.training.edge.change_servers(*change)
        if not rooms.end.is_leaving and rooms.training.edge.epoch_is_due():
            rooms.sources.spawn(self._choose_cut())
            rooms.training.epochs.choosing = True

    async def _choose_cut(self) -> None:
        self.rooms.inbox.put(await self.rooms.training.epochs.choose_cut())

    def _tick(self) -> None:
        rooms, now_s = self.rooms, self._times.steady()
        rooms.inbox.changed = True
        rooms.keeping.tick(rooms.training.edge.whole_at)
        if rooms.keeping.stands:
            return  # nothing may leave now: nobody's silence is judged meanwhile
        self.parts.monitor.trains(len(rooms.training.state.training_workers()))
        rooms.members.tick()
        rooms.machines.tick()
        rooms.agents.tick()
        if rooms.uploads is not None:
            rooms.uploads.tick()
        rooms.members.look_for_hang()
        rooms.features.tick(now_s)
        rooms.shutdown.stop_workers()
        may_ask = rooms.shutdown.may_ask_for_cuts
        rooms.training.tick(now_s, cuts=rooms.end.ending is None, asked=may_ask)
        if rooms.end.ending is None:
            rooms.moves.tick(now_s)
            rooms.leaving.tick()
        rooms.features.tick(now_s)
        if now_s - self._last_metrics_s >= METRICS_S:
            self._last_metrics_s = now_s
            wall_s = self._times.wall()
            rooms.reporting.measure(now_s, wall_s, lambda: rooms.scene.now(now_s))
