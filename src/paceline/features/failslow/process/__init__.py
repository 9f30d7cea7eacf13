"""Fail-slow in a process: what its node can do, and the collective calls of a script."""
