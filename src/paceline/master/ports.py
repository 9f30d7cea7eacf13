"""What the master asks of the place where nodes run.

`paceline.backends` implements it: each folder there has a ``backend.py`` with `open_backend`.
"""

from collections.abc import AsyncIterator
from typing import Protocol


class AgentEnd(Protocol):
    """An agent that was launched or adopted has ended."""

    @property
    def node(self) -> str: ...

    @property
    def agent_pid(self) -> int:
        """0: it never came up."""
        ...

    @property
    def reason(self) -> str: ...


class Backend(Protocol):
    """Launch, adopt, stop, watch; nothing blocks, all of it runs in the master's event loop."""

    def launch(self, node: str) -> None:
        """Start an agent for the node, in place of one that may still be there."""
        ...

    def adopt(self, node: str, agent_pid: int) -> None:
        """Watch an agent that a former master launched."""
        ...

    def stop(self, node: str) -> None:
        """End the node's agent and its processes by force."""
        ...

    def watch(self) -> AsyncIterator[AgentEnd]:
        """Ends of agents, as they happen; iterated by one task."""
        ...

    def waited_s(self, node: str) -> float:
        """Seconds the node's latest launch has waited for its place, or had to wait."""
        ...

    def pending_s(self) -> float | None:
        """Seconds a launch of now would wait for its place; None: the platform does not say."""
        ...
