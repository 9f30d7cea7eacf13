"""The rule table of ends, row by row."""

import pytest
from msgspec import structs

from paceline.protocol.nodes.ends import EndKind
from paceline.protocol.nodes.exits import RULES, Evidence, Judged, judge
from paceline.wire.events.nodes import Verdict
from paceline.wire.messages.agent import ExitEvidence
from paceline.wire.messages.node import ScriptError


def raised(kind: str, *, in_user_code: bool = True, step: int = 7) -> ScriptError:
    return ScriptError(inc=1, kind=kind, traceback="", in_user_code=in_user_code, step=step)


def lacking(path: str) -> ScriptError:
    return structs.replace(
        raised("FileNotFoundError", step=0), line="a.py, line 3", unreadable=path
    )


ROWS = [
    ("finished", Verdict.FINISHED, Evidence(exit=ExitEvidence(exit_code=0), finished=True)),
    # The interpreter may still fall over on its way out.
    ("finished", Verdict.FINISHED, Evidence(exit=ExitEvidence(signal=11), finished=True)),
    ("hung", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=9, hung=True))),
    ("stopped by us", Verdict.STOPPED, Evidence(exit=ExitEvidence(signal=9, stopped_by_us=True))),
    ("oom counter", Verdict.OOM, Evidence(exit=ExitEvidence(signal=9, oom_kills=1))),
    (
        "memory error",
        Verdict.OOM,
        Evidence(exit=ExitEvidence(exit_code=1), error=raised("MemoryError")),
    ),
    (
        "internal error",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("paceline.base.errors.InternalError", in_user_code=False),
        ),
    ),
    (
        "unreadable source",
        Verdict.UNRETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=1), error=lacking("/data/x.npy"), host="b (10.0.0.2)"),
    ),
    (
        "unreachable peer",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=structs.replace(
                raised("paceline.runtime.process.reaching.Unreachable", in_user_code=False),
                unreachable="server-0 at 10.0.0.3:4711 (Connection refused)",
            ),
            host="b (10.0.0.2)",
        ),
    ),
    (
        "error",  # a job of one machine: a file that is not there is not there for any worker
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=1), error=lacking("/data/x.npy")),
    ),
    (
        "refused",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("paceline.base.errors.ConfigError", in_user_code=False),
        ),
    ),
    (
        "permanent error",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("paceline.base.errors.PermanentError", in_user_code=False),
        ),
    ),
    (
        "connection error",
        Verdict.RETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("ConnectionResetError", in_user_code=False),
            any_committed=False,
        ),
    ),
    (
        "connection error",
        Verdict.RETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("torch.distributed.DistBackendError", in_user_code=False),
            previous=("torch.distributed.DistBackendError", 7),
        ),
    ),
    # The user's own connection is the user's own affair.
    (
        "script error before the first commit",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("ConnectionResetError", step=1),
            any_committed=False,
        ),
    ),
    (
        "script error before the first commit",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1), error=raised("ValueError", step=1), any_committed=False
        ),
    ),
    # Steps were done, though the master has not heard of any.
    (
        "error",
        Verdict.RETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1), error=raised("ValueError", step=2), any_committed=False
        ),
    ),
    (
        "error",
        Verdict.RETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("ValueError", step=-1),
            any_committed=False,
            by_itself=True,
        ),
    ),
    (
        "same error twice",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("ValueError"),
            previous=("ValueError", 7),
        ),
    ),
    (
        "error",
        Verdict.RETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("ValueError"),
            previous=("ValueError", 6),
        ),
    ),
    ("error", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(), error=raised("ValueError"))),
    (
        "made room",
        Verdict.MADE_ROOM,
        Evidence(exit=ExitEvidence(signal=15, stopped_by_us=True, made_room=True)),
    ),
    (
        "made room",
        Verdict.MADE_ROOM,
        Evidence(
            exit=ExitEvidence(exit_code=0, stopped_by_us=True, made_room=True),
            finished=True,
            by_itself=True,
        ),
    ),
    (
        "finished",
        Verdict.FINISHED,
        Evidence(exit=ExitEvidence(exit_code=0, made_room=True), finished=True),
    ),
    ("terminated from outside", Verdict.PREEMPTED, Evidence(exit=ExitEvidence(signal=15))),
    ("terminated from outside", Verdict.PREEMPTED, Evidence(exit=ExitEvidence(exit_code=143))),
    (
        "other signal",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(signal=15), by_itself=True),
    ),
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=9))),
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=137))),
    ("crashed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=11))),
    ("crashed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=6))),
    ("other signal", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=10))),
    ("exit code", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=255))),
    ("exit code", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=128))),
    ("left early", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=0))),
    ("no agent", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=75))),
    ("given up", Verdict.GIVEN_UP, Evidence(exit=ExitEvidence(exit_code=76))),
    # Of a script by itself they are its own.
    ("exit code", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=76), by_itself=True)),
    ("exit code", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=9))),
    (
        "killed, perhaps for memory",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(signal=9, machine_oom_kills=1)),
    ),
    ("crashed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=11, machine_oom_kills=1))),
    # The kernel took a process of the loader.
    (
        "oom counter",
        Verdict.OOM,
        Evidence(exit=ExitEvidence(exit_code=1, oom_kills=1), error=raised("RuntimeError")),
    ),
    (
        "same end three times",
        Verdict.UNRETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=3, step=7), previous=("exit code 3", 7), repeats=2),
    ),
    # os._exit(-1), which is no signal.
    (
        "same end three times",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=255, step=7), previous=("exit code 255", 7), repeats=2
        ),
    ),
    # Not the script's: its process could not even begin.
    (
        "exit code",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=70, step=0), previous=("exit code 70", 0), repeats=2),
    ),
    (
        "same end three times",
        Verdict.UNRETRYABLE,
        Evidence(exit=ExitEvidence(signal=6, step=0), previous=("signal SIGABRT", 0), repeats=5),
    ),
    (
        "exit code",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=3, step=7), previous=("exit code 3", 7), repeats=1),
    ),
    (
        "exit code",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=3, step=8), previous=("exit code 3", 7), repeats=2),
    ),
    # Of servers and of scripts by themselves no step is known.
    (
        "crashed",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(signal=6), previous=("signal SIGABRT", 0), repeats=2),
    ),
    # It comes from outside, however often.
    (
        "killed",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(signal=9, step=0), previous=("signal SIGKILL", 0), repeats=9),
    ),
    ("not started", Verdict.NOT_STARTED, Evidence(exit=ExitEvidence(), started=False)),
    # Evidence of an end is evidence of a life.
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=9), started=False)),
    ("unknown", Verdict.RETRYABLE, Evidence(exit=ExitEvidence())),
    (
        "taken away",
        Verdict.TAKEN_AWAY,
        Evidence(exit=ExitEvidence(signal=9), taken=EndKind.PREEMPTED),
    ),
    ("taken away", Verdict.TAKEN_AWAY, Evidence(exit=ExitEvidence(), taken=EndKind.NODE_LOST)),
    # The process has ended in a way of its own, on a place that was about to go.
    (
        "exit code",
        Verdict.RETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=3), taken=EndKind.PREEMPTED),
    ),
    (
        "out of memory with its place",
        Verdict.OOM,
        Evidence(exit=ExitEvidence(signal=9), taken=EndKind.OOM),
    ),
]


@pytest.mark.parametrize(("rule", "verdict", "evidence"), ROWS)
def test_the_first_rule_that_applies_decides(
    rule: str, verdict: Verdict, evidence: Evidence
) -> None:
    judged = judge(evidence)
    assert (judged.rule, judged.verdict) == (rule, verdict)
    assert judged.reason


def test_every_rule_has_a_row_here() -> None:
    assert {rule.name for rule in RULES} == {row[0] for row in [*ROWS, *LOST_LOADERS]}


def test_what_a_machine_lacks_is_told_with_its_name_and_the_remedy() -> None:
    evidence = Evidence(
        exit=ExitEvidence(exit_code=1), error=lacking("/data/x"), host="b (10.0.0.2)"
    )
    assert judge(evidence).reason == (
        "b (10.0.0.2) cannot read /data/x (a.py, line 3); put it at the same path there, or on "
        "storage that all machines share, or give the script a URL"
    )


def test_a_refusal_is_the_whole_message_with_its_remedy() -> None:
    kind, message = "paceline.base.errors.ConfigError", f"optimizer 0 is not {'so ' * 100}: do that"
    error = ScriptError(
        inc=1,
        kind=kind,
        traceback=f"Traceback\n  File x\n{kind}: {message}\n",
        in_user_code=False,
        step=0,
        line="train.py, line 6",
    )
    judged = judge(Evidence(exit=ExitEvidence(exit_code=1), error=error))
    assert judged.reason == f"refused (train.py, line 6): {message}"


def test_a_refusal_of_several_lines_is_whole() -> None:
    kind = "paceline.base.errors.ConfigError"
    text = f"Traceback\n  File x\n{kind}: got these:\n  one: 1\n  two: 2\ndo that\n"
    error = ScriptError(inc=1, kind=kind, traceback=text, in_user_code=False, step=0)
    judged = judge(Evidence(exit=ExitEvidence(exit_code=1), error=error))
    assert judged.reason == "refused: got these: one: 1 two: 2 do that"


IN_THE_SCRIPT = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for x, y in loader:
  File "/lib/torch/utils/data/dataloader.py", line 1289, in _get_data
    success, data = self._try_get_data()
"""
LOST_LOADERS = [
    ("loader lost", "RuntimeError", f"{IN_THE_SCRIPT}RuntimeError: {said}\n")
    for said in (
        "DataLoader worker (pid 77) is killed by signal: Killed. ",
        "DataLoader worker (pid 77) is killed by signal: Segmentation fault. ",
        "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory "
        "limit.",
        "DataLoader worker (pid 77) exited unexpectedly with exit code 1. Details are lost due to "
        "multiprocessing. Rerunning with num_workers=0 may give better error trace.",
        "DataLoader worker (pid(s) 77, 78) exited unexpectedly",
        "Pin memory thread exited unexpectedly",
    )
] + [
    ("loader lost", kind, f"{IN_THE_SCRIPT}{kind}: [Errno 104] Connection reset by peer\n")
    for kind in ("ConnectionResetError", "EOFError")
]


@pytest.mark.parametrize(("rule", "kind", "text"), LOST_LOADERS)
@pytest.mark.parametrize("in_user_code", [True, False])
def test_a_loader_process_that_died_is_a_lost_process_wherever_it_shows(
    rule: str, kind: str, text: str, *, in_user_code: bool
) -> None:
    error = ScriptError(inc=1, kind=kind, traceback=text, in_user_code=in_user_code, step=1)
    for previous in (None, (kind, 1)):
        evidence = Evidence(
            exit=ExitEvidence(exit_code=1), error=error, any_committed=False, previous=previous
        )
        judged = judge(evidence)
        assert (judged.rule, judged.verdict) == (rule, Verdict.RETRYABLE)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # What the dataset itself has raised in a loader process is the script's.
        (
            "ValueError",
            'Traceback (most recent call last):\n  File "/lib/torch/utils/data/dataloader.py"\n'
            "ValueError: Caught ValueError in DataLoader worker process 0.\n"
            'Original Traceback (most recent call last):\n  File "train.py", line 3\n'
            "ValueError: bad record\n",
        ),
        ("ConnectionResetError", 'Traceback\n  File "train.py"\nConnectionResetError: x\n'),
    ],
)
def test_what_the_dataset_raises_is_no_lost_process(kind: str, text: str) -> None:
    error = ScriptError(inc=1, kind=kind, traceback=text, in_user_code=True, step=1)
    evidence = Evidence(exit=ExitEvidence(exit_code=1), error=error, any_committed=False)
    assert judge(evidence).verdict is Verdict.UNRETRYABLE


@pytest.mark.parametrize(
    ("traceback", "told"),
    [
        ("Traceback\n  File x\nKeyError: 'a column'\n", " ('a column')"),
        ("Traceback\n  File x\nKeyError: several\nlines\n", " (several)"),
        (f"Traceback\n  File x\nKeyError: {'x' * 300}\n", f" ({'x' * 200}…)"),
        ("Traceback\n  File x\nKeyError\n", ""),
        ("", ""),
    ],
)
def test_a_reason_has_the_message_of_the_error(traceback: str, told: str) -> None:
    error = ScriptError(inc=1, kind="KeyError", traceback=traceback, in_user_code=True, step=4)
    evidence = Evidence(exit=ExitEvidence(exit_code=1), error=error)
    assert judge(evidence).reason == f"KeyError in the script at step 4{told}"


def test_the_script_s_own_code_is_told_where_the_script_failed_only() -> None:
    def own(
        error: ScriptError | None,
        code: int | None,
        *,
        by_itself: bool = False,
        step: int | None = None,
    ) -> int:
        exit_ = ExitEvidence(exit_code=code, step=step)
        return judge(Evidence(exit=exit_, error=error, by_itself=by_itself)).own_code

    assert own(raised("SystemExit"), 7) == 7
    assert own(raised("ValueError"), None) == 1
    assert own(raised("paceline.base.errors.ConfigError", in_user_code=False), 1) == 1
    assert own(raised("ConnectionError", in_user_code=False), 1) == 0
    assert own(None, 76) == 0
    assert own(None, 9, by_itself=True) == 9
    assert own(None, 3, step=20) == 3, "os._exit"
    assert own(None, 3) == 0, "a process that never came up"
    assert own(None, 255, step=20) == 255, "os._exit(-1)"
    assert own(None, 70, step=0) == 0, "paceline's own code"
    assert own(None, 75, step=20) == own(None, 76, step=20) == own(None, 134, step=20) == 0


def test_a_reason_names_the_exception_and_the_step() -> None:
    evidence = Evidence(
        exit=ExitEvidence(exit_code=3), error=raised("KeyError", step=1), any_committed=False
    )
    assert judge(evidence).reason == (
        "KeyError in the script at step 1, before anything was trained"
    )


def test_the_same_end_is_told_with_its_place() -> None:
    same = Evidence(
        exit=ExitEvidence(exit_code=3, step=21), previous=("exit code 3", 21), repeats=2
    )
    assert judge(same).reason == (
        "its process ended (exit code 3) at step 21, for the 3rd time in a row"
    )


def test_a_reason_names_the_line_that_the_script_was_at() -> None:
    error = ScriptError(
        inc=1, kind="ValueError", traceback="", in_user_code=False, step=4, line="train.py, line 9"
    )
    evidence = Evidence(exit=ExitEvidence(exit_code=1), error=error)
    assert judge(evidence).reason == (
        "ValueError in paceline or a library, called in train.py, line 9, at step 4"
    )


def test_memory_is_no_more_than_a_guess_where_only_the_machine_s_counter_grew() -> None:
    judged = judge(Evidence(exit=ExitEvidence(signal=9, machine_oom_kills=2)))
    assert judged.reason.startswith("signal SIGKILL, perhaps out of memory: the kernel counted 2 ")
    assert judged.verdict is not Verdict.OOM


def test_a_script_that_ends_itself_has_said_why_and_needs_no_traceback() -> None:
    def ended(kind: str, last: str, code: int) -> Judged:
        error = structs.replace(raised(kind), traceback=f"Traceback (…):\n  a.py\n{last}\n")
        return judge(Evidence(exit=ExitEvidence(exit_code=code), error=error))

    left = ended("SystemExit", "SystemExit: 2", 2)
    assert left.reason == "the script ended itself with exit code 2 at step 7"
    assert (left.users_traceback, left.own_code) == ("", 2)
    assert ended("ValueError", "ValueError: 2", 1).users_traceback
