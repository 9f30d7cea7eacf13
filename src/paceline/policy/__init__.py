"""Decisions: observation in, actions out; no I/O, no clock, no randomness of their own."""
