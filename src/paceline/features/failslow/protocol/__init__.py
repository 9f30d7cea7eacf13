"""Machines of fail-slow, without sockets, clocks or files."""
