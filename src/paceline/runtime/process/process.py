"""The training process from its fork to its exit: who it is, its link, its script, its end.

The zygote's child calls `main`; everything else in ``runtime`` asks `current` for the node's
identity, the link to the agent, the step ledger and whether a stop was asked for. With
strategy script only the script's end is reported, and the script gets its signals itself. Runs no
thread; a worker's `Exchange` does, and uses the link until ``at_end``.
"""

import contextlib
import faulthandler
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import STACKS_SIGNAL, NodeFiles
from paceline.base.numbering import Inc
from paceline.cuts.reach import cuts_of
from paceline.runtime.data.work import StepTimes
from paceline.runtime.process import additions, main_module
from paceline.runtime.variables.frames import frames_of
from paceline.wire.messages.agent import EXIT_FENCED, EXIT_NO_AGENT
from paceline.wire.messages.node import Finished, ProcessUp
from paceline.wire.node_link import NodeLink
from paceline.wire.spec import JobSpec, load
from paceline.wire.step_ledger import StepLedgerWriter

if TYPE_CHECKING:
    from paceline.runtime.script.logged import LogBook
    from paceline.runtime.script.strategy import Bystander

AGENT_WAIT_S = 10.0
"""Seconds that a process goes on without an agent: a new one is there within two seconds."""
LAST_WORDS_S = 1.0
"""Seconds for the last messages to reach the agent."""
EXIT_TERMINATED = 128 + signal.SIGTERM


class AgentLost(SystemExit):
    """No agent came back; passes through the user's ``except Exception``."""

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
    """Those who hold the model have left the loop that our script waits in.

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

    def __init__(
        self, job: JobDir, up: ProcessUp, rank: int, num_workers: int, *, check: bool = False
    ) -> None:
        self.job = job
        self.node = up.node
        self.inc = up.inc
        self.role = up.role
        self.rank = rank
        self.num_workers = num_workers
        """When it started; on servers those that train, as the master says."""
        self.check = check
        """Its node is to be measured before the first step."""
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
        """This life has had no batch of the loops that it came to: says what its errors mean."""
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
        self.log: LogBook | None = None
        """What the script has logged; None: nothing so far."""
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
        """There is nothing to remark on the script, nor to check when it returns."""
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

        That it was lost shows in ``link.receive()``, which is to be called as often.

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
        self.at_terminate()

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
        if signal.getsignal(signal.SIGINT) is _ignore:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.is_fork, self.at_end, self._hand_over = True, _nothing, None
        self.check_returned = _nothing
        self.link.close()
        self.at_fork()

    def tell_log(self) -> None:
        """Send what was logged and the master does not keep; after ``at_end``."""
        for message in self.log.rest() if self.log is not None else ():
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
    """Nothing is to be done."""


def _no_step(_waited_s: float) -> None:
    """No step is under way."""


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """SIGINT's handler; SIG_IGN would be inherited by the programs that the script starts."""


_current: Process | None = None


def current() -> Process | None:
    """The managed process this is; None: the script was started without ``paceline run``."""
    return _current


def managed() -> Process:
    """The same, where there must be one.

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


def main() -> int:
    """Run the node's role to its end; the exit code."""
    global _current
    signal.signal(signal.SIGINT, _ignore)
    faulthandler.enable()
    process = _current = _from_environment()
    os.register_at_fork(after_in_child=process.leave_to_fork)
    # Kept open for good: it is written to by the signal's handler.
    stacks = open(NodeFiles(process.job, process.node).stacks, "w")  # noqa: SIM115
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    code = run_server(process) if process.role == "server" else run_script(process)
    process.at_end()
    process.link.flush(LAST_WORDS_S)
    return code


def _from_environment() -> Process:
    up = ProcessUp(
        node=os.environ["PACELINE_NODE"],
        inc=Inc(int(os.environ["PACELINE_INC"])),
        pid=os.getpid(),
        role=os.environ["PACELINE_ROLE"],
    )
    job = JobDir(Path(os.environ["PACELINE_JOB_DIR"]))
    num_workers = int(os.environ["PACELINE_NUM_WORKERS"])
    check = os.environ.get("PACELINE_CHECK") == "1"
    return Process(job, up, int(os.environ["PACELINE_RANK"]), num_workers, check=check)


def run_server(process: Process) -> int:
    """Run a parameter server until it is stopped."""
    try:
        from paceline.runtime.server import server

        server.main(process)
    except AgentLost:
        return EXIT_NO_AGENT
    except Exception as error:
        return report_error(process, error)
    return 0


def run_script(process: Process) -> int:
    """Run the user's script as ``python script args`` would."""
    try:
        if not process.spec.traits.trains:
            process.step = -1  # not known, until its optimizer steps
            main_module.leave_to_script()
            if process.stop_requested:  # before it was left to the script
                return EXIT_TERMINATED
        additions.add(process)
        if process.spec.cwd is not None:
            _enter(process.spec.cwd)
        _run_to_its_end(process.spec)
        process.returned()
    except (AgentLost, Fenced) as leaving:
        return leaving.exit_code  # no error of the script, whose traceback would hide the cause
    except SystemExit as leaving:
        code = exit_code(leaving)
        if code != 0:
            return report_error(process, leaving, code)
    except BaseException as error:
        if code := _after_error(process, error):
            return code
    if process.stop_requested and not process.told_to_stop:
        return EXIT_TERMINATED  # somebody else's SIGTERM: the work is not finished
    process.at_end()
    process.tell_log()
    process.link.send(_finished(process))
    return 0


def _finished(process: Process) -> Finished:
    """What is to be said of a script that has come to its end."""
    finished = Finished(inc=process.inc, joined=process.joined)
    if not process.open_loops:
        return finished
    doubtful = (loop for loop in process.open_loops if loop.miscount())
    left = next(doubtful, process.open_loops[0])
    step, miscount = left.step(), left.miscount()
    return msgspec.structs.replace(finished, left_step=step, miscount=miscount)


def _after_error(process: Process, error: BaseException) -> int:
    """The exit code of a script that has raised an error; 0: the error says nothing of the job.

    That is so of a life that has had no batch: it did what stands after a loop that it passed over.
    """
    stands_by, process.stands_by = process.stands_by, None
    fate = "fails" if stands_by is None else stands_by()
    if fate == "fails":
        return report_error(process, error)
    print(
        f"paceline: {process.node} had no batch of the loop that its peers had done, and its "
        f"script then raised {type(error).__name__}: {error}. This does not end the job",
        file=sys.stderr,
    )
    return EXIT_FENCED if fate == "leaves" else 0


def _enter(folder: str) -> None:
    """Raises ConfigError: it is gone, which another life would not change."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise ConfigError(
            f"cwd: got {folder}, where the job's scripts run, expected a folder to enter "
            f"({error.strerror}); make it again, and go on with `paceline run --resume`"
        ) from error


def _run_to_its_end(spec: JobSpec) -> None:
    """Run the script; ``sys.exit(0)`` is a return. Raises whatever else it ends with."""
    try:
        _run(spec)
    except Stopped:
        raise
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def _run(spec: JobSpec) -> None:
    sys.argv = [spec.script, *spec.args]
    match spec.run_as:
        case "file":
            main_module.run_file(spec.script)
        case "module":
            main_module.run_module(spec.script)
        case "program":
            os.execv(spec.script, sys.argv)
        case _:
            assert_never(spec.run_as)


def exit_code(leaving: SystemExit) -> int:
    """Return the exit code as Python maps ``sys.exit``'s argument; a text is printed."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def report_error(process: Process, error: BaseException, code: int = 1) -> int:
    """Print the user's own traceback and tell the agent; ``code`` is passed through."""
    last_words = main_module.script_error(error, process.inc, process.step)
    if process.has_stepped or Path(last_words.unreadable).is_relative_to(process.job.path):
        # An error as any other: of missing data the next life of the node tells.
        last_words = msgspec.structs.replace(last_words, unreadable="")
    if not isinstance(error, SystemExit):
        print(last_words.traceback, end="", file=sys.stderr)
        if process.remark and last_words.in_user_code:
            print(f"paceline: {process.node} {process.remark}", file=sys.stderr)
    process.at_end()
    process.tell_log()
    process.link.send(last_words)
    return code
