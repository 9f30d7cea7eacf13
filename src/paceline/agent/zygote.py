"""The zygote of a node as its agent holds it: asked of the job's template, or started here.

Owns the connection to it, and its end. The agent starts a zygote itself where the job has no
template, where the template has another environment than the node, and where it hangs.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable

from paceline.agent.facts import read_usage
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.base.processes import (
    SAFE_PATH,
    ProcessWatch,
    children_of,
    kill_quietly,
    peer_of,
)
from paceline.jobs.zygotes import (
    MODULE,
    bound_to,
    environment_digest,
    has_template,
    import_arguments,
    kind_of,
    process_environment,
    template_socket,
)
from paceline.wire.spec import JobSpec
from paceline.wire.zygote import BecomeZygote, Fork, FromZygote, Warm, receive_from_zygote, send

CLOSE_GRACE_S = 2.0
"""Seconds that a zygote has to exit after a hang-up, interpreter shutdown with torch included."""
LOOK_S = 3.0
"""Seconds between looks at a template that does not answer: one that uses no processor hangs."""
TEMPLATE_S = 60.0
"""Seconds that a template has to import, which takes long where many processes want the
processors."""

_log = logging.getLogger(__name__)


class ZygoteLink:
    """Link of an agent to at most one zygote; what it says comes by callback, in the loop."""

    def __init__(
        self,
        job: JobDir,
        node: str,
        spec: JobSpec,
        join_files: tuple[str, ...],
        on_message: Callable[[FromZygote], None],
        on_end: Callable[[bool, int | None], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        """Make no zygote so far.

        Args:
            job: of the node.
            node: its name.
            spec: of the job.
            join_files: of the node's control groups.
            on_message: what the zygote says.
            on_end: whether it was warm, and its code as subprocess gives it, if known.
            on_failed: why none could be started.
        """
        self._job = job
        self._node = node
        self._spec = spec
        self._join_files = join_files
        self._on_message = on_message
        self._on_end = on_end
        self._on_failed = on_failed
        self._environment = process_environment(job, node, spec)
        self._log = NodeFiles(job, node).log
        self._loop = asyncio.get_running_loop()
        self._pair: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        """The zygote, if it was started here."""
        self._look: asyncio.TimerHandle | None = None
        """Timer while the template is asked, and has not answered so far."""
        self.pid = 0
        """PID of the zygote; 0: there is none, or it is not known so far."""
        self.is_warm = False
        self.shared_bytes = 0
        """Memory of the template's that it has, and that no control group of the node counts."""

    @property
    def is_up(self) -> bool:
        """Whether there is a zygote, or is about to be."""
        return self._pair is not None

    def start(self) -> None:
        """Ask the template for one, or start one."""
        if not has_template(self._node, self._spec) or not self._ask_template():
            self._start_child()

    def send(self, fork: Fork) -> None:
        """Ask for a training process."""
        assert self._pair is not None
        # It has died: its end is about to be read, and the request made again.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self._pair, fork)

    async def close(self) -> None:
        """Hang up on it and collect it."""
        pid, child = self.pid, self._child
        self._hang_up()
        if not pid:
            return
        ended = asyncio.Event()
        watch = ProcessWatch(pid, ended.set)
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await ended.wait()
        except TimeoutError:
            kill_quietly(pid)
        watch.close()
        if child is not None:
            child.wait()

    def _ask_template(self) -> bool:
        pair = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pair.setblocking(False)
        request = BecomeZygote(
            node=self._node,
            environment=environment_digest(self._environment),
            join=self._join_files,
            log=str(self._log),
            job_dir=str(self._job.path),
        )
        try:
            pair.connect(str(template_socket(self._job, kind_of(self._node, self._spec))))
            send(pair, request)
        except OSError:
            pair.close()
            return False
        self._hold(pair)
        self._wait_for_template(self._loop.time() + TEMPLATE_S, self._template_cpu_s())
        return True

    def _wait_for_template(self, until_s: float, cpu_s: float) -> None:
        self._look = self._loop.call_later(LOOK_S, self._look_at_template, until_s, cpu_s)

    def _look_at_template(self, until_s: float, before_s: float) -> None:
        cpu_s = self._template_cpu_s()
        if cpu_s > before_s and self._loop.time() < until_s:
            self._wait_for_template(until_s, cpu_s)
        else:
            self._do_without_template()

    def _template_cpu_s(self) -> float:
        assert self._pair is not None
        starter, _ = peer_of(self._pair)
        return sum(read_usage(pid)[0] for pid in children_of(starter, MODULE))

    def _do_without_template(self) -> None:
        _log.info("no_zygote_from_template node=%s", self._node)
        self._hang_up()
        self._start_child()

    def _start_child(self) -> None:
        try:
            self._child, pair = self._spawn()
        except OSError as error:  # in a callback of the loop it would end nothing
            self._on_failed(error)
            return
        self.pid = self._child.pid
        self._hold(pair)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs, self._log.open("ab") as log:
                child = subprocess.Popen(
                    [sys.executable, *SAFE_PATH, "-m", MODULE, "--fd", str(theirs.fileno())]
                    + import_arguments(self._node, self._spec)
                    + [f"--join={path}" for path in self._join_files]
                    + [f"--core={core}" for core in bound_to(self._node, self._spec)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                )
        except OSError:
            ours.close()
            raise
        return child, ours

    def _hold(self, pair: socket.socket) -> None:
        self._pair = pair
        self._loop.add_reader(pair, self._on_readable)

    def _on_readable(self) -> None:
        assert self._pair is not None
        try:
            message = receive_from_zygote(self._pair)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = None
        if message is None:
            self._on_hung_up()
            return
        if isinstance(message, Warm):
            self._on_warm(message)
        self._on_message(message)

    def _on_warm(self, warm: Warm) -> None:
        self.is_warm, self.pid, self.shared_bytes = True, warm.pid, warm.shared_bytes
        if self._look is not None:
            self._look.cancel()
            self._look = None
        told = "zygote_warm node=%s import_s=%.2f shared_bytes=%d"
        _log.info(told, self._node, warm.import_s, warm.shared_bytes)

    def _on_hung_up(self) -> None:
        if self._look is not None:
            self._do_without_template()
            return
        was_warm, child = self.is_warm, self._child
        self._hang_up()
        code = child.wait() if child is not None else None
        _log.warning("zygote_died node=%s code=%s warm=%s", self._node, code, was_warm)
        self._on_end(was_warm, code)

    def _hang_up(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._pair is not None:
            self._loop.remove_reader(self._pair)
            self._pair.close()
        self._pair = self._child = self._look = None
        self.pid, self.is_warm, self.shared_bytes = 0, False, 0
