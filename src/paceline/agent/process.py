"""The training process of a node as its agent holds it: forked by a zygote, signalled, collected.

Has the zygote started (before the agent's event loop has threads) and replaced when it dies. Owns
the descriptor of the process and the evidence of its end. A process that a former agent left
running is adopted: it can be watched and signalled, but its exit code cannot be known.
"""

import asyncio
import base64
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import assert_never

import msgspec

from paceline.agent.facts import end_last_line, read_log_tail
from paceline.agent.stacks import capture_stacks
from paceline.agent.torchrun import torchrun_environment
from paceline.agent.zygote import ZygoteLink
from paceline.base.cgroups import NodeGroup, machine_oom_kills
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.base.numbering import NO_INC, Inc
from paceline.base.processes import (
    ProcessWatch,
    find_job_process,
    find_job_processes,
    kill_group_quietly,
    kill_quietly,
)
from paceline.wire.messages.agent import ExitEvidence, StartProcess
from paceline.wire.messages.node import ProcessUp
from paceline.wire.spec import JobSpec
from paceline.wire.zygote import Died, Fork, Forked, FromZygote, Warm

_log = logging.getLogger(__name__)


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
        self._group = group
        self._files = NodeFiles(job, node)
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._zygote = ZygoteLink(
            job,
            node,
            spec,
            group.join_files,
            self._on_zygote,
            self._on_zygote_end,
            self._on_zygote_failed,
        )
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that gets the error once the node can have no process."""
        self._pending: Fork | None = None
        self._inc = NO_INC
        self._pid = 0
        self._pidfd = -1
        self._watch: ProcessWatch | None = None
        self._log_start = 0
        self._oom_kills_before = self._machine_oom_kills_before = 0

    def start_zygote(self) -> None:
        """Start warming up; `run` may follow at once."""
        self._zygote.start()

    @property
    def shared_bytes(self) -> int:
        """Memory of the node's processes that its control group does not count."""
        return self._zygote.shared_bytes

    def run(self, start: StartProcess) -> None:
        """Fork the process of this incarnation."""
        self._inc, self._pid = start.inc, 0
        self._log_start = end_last_line(self._files.log)
        self._count_oom_kills()
        env = {
            "PACELINE_INC": str(start.inc),
            "PACELINE_RANK": str(start.rank),
            "PACELINE_NUM_WORKERS": str(start.num_workers),
            "PACELINE_TOLD": base64.b64encode(msgspec.msgpack.encode(start.told)).decode(),
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
        """Note the kernel's counts of kills as a life begins: later kills count for that life."""
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
        """Return what the threads of the process do, as text."""
        return await capture_stacks(pid, self._files.stacks)

    def kill_strays(self) -> None:
        """Kill everything of this node but its agent and zygote."""
        for process in find_job_processes(self._job.path):
            if process.node == self._node and process.pid != self._zygote.pid:
                kill_quietly(process.pid)

    async def close(self) -> None:
        """Hang up on the zygote and collect it."""
        if self._watch:
            self._watch.close()
        self._let_go()
        await self._zygote.close()

    # ------------------------------------------------------------------ the zygote

    def _send_pending(self) -> None:
        if not self._zygote.is_up:
            self._zygote.start()
        elif self._pending and self._zygote.is_warm:
            self._zygote.send(self._pending)

    def _on_zygote(self, message: FromZygote) -> None:
        match message:
            case Warm():
                self._send_pending()
            case Forked(inc=inc, pid=pid):
                self._pending = None
                self._hold(pid)
                self._on_forked(inc, pid)
            case Died(inc=inc, status=status):
                self._finish(inc, os.waitstatus_to_exitcode(status))
            case _:
                assert_never(message)

    def _on_zygote_end(self, was_warm: bool, code: int | None) -> None:
        if self._pending and was_warm:
            # The zygote may have forked without a word; an incarnation must not have two processes.
            self.kill_strays()
        elif self._pending:
            inc, self._pending = self._pending.inc, None
            self._finish(inc, code)
        elif self._pid:
            self._watch = ProcessWatch(self._pid, self._on_watched_end)
        if was_warm and not self._zygote.is_up:
            self._zygote.start()

    def _on_zygote_failed(self, error: OSError) -> None:
        _log.warning("zygote_not_started node=%s error=%s", self._node, error)
        # While a process runs there is time: the next one asks for a zygote again.
        if not self._pid and not self.failed.done():
            self.failed.set_exception(error)

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


def read_left_process(job: JobDir, node: str) -> ProcessUp | None:
    """The training process that a former agent of this node left running, if it still does."""
    try:
        data = NodeFiles(job, node).process.read_bytes()
        up = msgspec.json.decode(data, type=ProcessUp)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    found = find_job_process(up.pid, job.path)
    return up if found and found.node == node else None
