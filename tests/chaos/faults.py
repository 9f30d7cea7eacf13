"""Seeded fault plans against a running job, and proof that each fault fired.

A fault is a real one: a signal to a real process, a cgroup quota, a connection shut down in the
middle or slowed to a trickle (the descriptor is duplicated out of the process with pidfd_getfd), a
network device shaped or taken down, a disk filled up, or a bit of a file turned over.
"""

import contextlib
import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.base.cgroups import find_node_group
from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import kill_quietly
from paceline.jobs.launch import ask
from paceline.wire.client import Done, JobStatus, Replace, Scale
from paceline.wire.spec import load

SYS_PIDFD_GETFD = 438
SO_MAX_PACING_RATE = 47
UNPACED = (1 << 64) - 1
TRICKLE = {"worker": 100_000, "server": 100_000, "agent": 1_000, "master": 1_000}
"""Bytes per second that a delayed process sends on each connection. The kernel lets one packet
(64 KiB at most, on loopback) go at once and makes the next wait for the first one's time, also when
the pace is taken back meanwhile: tensors need a faster trickle than reports if it is to end soon."""
LOST_AFTER_S = 1.0
"""What chaos jobs set as the time after which a silent node counts as unreachable."""
SILENCE_S = 2.0
ROLES = ("worker", "server", "agent", "master", "supervisor")
MOST_SERVERS = 4
"""To which a job is scaled, or one more if it has as many."""
SURROUNDINGS = ("link", "disk")
"""What a job needs and is no process."""
OWN_NETWORK = "CHAOS_OWN_NETWORK"
LINK_RATE = "4mbit"
"""What is left of the loopback device of a namespace when it is slow."""
TIMED = 0.25
"""Part of the faults that fire at a time instead of at a number of samples."""


def kinds_for(role: str, *, tcp: bool) -> tuple[str, ...]:
    """What can be done to whom; ``tcp``: tensors travel by it, and only then can they be delayed.

    Silence: process and agent are stopped for longer than the job's `lost_after_s`. Delay: what the
    process sends by TCP comes in a trickle.
    """
    if role == "supervisor":
        return ("kill",)
    if role in ("agent", "master"):
        return ("kill", "pause", "cut", "delay")
    return ("kill", "pause", "slow", "cut", "silence", *(("delay",) if tcp else ()))


@dataclass(frozen=True)
class Fault:
    """One planned fault: what, on whom, when."""

    kind: str
    role: str
    index: int
    """Which worker, server or agent, counted among those there are."""
    at_committed: int | None
    """Fires when this many samples are in the model; None: ``at_s`` counts."""
    at_s: float
    """Fires so long after the first sample was seen in the model."""
    for_s: float
    """How long a pause, a slowing or a delay lasts."""

    def is_due(self, committed: int, since_first_s: float) -> bool:
        """Whether it is to fire now."""
        if self.at_committed is None:
            return since_first_s >= self.at_s
        return committed >= self.at_committed

    def __str__(self) -> str:
        timed = self.at_committed is None
        when = f"{self.at_s:.2f} s after the first" if timed else f"at {self.at_committed} samples"
        return f"{self.kind} {self.role}[{self.index}] {when}"


def plan(
    seed: int, *, num_samples: int, num_faults: int, training_s: float, tcp: bool = False
) -> list[Fault]:
    """A pure function of its arguments.

    Args:
        seed: of everything.
        num_samples: that will be in the model in the end.
        num_faults: how many faults.
        training_s: seconds that the job trains at least.
        tcp: whether tensors travel by TCP.
    """
    # Not the sequence of the case's own choices, which would tie the role to the mode.
    rng = random.Random(f"plan {seed}")
    faults = []
    for _ in range(num_faults):
        role = rng.choice(ROLES)
        kind = rng.choice(kinds_for(role, tcp=tcp))
        timed = rng.random() < TIMED
        faults.append(
            Fault(
                kind=kind,
                role=role,
                index=rng.randrange(8),
                at_committed=None
                if timed
                else rng.randrange(num_samples // 10, num_samples * 3 // 4),
                at_s=rng.uniform(0.0, 0.75 * training_s) if timed else 0.0,
                for_s=rng.uniform(0.2, 0.8) + (SILENCE_S if kind == "silence" else 0.0),
            )
        )
    return faults


def moves(seed: int, *, num_samples: int, count: int) -> list[Fault]:
    """Servers come, go and are replaced while the rest of a plan goes on; pure, as `plan`."""
    rng = random.Random(f"moves {seed}")
    return [
        Fault(
            kind=rng.choice(("replace", "scale", "scale")),
            role="server",
            index=rng.randrange(8),
            at_committed=rng.randrange(num_samples // 20, num_samples // 2),
            at_s=0.0,
            for_s=0.0,
        )
        for _ in range(count)
    ]


def surroundings(
    seed: int, role: str, kinds: Sequence[str], *, num_samples: int, count: int
) -> list[Fault]:
    """The network or the disk fails for a while; a pure function as `plan`.

    See `own_network` and `small_disk`.
    """
    rng = random.Random(f"{role} {seed}")
    return [
        Fault(
            kind=rng.choice(kinds),
            role=role,
            index=0,
            at_committed=rng.randrange(num_samples // 20, num_samples // 2),
            at_s=0.0,
            for_s=rng.uniform(0.2, 2.0),
        )
        for _ in range(count)
    ]


def own_network() -> None:
    """Go on in a network of this process's own, where links can be broken; needs root.

    Starts the program anew: what a namespace is made for must have no threads.
    """
    if OWN_NETWORK not in os.environ:
        os.environ[OWN_NETWORK] = "1"
        command = ["unshare", "--net", sys.executable, *sys.orig_argv[1:]]
        os.execvp(command[0], command)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 64 MiB at this folder, which can be filled; needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "paceline-chaos", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def break_link(kind: str) -> Callable[[], None]:
    """Slow down, or take away, the loopback device of this namespace; how to take that back."""
    shaped = ["tc", "qdisc", "replace", "dev", "lo", "root", "tbf"]
    does, undoes = {
        "slow": (
            [*shaped, "rate", LINK_RATE, "burst", "128kb", "latency", "200ms"],
            ["tc", "qdisc", "del", "dev", "lo", "root"],
        ),
        "down": (["ip", "link", "set", "lo", "down"], ["ip", "link", "set", "lo", "up"]),
    }[kind]
    subprocess.run(does, check=True, capture_output=True)

    def undo() -> None:
        # Of two that overlap the first to end takes both back.
        subprocess.run(undoes, check=False, capture_output=True)

    return undo


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
        self.damaged: set[Path] = set()
        """Cuts that no longer hold what was written."""
        self.first_s: float | None = None
        """When the first sample was seen in the model."""

    def look(self, status: JobStatus) -> None:
        """Fire one fault that is due and has a victim; call it often."""
        now_s = time.monotonic()
        if self.first_s is None:
            if not status.committed:
                return
            self.first_s = now_s
        since_s = now_s - self.first_s
        for fault in [f for f in self.waiting if f.is_due(status.committed, since_s)]:
            pid = self._victim(fault, status)
            if pid is None or not is_alive(pid):  # died of an earlier fault: wait for its successor
                continue
            try:
                undo = self._fire(fault, pid, status)
            except (ProcessLookupError, FileNotFoundError):  # it has just died
                continue
            if undo is None:
                continue
            self.waiting.remove(fault)
            self.fired.append((fault, pid))
            self.active.append(Injection(fault, pid, now_s + fault.for_s, undo))
            return

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
        if fault.role in ("master", *SURROUNDINGS):
            return status.master_pid
        if fault.role == "supervisor":
            return supervisor_pid(self.job)
        role = "worker" if fault.role == "worker" else "server" if fault.role == "server" else ""
        nodes = [n for n in status.nodes if n.state == "running" and n.role.startswith(role)]
        if not nodes:
            return None
        node = nodes[fault.index % len(nodes)]
        return (node.agent_pid if fault.role == "agent" else node.pid) or None

    def _fire(self, fault: Fault, pid: int, status: JobStatus) -> Callable[[], None] | None:
        """Do it; how to take it back, or None: there was nothing to do it to."""
        if fault.role == "link":
            return break_link(fault.kind)
        if fault.role == "disk":
            return self._hurt_disk(fault.kind, status)
        if fault.kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault.kind == "pause":
            os.kill(pid, signal.SIGSTOP)
            return lambda: quietly_continue(pid)
        elif fault.kind == "silence":
            agent = next(n.agent_pid for n in status.nodes if n.pid == pid)
            os.kill(agent, signal.SIGSTOP)
            os.kill(pid, signal.SIGSTOP)
            return lambda: quietly_continue(agent, pid)
        elif fault.kind == "slow":
            node = next(n.node for n in status.nodes if n.pid == pid)
            group = find_node_group(self.job.job_id, node)
            group.set_cpu(0.1)
            return lambda: group.set_cpu(None)
        elif fault.kind == "cut":
            return (lambda: None) if cut_connections(pid) else None
        elif fault.kind == "replace":
            return (lambda: None) if self._replace(pid, status) else None
        elif fault.kind == "scale":
            return (lambda: None) if self._scale(1 + fault.index % MOST_SERVERS, status) else None
        elif fault.kind == "delay":
            paced = pace_connections(pid, TRICKLE[fault.role])
            return (lambda: unpace_quietly(pid)) if paced else None
        return lambda: None

    def _hurt_disk(self, kind: str, status: JobStatus) -> Callable[[], None] | None:
        """Fill the disk of the cuts; or damage the newest cut, and kill all who know better."""
        folder = Path(load(self.job.spec).checkpoint.folder or self.job.cuts)
        if kind == "full":
            filler = folder / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            return lambda: filler.unlink(missing_ok=True)
        cuts = sorted({path.parent for path in folder.glob("*/manifest.json")} - self.damaged)
        if len(cuts) < 2:  # there must be one to go back to
            return None
        newest = next(cuts[-1].glob("*.safetensors"))
        image = bytearray(newest.read_bytes())
        image[len(image) // 2] ^= 1
        newest.write_bytes(image)
        self.damaged.add(cuts[-1])
        for node in status.nodes:
            if node.role == "worker" and node.pid:
                kill_quietly(node.pid)
        return lambda: None

    def _scale(self, count: int, status: JobStatus) -> bool:
        """Have the master change the number of servers; False: it does not answer."""
        present = sum(node.role == "server" for node in status.nodes)
        count += count == present
        with contextlib.suppress(PacelineError, OSError):
            return isinstance(ask(self.job, Scale(servers=count), timeout_s=1.0), Done)
        return False

    def _replace(self, pid: int, status: JobStatus) -> bool:
        """Have the master replace a server; False: it does not answer. It may refuse."""
        node = next(n.node for n in status.nodes if n.pid == pid)
        with contextlib.suppress(PacelineError, OSError):
            return isinstance(ask(self.job, Replace(node=node), timeout_s=1.0), Done)
        return False


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


def is_alive(pid: int) -> bool:
    """Whether it can still be hurt: a zombie takes signals, and nothing happens."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def quietly_continue(*pids: int) -> None:
    """SIGCONT to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cut_connections(pid: int) -> int:
    """Shut down every connected socket of a process, as a broken network would; how many."""
    num_cut = 0
    for sock in connections(pid):
        with contextlib.suppress(OSError):  # its peer was faster
            sock.shutdown(socket.SHUT_RDWR)
            num_cut += 1
    return num_cut


def pace_connections(pid: int, bytes_per_s: int) -> int:
    """Have a process's TCP connections send at this rate at most; how many there are.

    The kernel paces by itself, so that it works on loopback, too, but for the first ten packets of
    a connection. Unix sockets cannot be paced.
    """
    num_paced = 0
    for sock in connections(pid):
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            rate = bytes_per_s.to_bytes(8, sys.byteorder)
            sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            if bytes_per_s == UNPACED:
                forget_pace(sock)
            num_paced += 1
    return num_paced


def forget_pace(sock: socket.socket) -> None:
    """Let a connection be fast at once: else what piled up goes at the old rate.

    Only starting bbr computes the rate anew; without it the delay lasts longer.
    """
    for name in (b"reno", b"bbr"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def unpace_quietly(pid: int) -> None:
    """Take the pace back, if the process is still there."""
    if is_alive(pid):
        with contextlib.suppress(OSError):
            pace_connections(pid, UNPACED)


def connections(pid: int) -> Iterator[socket.socket]:
    """Duplicates of a process's connected stream sockets, each closed when the next is taken.

    None must be kept: the connection would outlive its process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
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
                    yield copy
    finally:
        os.close(pidfd)


def _peer(sock: socket.socket) -> bool:
    """Whether it is a named connection: pairs within one node (agent and zygote) are left alone."""
    try:
        return bool(sock.getpeername()) or bool(sock.getsockname())
    except OSError:
        return False
