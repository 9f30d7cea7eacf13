"""Files of cuts for nodes of other machines: the master serves its own, and says who else does."""

from typing import TYPE_CHECKING

from paceline.base.jobdir import JobDir
from paceline.cuts.store import LocalCuts
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentHello, FileServers
from paceline.wire.spec import load

if TYPE_CHECKING:  # most masters need no data plane, which takes its time to import
    from paceline.cuts.serving import FileServer


class CutsServed:
    """Begins to serve when the first such node says hello.

    Args:
        job: of this machine.
        cuts: of this machine.
    """

    def __init__(self, job: JobDir, cuts: LocalCuts) -> None:
        self._job, self._cuts = job, cuts
        self._server: FileServer | None = None
        #: Address of the files and stream of the agent, by node.
        self._nodes: dict[str, tuple[str, AgentStream]] = {}

    def hello(self, stream: AgentStream, hello: AgentHello) -> None:
        """An agent is there; tell all that concerns who serves files now."""
        if not hello.files:
            return
        self._nodes[hello.node] = hello.files, stream
        self._tell()

    def gone(self, node: str) -> None:
        """Forget a node whose agent's stream has ended."""
        self._nodes.pop(node, None)

    def _tell(self) -> None:
        if self._server is None:
            # Imported late, with ZMQ, see above.
            from paceline.cuts.serving import FileServer
            from paceline.wire.data_plane import bind_address

            spec, run_dir, secret = load(self._job.spec), self._job.run_dir, self._job.secret()
            bind = bind_address(spec.data_plane, spec.listen, run_dir, "master-files")
            self._server = FileServer(bind, secret, self._job, self._cuts, takes=True)
        nodes = {name: address for name, (address, _) in self._nodes.items()}
        for _, stream in self._nodes.values():
            stream.send_nowait(FileServers(master=self._server.address, nodes=nodes))

    def close(self) -> None:
        """The job has ended."""
        if self._server is not None:
            self._server.close()
