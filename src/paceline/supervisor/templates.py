"""The templates of a job on this machine: started with its first master, ended with the job.

The supervisor makes the sockets, so that agents can ask before a template has imported anything.
A template that dies is not started again: agents then start zygotes of their own. The kernel ends
it with the supervisor.
"""

import contextlib
import os
import socket
import subprocess

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
                started.append(_start(job, node, spec))
    return started


def _start(job: JobDir, node: str, spec: JobSpec) -> subprocess.Popen[bytes]:
    environment = {**process_environment(job, node, spec), **room_for_node()}
    del environment[NODE]
    path = template_socket(job, kind_of(node, spec))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(socket.SOMAXCONN)
        own = ["--listen", str(listener.fileno()), "--parent", str(os.getpid())]
        arguments = [*own, *import_arguments(node, spec)]
        log = job.logs / "agents.log"
        return start_detached(MODULE, arguments, job.path, log, environment, [listener.fileno()])
