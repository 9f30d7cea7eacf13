"""The rule table of ends, row by row."""

import pytest

from paceline.master.exits import RULES, Evidence, Verdict, judge
from paceline.wire.messages.agent import ExitEvidence
from paceline.wire.messages.node import ScriptError


def raised(kind: str, *, in_user_code: bool = True, step: int = 7) -> ScriptError:
    return ScriptError(inc=1, kind=kind, traceback="", in_user_code=in_user_code, step=step)


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
        "final error",
        Verdict.UNRETRYABLE,
        Evidence(
            exit=ExitEvidence(exit_code=1),
            error=raised("paceline.base.errors.ConfigError", in_user_code=False),
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
            error=raised("ConnectionResetError"),
            any_committed=False,
        ),
    ),
    (
        "script error before the first commit",
        Verdict.UNRETRYABLE,
        Evidence(exit=ExitEvidence(exit_code=1), error=raised("ValueError"), any_committed=False),
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
    ("terminated from outside", Verdict.PREEMPTED, Evidence(exit=ExitEvidence(signal=15))),
    ("terminated from outside", Verdict.PREEMPTED, Evidence(exit=ExitEvidence(exit_code=143))),
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=9))),
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=137))),
    ("crashed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=11))),
    ("crashed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=6))),
    ("other signal", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=10))),
    ("other signal", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=255))),
    ("left early", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=0))),
    ("exit code", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(exit_code=75))),
    ("not started", Verdict.NOT_STARTED, Evidence(exit=ExitEvidence(), started=False)),
    # Evidence of an end is evidence of a life.
    ("killed", Verdict.RETRYABLE, Evidence(exit=ExitEvidence(signal=9), started=False)),
    ("unknown", Verdict.RETRYABLE, Evidence(exit=ExitEvidence())),
]


@pytest.mark.parametrize(("rule", "verdict", "evidence"), ROWS)
def test_the_first_rule_that_applies_decides(
    rule: str, verdict: Verdict, evidence: Evidence
) -> None:
    judged = judge(evidence)
    assert (judged.rule, judged.verdict) == (rule, verdict)
    assert judged.reason


def test_every_rule_has_a_row_here() -> None:
    assert {rule.name for rule in RULES} == {row[0] for row in ROWS}


def test_a_reason_names_the_exception_and_the_step() -> None:
    evidence = Evidence(
        exit=ExitEvidence(exit_code=3), error=raised("KeyError", step=12), any_committed=False
    )
    assert judge(evidence).reason == (
        "KeyError in the script at step 12, before anything was trained"
    )
