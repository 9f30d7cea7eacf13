"""Inbox of the master's task: facts, in the order in which they came."""

import asyncio
import contextlib
from collections.abc import Callable

from paceline.master.facts import Fact, StopAsked, Tick


class Inbox:
    """The facts that nobody has handled yet; the master's task waits here for the next."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.changed = True
        """Whether something has happened that may concern the job as a whole."""
        self._wake = asyncio.Event()

    def put(self, fact: Fact) -> None:
        """Add a fact; from the event loop only."""
        self.facts.append(fact)
        self._wake.set()

    def for_threads(self) -> Callable[[Fact], None]:
        """`put` for other threads."""
        loop = asyncio.get_running_loop()

        def put(fact: Fact) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the job has ended
                loop.call_soon_threadsafe(self.put, fact)

        return put

    async def wait(self) -> None:
        """Return when there is a fact."""
        await self._wake.wait()
        self._wake.clear()

    def take(self) -> list[Fact]:
        """Take all that is there: what has arrived, before anybody's silence is judged."""
        batch, self.facts = self.facts, []
        batch.sort(key=lambda fact: isinstance(fact, Tick))
        return batch

    @property
    def asks_to_stop(self) -> bool:
        """Whether a signal that asks for the job's end has come."""
        return any(isinstance(fact, StopAsked) for fact in self.facts)
