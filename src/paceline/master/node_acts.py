"""What a feature may order of a job's nodes: how many there are, and what each of them may use."""

from paceline.master.members import MembersEdge
from paceline.master.node_sizes import NodeSizes
from paceline.wire.client import ResizeNodes
from paceline.wire.spec import NodeSpec


class NodeActs:
    """Orders about nodes, step by step, for features that decide about the job's size.

    Unlike the orders of a person (`Core.order`) an act does not check what else is under way: the
    feature looks, and waits. `paceline.master.orders` has the checks of a number of nodes.
    """

    def __init__(self, members: MembersEdge, sizes: NodeSizes) -> None:
        self._members, self._sizes = members, sizes

    def limits(self, role: str) -> NodeSpec:
        """Return what the nodes of a role may use, as ordered last."""
        return self._sizes.of(role)

    @property
    def is_resizing(self) -> bool:
        """True: the limits of a node are about to change, or it is still to move."""
        return self._sizes.is_changing

    def resize(self, wanted: ResizeNodes, *, by_itself: bool = False) -> None:
        """Give the nodes of a role other limits.

        Args:
            wanted: the role and its limits.
            by_itself: True: what found no place before is not tried again.

        Raises:
            ConfigError: it cannot be done.
        """
        self._sizes.order(wanted, by_itself=by_itself)

    def scale(self, workers: int) -> None:
        """Set the number of workers."""
        self._members.scale(workers)

    def scale_servers(self, servers: int) -> None:
        """Set the number of servers.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        self._members.scale_servers(servers)

    def withdraw_servers(self) -> bool:
        """Withdraw the change of the servers that is under way.

        Returns:
            Whether it is over; if not, ask again.
        """
        return self._members.withdraw_servers()

    def restart(self, node: str, reason: str) -> None:
        """End a node in order and have it start again; a server's share of the model moves first.

        Raises:
            ConfigError: it cannot be done now, or not in this job.
        """
        self._members.restart(node, reason)
