"""The templates of a job on this machine: started with its first master, ended with the job.

Who starts one makes its socket, so that agents can ask before the template has imported anything.
A template that dies is not started again: agents then start zygotes of their own. The kernel ends
it with the supervisor, or with the command that runs several workers of another machine.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import NODE, room_for_node, start_detached
from paceline.jobs.zygotes import (
    MODULE,
    has_template,
    import_arguments,
    kind_of,
    process_environment,
    template_socket,
)
from paceline.wire.spec import JobSpec, load


def start_templates(job: JobDir) -> list[subprocess.Popen[bytes]]:
    """Start one for each kind of zygote that the nodes of the job can be forks of."""
    try:
        spec = load(job.spec)
    except (OSError, PacelineError):  # the master says so
        return []
    if not spec.is_on_one_machine or job.taken_over.exists():
        return []
    nodes = ["worker-0", "server-0"] if spec.num_servers else ["worker-0"]
    started = []
    with contextlib.suppress(OSError):  # nodes do without
        for node in nodes:
            if has_template(node, spec):
                started.append(start_template(node, spec, [job]))
    return started


def start_template(node: str, spec: JobSpec, jobs: Sequence[JobDir]) -> subprocess.Popen[bytes]:
    """Start the template of all nodes of a kind; it ends with this process.

    Args:
        node: one of them.
        spec: of the job.
        jobs: its directory, or those of the nodes where these have directories of their own.

    Raises:
        OSError: it cannot be started.
    """
    first, *others = jobs
    environment = {
        **process_environment(first, node, spec),
        **room_for_node(job.path for job in jobs),
    }
    del environment[NODE]
    kind = kind_of(node, spec)
    path = template_socket(first, kind)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(socket.SOMAXCONN)
        for other in others:
            link = template_socket(other, kind)
            link.unlink(missing_ok=True)
            link.symlink_to(path)
        own = ["--listen", str(listener.fileno()), "--parent", str(os.getpid())]
        arguments = [*own, *import_arguments(node, spec)]
        log = first.logs / "agents.log"
        # Of nodes with directories of their own it belongs to none: its socket stands for one.
        home = path if others else first.path
        return start_detached(MODULE, arguments, home, log, environment, [listener.fileno()])
