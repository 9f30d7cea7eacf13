"""Cuts: when the next one is due, which are valid, and the one on its way."""
