"""The template of a job's zygotes on one machine: imports once, then forks a zygote for each agent.

``python -m paceline.runtime.process.zygote --listen N --parent PID``: PID has made the socket, and
the kernel ends the template with it. Zygotes live on, each with the agent that asked for it. Has
one thread at every fork, as a zygote has.
"""

import os
import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from paceline.base.processes import JOB_DIR, NODE, die_with_parent, peer_of, show_node
from paceline.runtime.process.output import print_to
from paceline.wire.zygote import Warm, receive_node


def follow(parent: int) -> None:
    """Have the kernel end this process with the one that started it."""
    die_with_parent()
    if os.getppid() != parent:  # it was too late for that
        os._exit(0)


def fork_zygotes(listener: socket.socket, environment: str) -> tuple[socket.socket, Warm]:
    """Fork for each connection; return in the forks alone, as the zygotes of their nodes.

    Args:
        listener: where agents connect.
        environment: digest of what was imported with.

    Returns:
        The connection to the agent, and what to tell it.
    """
    # Nobody waits for zygotes, whose agents see their ends: the kernel must reap them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        # Without a fork the agent sees the connection end, and starts a zygote itself.
        with suppress(OSError):
            if os.fork() == 0:
                break
        connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    return connection, _become_zygote(connection, environment)


def _become_zygote(pair: socket.socket, environment: str) -> Warm:
    started_s = time.monotonic()
    _, user = peer_of(pair)
    node = receive_node(pair) if user == os.getuid() else None
    if node is None or node.environment != environment:
        os._exit(0)
    os.setsid()
    for path in node.join:
        Path(path).write_text("0")
    show_node(node.node, None if os.environ[JOB_DIR] == node.job_dir else node.job_dir)
    os.environ.update({NODE: node.node, JOB_DIR: node.job_dir})
    print_to(node.log)
    shared_bytes = _anonymous_bytes()
    return Warm(pid=os.getpid(), import_s=time.monotonic() - started_s, shared_bytes=shared_bytes)


def _anonymous_bytes() -> int:
    """Memory of this process that is no page of a file; 0: the kernel does not say."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
