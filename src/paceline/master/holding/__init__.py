"""Edges, one for each holder of state: what the master does for it alone."""

from paceline.master.holding.edge import HolderEdge
from paceline.master.holding.group import GroupEdge, GroupEdgeTakes
from paceline.master.holding.servers import ServerEdge, ServerEdgeTakes
from paceline.wire.strategies import HolderName

EdgesTakes = ServerEdgeTakes | GroupEdgeTakes

EDGES: dict[HolderName, type[HolderEdge]] = {
    "nobody": ServerEdge,  # without a server, which nobody asks for anything
    "servers": ServerEdge,
    "replicas": GroupEdge,
    "shards": GroupEdge,
}
"""Edge for each holder that the row of a strategy names."""
