"""Processes of a job as the operating system shows them: starting, finding, locking, watching.

Every process of a job carries ``PACELINE_JOB_DIR`` in the environment it was started with, and so
do its children, whatever session or group they moved to: this is how a job finds all it started,
also after the death of those who knew.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec

from paceline.base.disk import is_refusal

JOB_DIR = "PACELINE_JOB_DIR"
NODE = "PACELINE_NODE"
ROOM = "PACELINE_NODE_ROOM"
"""A process that is started with it has room in its environment for `show_node`."""
_ROOM_FOR = 40
_ROOM = re.compile(rf"{ROOM}=\.+\0".encode())
_PEER = struct.Struct("3i")

SAFE_PATH = ("-P",)
"""Options of our Python processes: a ``queue.py`` in the current directory must not become ours."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def can_enter(folder: str | None) -> bool:
    """Whether a process of this user could have it as its working directory."""
    return folder is not None and os.path.isdir(folder) and os.access(folder, os.X_OK)


def reset_peak_memory() -> None:
    """Reset `peak_memory_bytes`, which otherwise covers the whole life of the process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """The most memory that this process has had since; 0: the kernel does not say."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


class FoundProcess(msgspec.Struct, frozen=True):
    """A live process of a job."""

    pid: int
    argv: tuple[str, ...]
    node: str
    """Empty for a process of the job as a whole."""

    def runs(self, module: str) -> bool:
        """Whether it was started as ``python -m module``."""
        return ("-m", module) in zip(self.argv, self.argv[1:], strict=False)


def find_job_processes(job_dir: Path) -> list[FoundProcess]:
    """All live processes of this user that belong to the job, the caller excepted."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = (_read_process(pid, job_dir) for pid in pids if pid != os.getpid())
    return [process for process in found if process is not None]


@cache
def this_machine() -> str:
    """Name this machine, as long as it is up, and the space of its process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def children_of(parent: int, module: str) -> list[int]:
    """The processes that this one has started as ``python -m module``, and that live."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            is_module = (b"-m", module.encode()) in pairwise(argv)
            if int(fields[1]) == parent and is_module:
                found.append(pid)
    return found


def find_job_process(pid: int, job_dir: Path) -> FoundProcess | None:
    """The process ``pid`` if it lives and belongs to the job; numbers are used again."""
    return _read_process(pid, job_dir)


def _read_process(pid: int, job_dir: Path) -> FoundProcess | None:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        # Empty for a zombie, which is as good as gone.
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if os.fsencode(f"{JOB_DIR}={job_dir}") not in pairs:
            return None
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    prefix = f"{NODE}=".encode()
    node = next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), b"")
    return FoundProcess(pid, tuple(os.fsdecode(arg) for arg in argv), os.fsdecode(node))


def room_for_node(job_dirs: Iterable[Path] = ()) -> dict[str, str]:
    """Return the environment that a process needs so that its forks can `show_node`.

    ``job_dirs``: of their nodes, where these have jobs' directories of their own.
    """
    longest = max((len(os.fsencode(path)) for path in job_dirs), default=0)
    return {ROOM: "." * (_ROOM_FOR + longest)}


def show_node(node: str, job_dir: str | None = None) -> None:
    """Have the kernel show this fork as a process of the node, to `find_job_processes`.

    The kernel shows the environment that a process was started with, where it lies in memory; so
    that is what changes here, not ``os.environ``.

    Args:
        node: its name.
        job_dir: of the node, if it is another one than that of the process that was forked.

    Raises:
        OSError: the environment has no room for it, or the kernel does not say where it lies.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    found = _ROOM.search(ctypes.string_at(start, end - start)) if start else None
    own = "" if job_dir is None else f"{JOB_DIR}={job_dir}\0"
    shown = os.fsencode(f"{NODE}={node}\0{own}")
    if found is None or len(shown) > len(found[0]):
        raise OSError(f"the environment of process {os.getpid()} has no room for {node}")
    ctypes.memmove(start + found.start(), shown.ljust(len(found[0]), b"\0"), len(found[0]))


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a unix socket."""
    options = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(options)
    return pid, uid


def kill_quietly(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone.

    Raises:
        ValueError: it is the number of no process; see `_check_number`.
    """
    _check_number(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group_quietly(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group that may be gone.

    Raises:
        ValueError: as `kill_quietly`.
    """
    _check_number(group)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _check_number(pid: int) -> None:
    """Refuse what is no process: 0 stands for the caller's own group, -1 for everything."""
    if pid < 1:
        raise ValueError(f"got process number {pid}, expected that of a process: at least 1")


def start_detached(
    module: str,
    args: Sequence[str],
    job_dir: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``python -m module args`` of a job in a session of its own, output appended to ``log``.

    It outlives the caller's terminal, and keeps no directory of the caller's in use. The signal
    mask is cleared: a caller that waits for blocked signals must not pass that on.

    Args:
        module: what to run.
        args: its arguments.
        job_dir: of the job that the process belongs to.
        log: takes what it prints.
        env: its environment; None: the caller's.
        descriptors: it has these of the caller's, too.
    """
    with _open_log(log) as output:
        command = [sys.executable, *SAFE_PATH, "-m", module, *args]
        return _start_detached(command, job_dir, output, output, env, descriptors)


def start_grandchild(
    module: str,
    args: Sequence[str],
    job_dir: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], int]:
    """Do as `start_detached`, for a caller whose children somebody may kill.

    Returns:
        A shell that ends as the process does (`code_of_shell`), and the process.

    Raises:
        OSError: it did not start.
    """
    # One text: the shell must not look like a process that runs the module.
    command = shlex.join([sys.executable, *SAFE_PATH, "-m", module, *args])
    script = ["/bin/sh", "-c", f"{command} >&2 & echo $!; wait $!"]
    with _open_log(log) as output:
        shell = _start_detached(script, job_dir, subprocess.PIPE, output, env, descriptors)
    assert shell.stdout is not None
    with shell.stdout as told:
        line = told.readline()
    if not line:
        raise OSError(f"python -m {module}: its shell ended with code {shell.wait()}; see {log}")
    return shell, int(line)


def code_of_shell(code: int) -> int:
    """Return the code of the process that a shell has run; negative: the signal that ended it."""
    return 128 - code if code > 128 else code


class DetachedProcess(subprocess.Popen[bytes]):
    """A process that outlives whoever started it, and may be forgotten while it runs.

    A `subprocess.Popen` warns when it is forgotten. This one is only reaped by the next that this
    process starts, as any.
    """

    def __del__(self) -> None:
        super().__del__(_warn=_say_nothing)  # type: ignore[call-arg]


def _say_nothing(*_args: object, **_kwargs: object) -> None:
    """Take a warning."""


def _start_detached(
    command: Sequence[str],
    job_dir: Path,
    stdout: BinaryIO | int,
    stderr: BinaryIO,
    env: Mapping[str, str] | None,
    descriptors: Sequence[int],
) -> DetachedProcess:
    environment = {
        **(os.environ if env is None else env),
        JOB_DIR: str(job_dir),
        "OPENBLAS_NUM_THREADS": "1",  # its pool of threads takes a third of numpy's import
    }
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        return DetachedProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=descriptors,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _open_log(log: Path) -> BinaryIO:
    """The log, or nowhere: a disk that refuses it is no reason not to start."""
    try:
        log.parent.mkdir(exist_ok=True)
        return log.open("ab")
    except OSError as error:
        if not is_refusal(error):
            raise
        return open(os.devnull, "ab")


def try_lock(path: Path) -> int | None:
    """Take the lock file's lock without waiting: its descriptor (close to release), or None.

    The kernel releases it when its holder dies, however it dies.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not is_refusal(error):
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # to lock it, that will do
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock at this moment; nobody does where there is no folder."""
    try:
        descriptor = try_lock(path)
    except FileNotFoundError:
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies (and so have to reap them).

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")


def _prctl(option: int, value: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({name})")


class ProcessWatch:
    """Calls back once, in the event loop, when a process ends; it need not be a child."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        """``ended`` is called at once (from the loop) if there is no such process any more."""
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = -1
            self._loop.call_soon(ended)
            return
        self._loop.add_reader(self._descriptor, self._on_end)

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_end(self) -> None:
        self.close()
        self._ended()
