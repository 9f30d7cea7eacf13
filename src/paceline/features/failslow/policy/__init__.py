"""Nodes and links that are slow: found by what a job does, and by measuring them."""
