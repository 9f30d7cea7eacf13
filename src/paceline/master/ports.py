"""Port of the place where nodes run: what the master asks of it.

A backend declares itself by an entry point (`paceline.base.backends`), and implements this; see
docs/howto/write-a-backend.md. What every backend promises is in tests/conformance/test_backends.py.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from paceline.protocol.nodes.platform import AnyWord
from paceline.wire.places import AskedPlace, Resizing, Room


class Backend(Protocol):
    """Launch, adopt, stop, resize, watch; nothing blocks, all runs in the master's event loop."""

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        """Look at the platform, before anything else is asked: the words of `watch` follow on it.

        A master waits for it for some seconds only.

        Args:
            nodes: of a former master of this job.

        Returns:
            Those of the nodes whose agent may still run: they are awaited.
        """
        ...

    def watch(self) -> AsyncIterator[AnyWord]:
        """Yield what becomes of nodes, as it happens, each once; iterated by one task.

        A connection to the platform that was lost and made again loses and repeats nothing.
        """
        ...

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        """Start an agent for the node, in place of one that may still be there.

        It may wait for its place, or be refused: `watch` says so. Twice is one node.

        Args:
            node: its name.
            place: what it asks for.
            token: of this launch. The agent gets it (``--launch``) and says it to the master.
            may_move: nothing of it runs. Where nodes keep the size of their place, it gets another
                place if it must have another size.
        """
        ...

    def adopt(self, node: str, launch: str, pid: int) -> None:
        """Watch an agent that has spoken; a former master may have launched it.

        Args:
            node: its node.
            launch: token of its launch, which it repeats; words about its end have the same.
            pid: its process number, where it runs.
        """
        ...

    def stop(self, node: str, grace_s: float = 0.0) -> None:
        """End the node's agent and its processes; an unknown node is no error.

        When nothing of it runs any more, `watch` says so (`NodeStopped`); to be out of reach is not
        to be gone. A launch that follows comes after that word, or after the master has waited
        long enough: nothing that may still run counts by then.

        Args:
            node: its name.
            grace_s: seconds between a request to end (SIGTERM) and force; 0: force at once.
        """
        ...

    def resize(self, node: str, place: AskedPlace) -> Resizing:
        """Have the place of a node changed; asked again while the answer is `Deferred`."""
        ...

    def room(self, place: AskedPlace) -> Room:
        """Say from what was seen last how many further nodes of this shape have room."""
        ...

    async def close(self) -> None:
        """The job has ended, all nodes are stopped: leave nothing on the platform."""
        ...
