"""The training process of a node as its agent holds it: forked by a zygote, signalled, collected.

Owns the zygote (started before the agent's event loop has threads, replaced when it dies), the
descriptor of the process and the evidence of its end. A process that a former agent left running
is adopted: it can be watched and signalled, but its exit code cannot be known.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import assert_never

import msgspec

from paceline.agent.facts import end_last_line, read_log_tail
from paceline.agent.stacks import capture_stacks
from paceline.agent.torchrun import torchrun_environment
from paceline.base.cgroups import NodeGroup, machine_oom_kills
from paceline.base.devices import ORDER, cores_of, gpu_index
from paceline.base.jobdir import JobDir, number_of, role_of
from paceline.base.node_files import NodeFiles
from paceline.base.numbering import NO_INC, Inc
from paceline.base.processes import (
    JOB_DIR,
    NODE,
    SAFE_PATH,
    ProcessWatch,
    find_job_process,
    find_job_processes,
    kill_group_quietly,
    kill_quietly,
)
from paceline.wire.messages.agent import ExitEvidence, StartProcess
from paceline.wire.messages.node import ProcessUp
from paceline.wire.spec import JobSpec
from paceline.wire.zygote import Died, Fork, Forked, Warm, receive_from_zygote, send

CLOSE_GRACE_S = 2.0
"""For a zygote that was hung up on to exit, interpreter shutdown with torch included."""

_DETERMINISTIC = {
    # Else the bits of a product follow where in memory its factors lie.
    "MKL_CBWR": "AUTO,STRICT",
    # What torch asks for where it uses cuBLAS.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}

_log = logging.getLogger(__name__)


def process_environment(job: JobDir, node: str, spec: JobSpec) -> dict[str, str]:
    """What every life of the node's process has in its environment."""
    cores = len(_bound_to(node, spec) or os.sched_getaffinity(0))
    on_gpu = any(gpu_index(device) is not None for device in spec.share.of(node))
    # A script of strategy script keeps what the user has exported, as under torchrun.
    exported = {} if spec.traits.trains or spec.torch_threads is not None else os.environ
    quota = spec.of_role(role_of(node)).cpu_of(number_of(node))
    threads = exported.get("OMP_NUM_THREADS", str(spec.threads(cores, quota)))
    return {
        # One BLAS thread: numpy would start a pool at its import, and the zygote has to fork.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": exported.get("MKL_NUM_THREADS", threads),
        **(_DETERMINISTIC if spec.deterministic else {}),
        # Else CUDA may count GPUs in another order than the driver, whose names jobs share.
        **({ORDER: "PCI_BUS_ID"} if on_gpu and ORDER not in os.environ else {}),
        **spec.env,
        JOB_DIR: str(job.path),
        NODE: node,
        "PACELINE_ROLE": role_of(node),
    }


class ProcessHost:
    """Runs at most one training process at a time; results come by callback, in the loop."""

    def __init__(
        self,
        job: JobDir,
        node: str,
        spec: JobSpec,
        group: NodeGroup,
        on_forked: Callable[[Inc, int], None],
        on_exited: Callable[[Inc, ExitEvidence], None],
    ) -> None:
        """``on_forked(inc, pid)``; ``on_exited(inc, evidence)``."""
        self._job = job
        self._node = node
        self._spec = spec
        self._environment = process_environment(job, node, spec)
        self._group = group
        self._files = NodeFiles(job, node)
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._loop = asyncio.get_running_loop()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._pair: socket.socket | None = None
        self._warm = False
        self._pending: Fork | None = None
        self._inc = NO_INC
        self._pid = 0
        self._pidfd = -1
        self._watch: ProcessWatch | None = None
        self._log_start = 0
        self._oom_kills_before = self._machine_oom_kills_before = 0

    def start_zygote(self) -> None:
        """Start warming up; `run` may follow at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        traits = self._spec.traits
        with theirs, self._files.log.open("ab") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, *SAFE_PATH, "-m", "paceline.runtime.zygote"]
                + ["--fd", str(theirs.fileno()), "--for", _kind_of(self._node, self._spec)]
                + ([f"--preload={traits.module}"] if traits.preloaded else [])
                + [f"--join={path}" for path in self._group.join_files]
                + [f"--core={core}" for core in _bound_to(self._node, self._spec)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        self._pair = ours
        self._warm = False
        self._loop.add_reader(ours, self._on_readable)

    def run(self, start: StartProcess) -> None:
        """Fork the process of this incarnation."""
        self._inc, self._pid = start.inc, 0
        self._log_start = end_last_line(self._files.log)
        self._count_oom_kills()
        env = {
            "PACELINE_INC": str(start.inc),
            "PACELINE_RANK": str(start.rank),
            "PACELINE_NUM_WORKERS": str(start.num_workers),
            "PACELINE_CHECK": str(int(start.check)),
        }
        if not self._spec.traits.trains:
            errors = self._job.logs / f"{self._node}.{start.inc}.error.json"
            env |= torchrun_environment(start, self._spec, self._job.job_id, errors)
        self._pending = Fork(inc=start.inc, env=env, log=str(self._files.log))
        self._send_pending()

    def adopt(self, up: ProcessUp) -> None:
        """Watch a process that a former agent of this node started."""
        self._inc = up.inc
        self._hold(up.pid)
        self._count_oom_kills()
        self._watch = ProcessWatch(up.pid, self._on_watched_end)

    def _count_oom_kills(self) -> None:
        """As a life begins: what the kernel kills from here on counts for it."""
        self._oom_kills_before = self._group.oom_kills()
        self._machine_oom_kills_before = machine_oom_kills()

    def signal(self, number: int) -> None:
        """Signal the process; SIGKILL reaches its whole group. Nothing where it is gone."""
        if self._pidfd < 0:
            return
        if number == signal.SIGKILL:
            kill_group_quietly(self._pid)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self, pid: int) -> None:
        """Kill a process, if it is one of this node."""
        found = find_job_process(pid, self._job.path)
        if found and found.node == self._node:
            kill_group_quietly(pid)

    async def stacks(self, pid: int) -> str:
        """What the threads of the process do, as text."""
        return await capture_stacks(pid, self._files.stacks)

    def kill_strays(self) -> None:
        """Kill everything of this node but its agent and zygote."""
        zygote = self._zygote.pid if self._zygote else 0
        for process in find_job_processes(self._job.path):
            if process.node == self._node and process.pid != zygote:
                kill_quietly(process.pid)

    async def close(self) -> None:
        """Hang up on the zygote and collect it."""
        if self._watch:
            self._watch.close()
        self._let_go()
        zygote = self._zygote
        self._hang_up()
        if zygote is None:
            return
        ended = asyncio.Event()
        watch = ProcessWatch(zygote.pid, ended.set)
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await ended.wait()
        except TimeoutError:
            zygote.kill()
        watch.close()
        zygote.wait()

    # ------------------------------------------------------------------ the zygote

    def _send_pending(self) -> None:
        if self._pair is None:
            self.start_zygote()
        assert self._pair is not None
        if self._pending:
            # It has died: its end is about to be read, and the request made again.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                send(self._pair, self._pending)

    def _on_readable(self) -> None:
        assert self._pair is not None
        try:
            message = receive_from_zygote(self._pair)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = None
        match message:
            case None:
                self._on_zygote_end()
            case Warm(import_s=import_s):
                self._warm = True
                _log.info("zygote_warm node=%s import_s=%.2f", self._node, import_s)
            case Forked(inc=inc, pid=pid):
                self._pending = None
                self._hold(pid)
                self._on_forked(inc, pid)
            case Died(inc=inc, status=status):
                self._finish(inc, os.waitstatus_to_exitcode(status))
            case _:
                assert_never(message)

    def _on_zygote_end(self) -> None:
        assert self._zygote is not None
        was_warm, zygote = self._warm, self._zygote
        self._hang_up()
        code = zygote.wait()
        _log.warning("zygote_died node=%s code=%d warm=%s", self._node, code, was_warm)
        if self._pending and was_warm:
            # It may have forked without a word; two processes of one incarnation must not be.
            self.kill_strays()
            self._send_pending()
        elif self._pending:
            inc, self._pending = self._pending.inc, None
            self._finish(inc, code)
        elif self._pid:
            self._watch = ProcessWatch(self._pid, self._on_watched_end)
        if was_warm and self._pair is None:
            self.start_zygote()

    def _hang_up(self) -> None:
        if self._pair is not None:
            self._loop.remove_reader(self._pair)
            self._pair.close()
        self._pair = self._zygote = None

    # ------------------------------------------------------------------ the process

    def _hold(self, pid: int) -> None:
        self._pid = pid
        # Already reaped by the zygote: its report follows.
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def _on_watched_end(self) -> None:
        self._watch = None
        if self._pid:
            kill_group_quietly(self._pid)
        self._finish(self._inc, None)

    def _finish(self, inc: Inc, code: int | None) -> None:
        """``code`` as subprocess gives it: negative for a signal; None: not known."""
        if inc != self._inc:
            return
        self._let_go()
        self.kill_strays()
        evidence = ExitEvidence(
            exit_code=None if code is None or code < 0 else code,
            signal=-code if code is not None and code < 0 else None,
            oom_kills=self._group.oom_kills() - self._oom_kills_before,
            machine_oom_kills=machine_oom_kills() - self._machine_oom_kills_before,
            log_tail=read_log_tail(self._files.log, self._log_start),
        )
        self._on_exited(inc, evidence)

    def _let_go(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pid, self._pidfd = 0, -1


def _kind_of(node: str, spec: JobSpec) -> str:
    """What the node's warm process imports: what its lives need, for imports take seconds."""
    if spec.traits.trains:
        return role_of(node)
    return "program" if spec.run_as == "program" else "script"


def _bound_to(node: str, spec: JobSpec) -> frozenset[int]:
    """The cores that a node is bound to; none: all."""
    return frozenset[int]().union(*map(cores_of, spec.share.of(node)))


def read_left_process(job: JobDir, node: str) -> ProcessUp | None:
    """The training process that a former agent of this node left running, if it still does."""
    try:
        data = NodeFiles(job, node).process.read_bytes()
        up = msgspec.json.decode(data, type=ProcessUp)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    found = find_job_process(up.pid, job.path)
    return up if found and found.node == node else None
