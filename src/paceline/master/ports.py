"""Port of the place where nodes run: what the master asks of it.

`paceline.backends` implements it: each folder there has a ``backend.py`` with `open_backend`, and
`prepare`, which fills in what the platform asks of a spec.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from paceline.protocol.nodes.platform import AnyWord
from paceline.wire.spec import JobSpec


class Backend(Protocol):
    """Launch, adopt, stop, watch; nothing blocks, all of it runs in the master's event loop."""

    def launch(self, node: str, *, may_move: bool = False) -> None:
        """Start an agent for the node, in place of one that may still be there.

        It may wait for its place, or be refused: `watch` says so. Twice is one node.

        Args:
            node: its name.
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

    def stop(self, node: str) -> None:
        """End the node's agent and its processes by force; an unknown node is no error."""
        ...

    def watch(self) -> AsyncIterator[AnyWord]:
        """Yield what becomes of nodes, as it happens, each once; iterated by one task.

        A connection to the platform that was lost and made again loses and repeats nothing.
        """
        ...

    def left_running(self, nodes: Iterable[str]) -> set[str]:
        """Return those of a former master's nodes whose agent may still run: they are awaited."""
        ...

    def waited_s(self, node: str) -> float:
        """Seconds the node's latest launch has waited for its place, or had to wait."""
        ...

    def pending_s(self) -> float | None:
        """Seconds a launch of now would wait for its place; None: the platform does not say."""
        ...

    @property
    def resizes_live(self) -> bool:
        """Whether agents change what their nodes may use; False: a place keeps its size."""
        ...

    def resized(self, spec: JobSpec) -> None:
        """Give nodes that are launched from now on the sizes of this spec."""
        ...

    def room(self, role: str) -> int | None:
        """Further nodes of a role that would get a place at once; None: nobody counts that."""
        ...

    async def close(self) -> None:
        """The job has ended, all nodes are stopped: leave nothing on the platform."""
        ...
