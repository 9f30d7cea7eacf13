"""Nodes and links that are slow: found by measuring them, not by what a job does."""
