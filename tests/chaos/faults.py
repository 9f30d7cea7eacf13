"""Seeded fault plans against a running job, and proof that each fault fired.

A fault is a real one: a signal to a real process, a cgroup quota, or a connection shut down in the
middle (the descriptor is duplicated out of the process with pidfd_getfd and shut down).
"""

import ctypes
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.base.cgroups import find_node_group
from paceline.base.jobdir import JobDir
from paceline.wire.client import JobStatus

SYS_PIDFD_GETFD = 438
LOST_AFTER_S = 1.0
"""What chaos jobs set as the time after which a silent node counts as unreachable."""
SILENCE_S = 2.0
KINDS = ("kill", "pause", "slow", "cut", "silence")
"""Silence: process and agent are stopped for longer than the job's `lost_after_s`."""
ROLES = ("worker", "server", "agent", "master", "supervisor")


@dataclass(frozen=True)
class Fault:
    """One planned fault: what, on whom, when."""

    kind: str
    role: str
    index: int
    """Which worker, server or agent, counted among those there are."""
    at_committed: int
    """Fires when this many samples are in the model."""
    for_s: float
    """How long a pause or a slowing lasts."""

    def __str__(self) -> str:
        return f"{self.kind} {self.role}[{self.index}] at {self.at_committed} samples"


def plan(
    seed: int, *, num_samples: int, num_faults: int, roles: tuple[str, ...] = ROLES
) -> list[Fault]:
    """A pure function of its arguments: faults in the order in which they fire."""
    rng = random.Random(seed)
    faults = []
    for _ in range(num_faults):
        role = rng.choice(roles)
        kinds = KINDS if role in ("worker", "server") else ("kill", "pause", "cut")
        if role == "supervisor":
            kinds = ("kill",)
        kind = rng.choice(kinds)
        faults.append(
            Fault(
                kind=kind,
                role=role,
                index=rng.randrange(8),
                at_committed=rng.randrange(num_samples // 10, num_samples * 3 // 4),
                for_s=rng.uniform(0.2, 0.8) + (SILENCE_S if kind == "silence" else 0.0),
            )
        )
    return sorted(faults, key=lambda fault: fault.at_committed)


@dataclass
class Injection:
    """A fault that fired, and how to take it back."""

    fault: Fault
    pid: int
    undo_at_s: float
    undo: Callable[[], None]


class Injector:
    """Fires a plan against one job as its progress reaches the planned points."""

    def __init__(self, job: JobDir, faults: list[Fault]) -> None:
        self.job = job
        self.waiting = list(faults)
        self.fired: list[tuple[Fault, int]] = []
        self.active: list[Injection] = []

    def look(self, status: JobStatus) -> None:
        """Fire what is due; call it often."""
        now_s = time.monotonic()
        if not self.waiting or status.committed < self.waiting[0].at_committed:
            return
        pid = self._victim(self.waiting[0], status)
        if pid is None:
            return
        fault = self.waiting.pop(0)
        try:
            undo = self._fire(fault, pid, status)
        except ProcessLookupError:  # it died of an earlier fault: try again on its successor
            self.waiting.insert(0, fault)
            return
        self.fired.append((fault, pid))
        self.active.append(Injection(fault, pid, now_s + fault.for_s, undo))

    def take_back(self) -> None:
        """End pauses and slowings whose time is up; call it often, whoever answers."""
        for injection in [i for i in self.active if i.undo_at_s <= time.monotonic()]:
            self.active.remove(injection)
            injection.undo()

    def finish(self) -> None:
        """Take back what is still active."""
        for injection in self.active:
            injection.undo()
        self.active.clear()

    def _victim(self, fault: Fault, status: JobStatus) -> int | None:
        if fault.role == "master":
            return status.master_pid
        if fault.role == "supervisor":
            return supervisor_pid(self.job)
        role = "worker" if fault.role == "worker" else "server" if fault.role == "server" else ""
        nodes = [n for n in status.nodes if n.state == "running" and n.role.startswith(role)]
        if not nodes:
            return None
        node = nodes[fault.index % len(nodes)]
        return (node.agent_pid if fault.role == "agent" else node.pid) or None

    def _fire(self, fault: Fault, pid: int, status: JobStatus) -> Callable[[], None]:
        if fault.kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault.kind == "pause":
            os.kill(pid, signal.SIGSTOP)
            return lambda: quietly_continue(pid)
        elif fault.kind == "silence":
            agent = next(n.agent_pid for n in status.nodes if n.pid == pid)
            os.kill(agent, signal.SIGSTOP)
            os.kill(pid, signal.SIGSTOP)
            return lambda: (quietly_continue(agent), quietly_continue(pid))[0]
        elif fault.kind == "slow":
            node = next(n.node for n in status.nodes if n.pid == pid)
            group = find_node_group(self.job.job_id, node)
            group.set_cpu(0.1)
            return lambda: group.set_cpu(None)
        elif fault.kind == "cut":
            cut_connections(pid)
        return lambda: None


def supervisor_pid(job: JobDir) -> int | None:
    """The process whose command line is this job's supervisor."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"paceline.supervisor" in words and str(job.path).encode() in words:
                return int(entry.name)
    return None


def quietly_continue(pid: int) -> None:
    """SIGCONT, if it is still there."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def cut_connections(pid: int) -> int:
    """Shut down every connected socket of a process, as a broken network would; how many."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    num_cut = 0
    try:
        for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if not re.match(r"socket:", target):
                continue
            fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, int(entry.name), 0)
            if fd < 0:
                continue
            with socket.socket(fileno=fd) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                if copy.type == socket.SOCK_STREAM and _peer(copy):
                    copy.shutdown(socket.SHUT_RDWR)
                    num_cut += 1
    finally:
        os.close(pidfd)
    return num_cut


def _peer(sock: socket.socket) -> bool:
    """Whether it is a named connection: pairs within one node (agent and zygote) are left alone."""
    try:
        return bool(sock.getpeername()) or bool(sock.getsockname())
    except OSError:
        return False
