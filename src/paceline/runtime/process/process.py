"""The training process that this one is: its identity, its link to the agent, its step ledger.

Everything in ``runtime`` asks `current` for it, and whether a stop was asked for; what such a
process does from its fork to its exit is in `paceline.runtime.process.running`. Runs no thread; a
worker's `Exchange` does, and uses the link until ``at_end``.
"""

import contextlib
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.cuts.reach import cuts_of
from paceline.runtime.data.work import StepTimes
from paceline.runtime.variables.frames import frames_of
from paceline.wire.messages.agent import EXIT_FENCED, EXIT_NO_AGENT
from paceline.wire.messages.features import FeatureSaid, FeatureTold
from paceline.wire.messages.node import ProcessUp
from paceline.wire.node_link import NodeLink
from paceline.wire.spec import JobSpec, load
from paceline.wire.step_ledger import StepLedgerWriter

if TYPE_CHECKING:
    from paceline.runtime.probe.script_steps import ScriptSteps
    from paceline.runtime.process.feature_parts import ProcessParts
    from paceline.runtime.script.strategy import Bystander

AGENT_WAIT_S = 10.0
"""Seconds that a process goes on without an agent: a new one is there within two seconds."""
EXIT_TERMINATED = 128 + signal.SIGTERM


class AgentLost(SystemExit):
    """Exit because no agent came back; passes through the user's ``except Exception``."""

    exit_code = EXIT_NO_AGENT

    def __init__(self) -> None:
        super().__init__(EXIT_NO_AGENT)


class Stopped(SystemExit):
    """The job must stop: raised out of ``job.batches`` after a finished step, exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Fenced(SystemExit):
    """The master took this incarnation for dead: nothing of it counts, another replaces it."""

    exit_code = EXIT_FENCED

    def __init__(self) -> None:
        super().__init__(EXIT_FENCED)


class LeftBehind(Fenced):
    """Error where those who hold the model have left the loop that our script waits in.

    A life that has had no batch yet can wait for their next loop; else another begins there.
    """


def fence_soon() -> None:
    """Have the script raise `Fenced` in its next line.

    For what is found while a generator is closed, whose own errors go nowhere. An exception that is
    sent to the thread would be raised right here.
    """
    # Not a generator around the loader, which is being closed, too.
    chain = [
        one for one in frames_of(sys._getframe(1)) if not one.f_code.co_flags & inspect.CO_GENERATOR
    ]
    before = sys.gettrace()
    if not chain:
        return

    def raise_there(frame: FrameType, event: str, value: Any) -> None:
        sys.settrace(before)
        frame.f_trace = None
        raise Fenced

    chain[0].f_trace = raise_there
    sys.settrace(lambda frame, event, value: None)


class OpenLoop:
    """A loop over job.batches that did not come to its end, and where that was."""

    def __init__(self, step: Callable[[], int], miscount: Callable[[], int]) -> None:
        """``step``: says the job's step; ``miscount``: see `ScriptCourse.miscount`."""
        self.step, self.miscount = step, miscount

    def leave(self) -> None:
        """The script has left it: what it trains afterwards does not count."""
        step, miscount = self.step(), self.miscount()
        self.step, self.miscount = lambda: step, lambda: miscount


class Process:
    """This training process. One per operating system process; see `current`."""

    _is_broken_off = False
    _script_cannot_hear = False
    """Whether SIGTERM came when the script had no handler of its own."""
    """SIGTERM came when the script had no handler of its own."""
    script_steps: "ScriptSteps | None" = None
    """Watches the steps of a script that trains on its own; None: nobody needs them."""

    def __init__(
        self,
        job: JobDir,
        up: ProcessUp,
        rank: int,
        num_workers: int,
        *,
        told: Mapping[str, msgspec.Raw] | None = None,
    ) -> None:
        self.job = job
        self.node = up.node
        self.inc = up.inc
        self.role = up.role
        self.rank = rank
        self.num_workers = num_workers
        """When it started; on servers those that train, as the master says."""
        self.told = told or {}
        """Messages of the master for features' parts here, which came with the order to start."""
        self.spec: JobSpec = load(job.spec)
        self.cuts = cuts_of(job, self.spec)
        self._step = 0
        self.has_stepped = False
        """Whether a step was done in this life."""
        self.stop_requested = False
        """Whether to finish the step and leave in order: SIGTERM came, or the master's word."""
        self._terminated = False
        self.told_to_stop = False
        """Whether the master ordered the stop: the job ends, and an open loop is no failure."""
        self.open_loops: list[OpenLoop] = []
        """Loops that have begun and did not come to their end, in order."""
        self._hand_over: Callable[[], None] | None = None
        self.check_returned: Callable[[], None] = _nothing
        """Raises ConfigError if the script has returned before others."""
        self.stands_by: Callable[[], Bystander] | None = None
        """Says what errors mean in a life that has had no batch of the loops that it came to."""
        self.remark = ""
        """Words to add to an error of the script; empty: none."""
        self.at_end: Callable[[], None] = _nothing
        """Ends the thread that uses the link, so that the main thread can."""
        self.at_terminate: Callable[[], None] = _nothing
        """Called at a SIGTERM, after which the step in hand must end."""
        self.at_fork: Callable[[], None] = _nothing
        """Called in a process that the script forks: its copies of our objects cannot be used."""
        self.on_held: Callable[[float], None] = _no_step
        """Takes the time for which a gate has held the process, in the midst of a step."""
        self.between_steps: Callable[[], None] = _nothing
        """Called in the training thread before it begins a step."""
        self.gaps: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        """Entered while the process waits for its next batch."""
        self.features: ProcessParts | None = None
        """Parts of features in a worker; None: a server, or a program that is no script."""
        self.is_fork = False
        """Whether this copy is that of a process that the script forked."""
        # Before the hello: from then on it may come.
        signal.signal(signal.SIGTERM, self._on_terminate)
        files = NodeFiles(job, up.node)
        self._files = files
        self._record(up)
        self.link = NodeLink(files.socket, up)
        self.ledger = StepLedgerWriter(files.ledger, up.inc)

    @property
    def step(self) -> int:
        """The step being worked on; kept up to date by the runtime, told with an error.

        Also in the step ledger: an ``os._exit`` or a crash says nothing.
        """
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self.ledger.begin(step)

    def record(self, times: StepTimes, marks: int = 0, amount: float = 0.0) -> None:
        """Note in the step ledger what a step took; no system call."""
        self.has_stepped = True
        self.ledger.write(
            step=self.step,
            t_start_s=times.start_s,
            bpt_s=times.bpt_s,
            compute_s=times.compute_s,
            server_s=times.server_s,
            message_s=times.message_s,
            wait_s=times.wait_s,
            data_s=times.data_s,
            amount=amount,
            samples=times.samples,
            marks=marks,
        )

    def held(self, waited_s: float) -> None:
        """A gate has held the process for so long: that is no part of its step."""
        self.ledger.delay(waited_s)
        self.on_held(waited_s)

    def join(self, hand_over: Callable[[], None]) -> None:
        """The script has called ``pl.init``.

        Args:
            hand_over: has what only this worker holds kept, once the script has returned; bounded.
        """
        self._hand_over = hand_over

    @property
    def joined(self) -> bool:
        """Whether the script takes part in the job's training."""
        return self._hand_over is not None

    def forget_remark(self) -> None:
        """Forget the remark on the script, and the check when it returns."""
        self.remark, self.check_returned = "", _nothing

    def returned(self) -> None:
        """The script has come to its end: hand over what it has trained.

        Raises:
            ConfigError: see ``check_returned``.
        """
        self.check_returned()
        if self._hand_over is not None:
            self._hand_over()

    def announce(self, address: str) -> None:
        """A server: say, now and at every reconnect, where its data plane listens."""
        up = self._up(address)
        self._record(up)
        self.link.close()
        self.link = NodeLink(self._files.socket, up)

    def repeat_announcement(self) -> None:
        """A server that has nothing else to say: it lives."""
        self.link.send_hello()

    def keep_link(self) -> bool:
        """Call between steps: reconnects to the agent if it was lost; never waits.

        That it was lost shows in ``link.receive()``, which must be called as often.

        Returns:
            Whether the link is up.

        Raises:
            AgentLost: there was none for AGENT_WAIT_S.
        """
        if self.link.connected or self.link.reconnect():
            return True
        if self.link.lost_for_s(time.monotonic()) > AGENT_WAIT_S:
            print(f"paceline: {self.node} has had no agent for {AGENT_WAIT_S:.0f} s and ends")
            raise AgentLost
        return False

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM's handler: the second one ends the process at once.

        Not after the master's word: an agent with an order to stop sends both, and so does the next
        agent; a late process is killed.
        """
        if self._terminated and not self.told_to_stop:
            os._exit(EXIT_TERMINATED)
        self._terminated = self.stop_requested = True
        self._script_cannot_hear = not self.script_hears_stop
        self.at_terminate()

    def break_off(self) -> NoReturn:
        """Have the script leave, since the job must stop.

        Raises:
            Stopped: always.
        """
        self._is_broken_off = True
        raise Stopped

    @property
    def ended_by_itself(self) -> bool:
        """Whether a script that has returned did so because it was done, not to obey an order."""
        may_have_heard = self.stop_requested and not self._script_cannot_hear
        return not (self._is_broken_off or may_have_heard or self.script_hears_stop)

    @property
    def script_hears_stop(self) -> bool:
        """Whether the script has a handler of its own for SIGTERM, and may leave its loop by it."""
        return signal.getsignal(signal.SIGTERM) != self._on_terminate

    def leave_to_fork(self) -> None:
        """Make the copy of a process that the script forked a stranger to the job.

        It ends by a signal as any process of Python does (ours would only note a SIGTERM, for which
        ``multiprocessing.Pool`` waits), and has nothing to say to the agent.
        """
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is ignore_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.is_fork, self.at_end, self._hand_over = True, _nothing, None
        self.check_returned = _nothing
        self.link.close()
        self.at_fork()

    def say(self, feature: str, body: Any) -> None:
        """Send a message at once; in the thread that uses the link, as a script's does.

        Args:
            feature: whose part in the master it is for.
            body: a msgspec struct.
        """
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        self.link.send(FeatureSaid(inc=self.inc, feature=feature, body=raw))

    def hear(self) -> None:
        """Take what has come for features' parts; in the same thread, where nobody else does."""
        for message in self.link.receive():
            if isinstance(message, FeatureTold) and self.features is not None:
                self.features.told(message)

    def tell_rest(self) -> None:
        """Send the last messages of features; after ``at_end``."""
        for message in self.features.rest() if self.features is not None else ():
            self.link.send(message)

    def _up(self, address: str) -> ProcessUp:
        return ProcessUp(
            node=self.node, inc=self.inc, pid=os.getpid(), role=self.role, address=address
        )

    def _record(self, up: ProcessUp) -> None:
        """Write the record of this process, for an agent that comes after the present one."""
        fresh = self._files.process.with_name(f"{self.node}.process.{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(up))
        fresh.replace(self._files.process)


def _nothing() -> None:
    """Do nothing."""


def _no_step(_waited_s: float) -> None:
    """Do nothing: no step is under way."""


def ignore_interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGINT's handler; SIG_IGN would be inherited by the programs that the script starts."""


_current: Process | None = None


def become(process: Process) -> None:
    """Make this process one of a job from now on; what the script forks is a stranger to it."""
    global _current
    _current = process
    os.register_at_fork(after_in_child=process.leave_to_fork)


def current() -> Process | None:
    """The managed process this is; None: the script was started without ``paceline run``."""
    return _current


def managed() -> Process:
    """Return this process, where there must be one of a job.

    Raises:
        ConfigError: it is a process that the script of a job has started.
    """
    if _current is None or _current.is_fork:
        raise ConfigError(
            f"process {os.getpid()} was started by the script of a job of paceline, which is no "
            "worker of it; train in the process that `paceline run` starts, or remove "
            "PACELINE_NODE from the environment of this one, to train here without the job"
        )
    return _current
