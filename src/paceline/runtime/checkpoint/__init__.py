"""Cuts: copies of the state that survive, in the memory of nodes and on disk."""
