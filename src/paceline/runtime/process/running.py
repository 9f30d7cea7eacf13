"""A training process from its fork to its exit: its server or its script, and its last words.

The zygote's child calls `main`. With strategy script only the script's end is reported, and the
script gets its signals itself.
"""

import base64
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import STACKS_SIGNAL, NodeFiles
from paceline.base.numbering import Inc
from paceline.runtime.process import additions, main_module
from paceline.runtime.process.process import (
    EXIT_TERMINATED,
    AgentLost,
    Fenced,
    Process,
    Stopped,
    become,
    ignore_interrupt,
)
from paceline.wire.messages.agent import EXIT_FENCED, EXIT_NO_AGENT
from paceline.wire.messages.node import Finished, ProcessUp
from paceline.wire.spec import JobSpec

LAST_WORDS_S = 1.0
"""Seconds for the last messages to reach the agent."""

_TOLD = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def main() -> int:
    """Run the node's role to its end; the exit code."""
    signal.signal(signal.SIGINT, ignore_interrupt)
    faulthandler.enable()
    process = _from_environment()
    become(process)
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
    told = _TOLD.decode(base64.b64decode(os.environ["PACELINE_TOLD"]))
    return Process(job, up, int(os.environ["PACELINE_RANK"]), num_workers, told=told)


def run_server(process: Process) -> int:
    """Run a parameter server until it is stopped."""
    try:
        from paceline.runtime.server import server  # with numba, which a worker may do without

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
    process.tell_rest()
    process.link.send(_finished(process))
    return 0


def _finished(process: Process) -> Finished:
    """Make the report on a script that has come to its end."""
    done = process.spec.traits.trains and process.ended_by_itself
    finished = Finished(inc=process.inc, joined=process.joined, done=done)
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
    process.tell_rest()
    process.link.send(last_words)
    return code
