"""Files of cuts for nodes of other machines: the master serves its own, and says who else does."""

import math
from typing import TYPE_CHECKING

from paceline.base.jobdir import JobDir
from paceline.cuts.store import LocalCuts
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentHello, FileServers
from paceline.wire.spec import load

if TYPE_CHECKING:  # most masters need no data plane, which takes its time to import
    from paceline.cuts.serving import FileServer


TELL_S = 1.0
"""Seconds between two words to all nodes on which others have come and gone. Until then a node
fetches from the master what another node has made."""


class CutsServed:
    """Begins to serve when the first such node says hello.

    A node that comes hears of all others at once. They hear of it with others that came and went
    meanwhile: a word to all nodes for each node that comes would be a million words for thousand
    nodes.

    Args:
        job: of this machine.
        cuts: of this machine.
    """

    def __init__(self, job: JobDir, cuts: LocalCuts) -> None:
        self._job, self._cuts = job, cuts
        self._server: FileServer | None = None
        #: Address of the files and stream of the agent, by node.
        self._nodes: dict[str, tuple[str, AgentStream]] = {}
        #: Address of each node of which the others have yet to hear; empty: it is gone.
        self._untold: dict[str, str] = {}
        self._told_s = -math.inf

    def hello(self, stream: AgentStream, hello: AgentHello) -> None:
        """An agent is there; tell it who serves files now."""
        if not hello.files:
            return
        self._nodes[hello.node] = hello.files, stream
        self._untold[hello.node] = hello.files
        nodes = {name: address for name, (address, _) in self._nodes.items()}
        stream.send_nowait(FileServers(master=self._address(), nodes=nodes))

    def gone(self, node: str) -> None:
        """Forget a node whose agent's stream has ended."""
        if self._nodes.pop(node, None) is not None:
            self._untold[node] = ""

    def tick(self, now_s: float) -> None:
        """Tell all nodes who has come and gone."""
        if not self._untold or now_s - self._told_s < TELL_S:
            return
        self._told_s, nodes, self._untold = now_s, self._untold, {}
        changes = FileServers(master=self._address(), nodes=nodes, changes=True)
        for _, stream in self._nodes.values():
            stream.send_nowait(changes)

    def _address(self) -> str:
        """Return where the master serves; begin to, if it does not yet."""
        if self._server is None:
            # Imported late, with ZMQ, see above.
            from paceline.cuts.serving import FileServer
            from paceline.wire.data_plane import bind_address

            spec, run_dir, secret = load(self._job.spec), self._job.run_dir, self._job.secret()
            bind = bind_address(spec.data_plane, spec.listen, run_dir, "master-files")
            self._server = FileServer(bind, secret, self._job, self._cuts, takes=True)
        return self._server.address

    def close(self) -> None:
        """The job has ended."""
        if self._server is not None:
            self._server.close()
