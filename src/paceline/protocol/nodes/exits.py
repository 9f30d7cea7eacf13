"""Why a training process ended and what follows: one table of rules over the evidence, pure.

The first row that applies decides. The membership carries the verdict out; the text goes to the
user (events, status, outcome).

Reference: AntDT (arXiv:2404.09679), section V-D, error classes.
Differs: the classes are decided by the rows below; lives in `FREE` cost no budget.
"""

import itertools
import re
import signal
from collections.abc import Callable

import msgspec

from paceline.protocol.nodes.ends import TAKEN_AWAY, AgentEnd, EndKind
from paceline.wire.events.nodes import KILLED_BY_ORDER, Verdict
from paceline.wire.messages.agent import EXIT_FENCED, EXIT_NO_AGENT, EXIT_SOFTWARE, ExitEvidence
from paceline.wire.messages.node import ScriptError

NO_CAUSE = frozenset({Verdict.GIVEN_UP, Verdict.NOT_STARTED})
"""Ends that say nothing about the node: what ended its life before counts on."""
FREE = NO_CAUSE | {Verdict.STOPPED, Verdict.PREEMPTED, Verdict.MADE_ROOM, Verdict.TAKEN_AWAY}
"""Ends that cost no budget."""
PREEMPTED_IN_A_ROW = 3
"""After so many short lives in a row one more SIGTERM is no chance: the script sends it itself."""


def is_free(verdict: Verdict, streak: int) -> bool:
    """Whether an end costs no budget, after so many short lives in a row."""
    return verdict in FREE and not (verdict is Verdict.PREEMPTED and streak >= PREEMPTED_IN_A_ROW)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about the end of one life."""

    exit: ExitEvidence
    error: ScriptError | None = None
    """Error that the process itself reported before it ended."""
    finished: bool = False
    """The script had returned."""
    started: bool = True
    """Whether there may have been a process."""
    any_committed: bool = True
    """Whether any sample of the job is known to be in the model."""
    by_itself: bool = False
    """A script that trains on its own, of which no more than its end is known."""
    killed: bool = False
    """Whether a person has ordered this end by `paceline kill`."""
    taken: EndKind | None = None
    """What the platform says of the node's place, where it took that away or memory was short."""
    previous: tuple[str, int] | None = None
    """Sign of the end of this node's life before this one: `Judged.sign`."""
    repeats: int = 0
    """Number of lives before this one that ended so, one after another."""
    host: str = ""
    """The machine of a worker, in a job that has several; else empty."""


class ExitRule(msgspec.Struct, frozen=True):
    """One row: where ``applies`` holds, the end is ``verdict`` because of ``reason``."""

    name: str
    verdict: Verdict
    applies: Callable[[Evidence], bool]
    reason: Callable[[Evidence], str]


class Judged(msgspec.Struct, frozen=True):
    """The table's answer."""

    rule: str
    verdict: Verdict
    reason: str
    traceback: str = ""
    """The script's own, else the end of its log."""
    own_code: int = 0
    """The script's exit code, where it is the script that failed."""
    sign: tuple[str, int] | None = None
    """Sign by which the next lives' ends are compared: exception class, exit code or signal, and
    the step; None: this end says nothing about them."""

    @property
    def users_traceback(self) -> str:
        """The traceback, where it is of an error that the script has made; else nothing.

        A script that ends itself has said why: argparse prints how to call it.
        """
        ends_itself = _last_line(self.traceback).startswith("SystemExit")
        return self.traceback if self.rule in SCRIPT_ERRORS and not ends_itself else ""


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


SCRIPT_ERRORS = frozenset({"script error before the first commit", "same error twice", "error"})
"""Rules by whose ends the script's traceback is what a person has to see."""


CONNECTION_ERRORS = frozenset(
    {
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "BrokenPipeError",
        "TimeoutError",
        "paceline.base.errors.TransientError",
        "torch.distributed.DistBackendError",
        "torch.distributed.DistNetworkError",
        "torch.distributed.DistStoreError",
        "torch.distributed.distributed_c10d.DistBackendError",
        "zmq.error.ZMQError",
        "zmq.error.Again",
    }
)
_PEER_GONE = re.compile(r"connection (closed|reset|refused|aborted|was)|broken pipe", re.IGNORECASE)


def is_echo(error: ScriptError) -> bool:
    """Whether an error only reports that a peer was gone."""
    last = _last_line(error.traceback)
    return error.kind in CONNECTION_ERRORS or bool(_PEER_GONE.search(last))


CONFIG_ERROR = "paceline.base.errors.ConfigError"
PERMANENT_ERROR = "paceline.base.errors.PermanentError"
LOADER_LOST = re.compile(
    r"DataLoader worker \(pid\(?s?\)?.*\) (is killed by|exited unexpectedly)"
    r"|Pin memory thread exited unexpectedly"
)
"""Pattern of the error that torch raises when a process of a DataLoader has died, wherever the
script is then."""
LOADER_CODE = "torch/utils/data/dataloader.py"
LOADER_CUT_OFF = frozenset({"ConnectionResetError", "ConnectionRefusedError", "EOFError"})
"""Errors in which reading from such a process ends, if its death is noticed so first."""
MESSAGE_CHARS = 200
"""Most characters of an error's message in a reason; the traceback has all of it."""
UNREADABLE, UNREACHABLE = "unreadable source", "unreachable peer"
LACKING = frozenset({UNREADABLE, UNREACHABLE})
"""The rules of a worker whose machine lacks what the script reads, or the way to a peer."""
INTERNAL_ERROR = "paceline.base.errors.InternalError"
SAME_ENDS = 3
"""Number of lives in a row, ended at one step by one exit code or crash, that are enough."""
OUR_CODES = frozenset({EXIT_FENCED, EXIT_NO_AGENT, EXIT_SOFTWARE})
"""EXIT_SOFTWARE: not even the process's own handling of errors could run."""
CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS}
)
# A shell reports a signal as 128 + its number.
SHELL_SIGNAL = 128


def judge(evidence: Evidence) -> Judged:
    """The verdict of the first rule that applies; the last one always does."""
    rule = next(rule for rule in RULES if rule.applies(evidence))
    trace = evidence.error.traceback if evidence.error else evidence.exit.log_tail
    reason = rule.reason(evidence)
    return Judged(rule.name, rule.verdict, reason, trace, _own_code(evidence), _sign(evidence))


def _sign(evidence: Evidence) -> tuple[str, int] | None:
    if evidence.error is not None:
        return evidence.error.kind, evidence.error.step
    step = evidence.exit.step
    if step is None or step < 0:
        return None
    # Others than a crash's, as SIGKILL, come from outside, at whatever step that is.
    if _signal(evidence) in CRASHES:
        return _signalled(evidence), step
    return (f"exit code {evidence.exit.exit_code}", step) if _left_by_code(evidence) else None


def _left_by_code(evidence: Evidence) -> bool:
    """Whether the script has ended its own process, as by ``os._exit``, before it was through."""
    end = evidence.exit
    known = end.exit_code is not None and end.exit_code not in OUR_CODES and end.step is not None
    return known and not _signal(evidence) and evidence.error is None


def _own_code(evidence: Evidence) -> int:
    """The script's exit code (1: it raised); 0: somebody else is to blame."""
    code = evidence.exit.exit_code
    if evidence.by_itself:
        return code or 0
    if _left_by_code(evidence):
        return code or 0
    return (code or 1) if _by_user(evidence) or _kind(evidence) == CONFIG_ERROR else 0


def _signal(evidence: Evidence) -> int:
    if evidence.exit.signal is not None:
        return evidence.exit.signal
    number = (evidence.exit.exit_code or 0) - SHELL_SIGNAL
    return number if number in signal.valid_signals() else 0


def _kind(evidence: Evidence) -> str:
    return evidence.error.kind if evidence.error else ""


def _lost_loader(evidence: Evidence) -> bool:
    """Whether the script failed because a loader process had died."""
    error = evidence.error
    if error is None:
        return False
    cut_off = error.kind in LOADER_CUT_OFF and LOADER_CODE in error.traceback
    return cut_off or bool(LOADER_LOST.search(_last_error(error.traceback)))


def _any_trained(evidence: Evidence) -> bool:
    """Whether a step was done; the error may be heard of before the word that it is in the model.

    What a script has trained on its own is not known.
    """
    error = evidence.error
    return evidence.any_committed or evidence.by_itself or (error is not None and error.step > 1)


def _last_error(traceback: str) -> str:
    """Return what follows the last frame of a traceback: class and message of the error."""
    lines = traceback.rstrip().splitlines()
    ours = itertools.takewhile(lambda line: not line.startswith("  "), reversed(lines))
    return "\n".join(reversed(list(ours)))


def _by_user(evidence: Evidence) -> bool:
    return evidence.error is not None and evidence.error.in_user_code


def _repeated(evidence: Evidence) -> bool:
    return evidence.error is not None and evidence.previous == _sign(evidence)


def _same_end(evidence: Evidence) -> bool:
    """Whether no error, but the same code or crash, ends the script where it did before."""
    sign = _sign(evidence) if evidence.error is None else None
    return sign is not None and evidence.previous == sign and evidence.repeats + 1 >= SAME_ENDS


def _ended_so(evidence: Evidence) -> str:
    how, step = _sign(evidence) or ("", 0)
    where = f"at step {step}" if step else "before its first step"
    return f"its process ended ({how}) {where}, for the {SAME_ENDS}rd time in a row"


def _raised(evidence: Evidence) -> str:
    error = evidence.error
    where = "the script" if _by_user(evidence) else "paceline or a library"
    if error and error.line:
        where += f" ({error.line})" if _by_user(evidence) else f", called in {error.line},"
    at = f" at step {error.step}" if error and error.step >= 0 else ""
    if _kind(evidence) == "SystemExit":
        return f"{where} ended itself with exit code {evidence.exit.exit_code or 1}{at}"
    message = _message(evidence)
    if not message:
        return f"{_kind(evidence)} in {where}{at}"
    cut = f"{message[:MESSAGE_CHARS]}…" if len(message) > MESSAGE_CHARS else message
    return f"{_kind(evidence)} in {where}{at} ({cut.strip()})"


def _message(evidence: Evidence) -> str:
    """The first line of an error's own words; empty: it has none."""
    error = evidence.error
    said = _last_error(error.traceback).partition("\n")[0] if error else ""
    return said.partition(f"{_kind(evidence)}: ")[2]


def _unreadable(evidence: Evidence) -> str:
    """The path that a worker's machine lacks; empty in a job of one machine."""
    return evidence.error.unreadable if evidence.error and evidence.host else ""


def _lacking(evidence: Evidence) -> str:
    where = f" ({evidence.error.line})" if evidence.error and evidence.error.line else ""
    return (
        f"{evidence.host} cannot read {_unreadable(evidence)}{where}; put it at the same path "
        "there, or on storage that all machines share, or give the script a URL"
    )


def _refused(evidence: Evidence) -> str:
    """The whole message, which ends with the remedy, and where it was asked for."""
    error = evidence.error
    line, trace = (error.line, error.traceback) if error else ("", "")
    # Lines of a message may look like those of frames, so `_message` would not do.
    said = f"\n{trace}".rpartition(f"\n{_kind(evidence)}: ")[2].splitlines()
    whole = " ".join(part.strip() for part in said if part.strip())
    return f"refused{f' ({line})' if line else ''}: {whole}"


def _of_the_place(evidence: Evidence) -> bool:
    """Whether the process may have ended with its place: it was killed, or nobody saw how."""
    exit_ = evidence.exit
    unseen = evidence.started and exit_.exit_code is None and exit_.signal is None
    return evidence.error is None and (unseen or _signal(evidence) == signal.SIGKILL)


def _signalled(evidence: Evidence) -> str:
    number = _signal(evidence)
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


RULES: tuple[ExitRule, ...] = (
    ExitRule(
        "made room",
        Verdict.MADE_ROOM,
        # A script that ends by itself with code 0 then has not returned: it was told to end.
        lambda e: e.exit.made_room and (e.by_itself or not e.finished),
        lambda _: (
            "a guaranteed job needs the device's memory; the process starts again when there is "
            "room for it"
        ),
    ),
    ExitRule("finished", Verdict.FINISHED, lambda e: e.finished, lambda _: "the script returned"),
    ExitRule("hung", Verdict.RETRYABLE, lambda e: e.exit.hung, lambda _: "it hung"),
    ExitRule(
        "given up",
        Verdict.GIVEN_UP,
        lambda e: e.exit.exit_code == EXIT_FENCED and not (e.error or e.by_itself),
        lambda _: "through no fault of its own: the job goes on from another state than it held",
    ),
    ExitRule(
        "stopped by us",
        Verdict.STOPPED,
        lambda e: e.exit.stopped_by_us,
        lambda e: KILLED_BY_ORDER if e.killed else "as ordered",
    ),
    ExitRule(
        "oom counter",
        Verdict.OOM,
        lambda e: e.exit.oom_kills > 0,
        lambda e: f"out of memory: the cgroup counted {e.exit.oom_kills} oom kill(s)",
    ),
    ExitRule(
        "killed, perhaps for memory",
        Verdict.RETRYABLE,
        lambda e: _signal(e) == signal.SIGKILL and e.exit.machine_oom_kills > 0,
        lambda e: (
            f"{_signalled(e)}, perhaps out of memory: the kernel counted "
            f"{e.exit.machine_oom_kills} oom kill(s) on this machine meanwhile, of which "
            "process is not known"
        ),
    ),
    ExitRule(
        "loader lost",
        Verdict.RETRYABLE,
        _lost_loader,
        lambda e: f"a loader process was lost: {_raised(e)}",
    ),
    ExitRule(
        "memory error",
        Verdict.OOM,
        lambda e: _kind(e) == "MemoryError",
        lambda e: f"out of memory: {_raised(e)}",
    ),
    ExitRule(
        "internal error",
        Verdict.UNRETRYABLE,
        lambda e: _kind(e) == INTERNAL_ERROR,
        lambda e: f"a rule of paceline was broken: {_raised(e)}",
    ),
    ExitRule(UNREADABLE, Verdict.UNRETRYABLE, lambda e: bool(_unreadable(e)), _lacking),
    ExitRule(
        UNREACHABLE,
        Verdict.UNRETRYABLE,
        lambda e: bool(e.host and e.error and e.error.unreachable),
        lambda e: (
            f"{e.host} cannot connect to {e.error.unreachable if e.error else ''}; let the "
            "machines reach each other at that port, or give `listen` an address that all of "
            "them reach"
        ),
    ),
    ExitRule(
        "refused",
        Verdict.UNRETRYABLE,
        lambda e: _kind(e) == CONFIG_ERROR,
        _refused,
    ),
    ExitRule(
        "permanent error",
        Verdict.UNRETRYABLE,
        lambda e: _kind(e) == PERMANENT_ERROR,
        lambda e: f"trying again cannot help: {_raised(e)}",
    ),
    ExitRule(
        "connection error",
        Verdict.RETRYABLE,
        lambda e: _kind(e) in CONNECTION_ERRORS and not _by_user(e),
        lambda e: f"connection lost: {_raised(e)}",
    ),
    ExitRule(
        "script error before the first commit",
        Verdict.UNRETRYABLE,
        lambda e: _by_user(e) and not _any_trained(e),
        lambda e: f"{_raised(e)}, before anything was trained",
    ),
    ExitRule(
        "same error twice",
        Verdict.UNRETRYABLE,
        _repeated,
        lambda e: f"{_raised(e)}, for the second time in a row",
    ),
    ExitRule("error", Verdict.RETRYABLE, lambda e: e.error is not None, _raised),
    ExitRule("same end three times", Verdict.UNRETRYABLE, _same_end, _ended_so),
    ExitRule(
        "terminated from outside",
        Verdict.PREEMPTED,
        # With strategy script, the script may have sent it to itself: as under torchrun it counts.
        lambda e: _signal(e) == signal.SIGTERM and not e.by_itself,
        lambda e: f"{_signalled(e)} from outside the job",
    ),
    ExitRule(
        "taken away",
        Verdict.TAKEN_AWAY,
        lambda e: e.taken in TAKEN_AWAY and _of_the_place(e),
        lambda e: AgentEnd(kind=e.taken or EndKind.EXIT).words,
    ),
    ExitRule(
        "out of memory with its place",
        Verdict.OOM,
        lambda e: e.taken is EndKind.OOM and _of_the_place(e),
        lambda _: "out of memory: the platform ended all of the node",
    ),
    ExitRule("killed", Verdict.RETRYABLE, lambda e: _signal(e) == signal.SIGKILL, _signalled),
    ExitRule(
        "crashed",
        Verdict.RETRYABLE,
        lambda e: _signal(e) in CRASHES,
        lambda e: f"crashed: {_signalled(e)}",
    ),
    ExitRule("other signal", Verdict.RETRYABLE, lambda e: _signal(e) > 0, _signalled),
    ExitRule(
        "no agent",
        Verdict.RETRYABLE,
        lambda e: e.exit.exit_code == EXIT_NO_AGENT and not e.by_itself,
        lambda _: "it had no agent for long",
    ),
    ExitRule(
        "left early",
        Verdict.RETRYABLE,
        lambda e: e.exit.exit_code == 0,
        lambda _: "exit code 0, but the script had not returned",
    ),
    ExitRule(
        "exit code",
        Verdict.RETRYABLE,
        lambda e: e.exit.exit_code is not None,
        lambda e: f"exit code {e.exit.exit_code}",
    ),
    ExitRule(
        "not started",
        Verdict.NOT_STARTED,
        lambda e: not e.started,
        lambda _: "never came up; the order to start it was lost with its agent",
    ),
    ExitRule("unknown", Verdict.RETRYABLE, lambda _: True, lambda _: "gone; nobody saw how"),
)
