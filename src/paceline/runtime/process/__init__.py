"""The training process of a node: its fork, its link to the agent, its end."""
