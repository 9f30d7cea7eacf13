"""The agent process of a node."""
