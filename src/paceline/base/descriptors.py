"""Open files and sockets of a process: as many as the machine allows, counted before a job starts.

Beyond the limit the kernel refuses each further file, and the error strikes what opens one next: a
log, the journal, a library. So a job that needs more than there can be does not begin.
"""

import contextlib
import resource

OWN = 32
"""Descriptors of a master without nodes."""


def raise_limit() -> int:
    """Let this process, and those that it starts, have as many as the machine allows them.

    Returns:
        That number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def needed(num_nodes: int, *, on_this_machine: bool) -> int:
    """Return how many a master needs.

    Args:
        num_nodes: each has a connection.
        on_this_machine: the end of each agent is seen by a descriptor more.
    """
    return OWN + num_nodes * (2 if on_this_machine else 1)


def complaint(num_nodes: int, *, on_this_machine: bool) -> str:
    """Say that a master of so many nodes may not have enough; empty: it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    need = needed(num_nodes, on_this_machine=on_this_machine)
    if hard == resource.RLIM_INFINITY or need <= hard:
        return ""
    return (
        f"open files (ulimit -Hn): got {hard:,}, expected {need:,} for a master of {num_nodes:,} "
        "nodes; raise the hard limit (`LimitNOFILE=` of a systemd unit, `nofile` in "
        "/etc/security/limits.conf, `docker run --ulimit nofile=`), or use fewer nodes"
    )
