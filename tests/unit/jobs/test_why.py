"""Why: the core's answers about jobs that ended, wait, run, or have not begun."""

from pathlib import Path

import pytest
from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import Facts, work_out
from paceline.jobs.outcome import End, Outcome, code_of
from paceline.jobs.why import MOST, AskedWhy, WhyQuestion, reasons_of, why_now, why_of
from paceline.wire.client import JobStatus, NodeStatus, SlowPart
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterStartedEvent, ScaledEvent
from paceline.wire.events.nodes import (
    KilledEvent,
    LeftOutEvent,
    NodeStartedEvent,
    ProcessUpEvent,
    RelaunchEvent,
)
from paceline.wire.events.state import GroupRunsEvent, MemberSlowEvent
from paceline.wire.spec import JobSpec, NodeSpec

SPEC = JobSpec(script="/train.py", strategy="allreduce", workers=NodeSpec(count=2))
BORN = [
    MasterStartedEvent(t=1.0, restarted=False),
    *(NodeStartedEvent(t=2.0, node=f"worker-{n}", inc=n + 1) for n in range(2)),
    GroupRunsEvent(t=10.0, members=("worker-0", "worker-1"), step=0),
]


def facts(*events: Event, end: End | None = None, runs: bool = False, error: str = "") -> Facts:
    outcome = None
    if end is not None:
        state = {End.FINISHED: "finished", End.STOPPED: "stopped"}.get(end, "failed")
        outcome = Outcome(
            state=state, exit_code=code_of(end), end=end, error=error, jct_s=65.0, committed=900
        )
    job = JobDir(Path("/jobs/demo-1"))
    found = work_out(job, SPEC, outcome, [*BORN, *events], [], launched_s=0.0)
    return structs.replace(found, runs=runs)


def status(*nodes: NodeStatus, **fields: object) -> JobStatus:
    now = JobStatus(
        job_id="demo-1",
        state="training",
        master_pid=8,
        epoch_no=1,
        step=0,
        committed=0,
        total=None,
        samples_per_s=None,
        eta_s=None,
        started_s=0.0,
        valid_cuts=(),
        nodes=nodes,
        num_events=0,
    )
    return structs.replace(now, **fields)  # type: ignore[arg-type]


RESUME = "go on with `paceline run --resume demo-1`"


@pytest.mark.parametrize(
    ("end", "error", "sentence"),
    [
        (
            End.SCRIPT_FAILED,
            "worker-0: ValueError: no fish",
            "It failed by an error of its script (at 1:05, exit code 1): worker-0: ValueError: no "
            f"fish; when that is mended, {RESUME}.",
        ),
        (
            End.FAILED,
            "the disk is full; make room there, then `paceline run --resume demo-1`",
            "It failed (at 1:05, exit code 1): the disk is full; make room there, then `paceline "
            "run --resume demo-1`.",
        ),
        (
            End.STOPPED,
            "",
            f"It was stopped by `paceline stop` (at 1:05, exit code 4); {RESUME}.",
        ),
    ],
)
def test_why_it_ended_has_the_cause_the_exit_code_and_the_remedy(
    end: End, error: str, sentence: str
) -> None:
    assert why_of(facts(end=end, error=error))[0] == sentence


def test_a_stopped_job_says_what_no_cut_holds() -> None:
    told = facts(end=End.STOPPED)
    assert told.outcome is not None
    lost = structs.replace(told, outcome=structs.replace(told.outcome, kept=880))
    assert "its last 20 samples are in no cut on disk" in why_of(lost)[0]


def test_a_job_whose_processes_died_says_that_none_could_say_why() -> None:
    told = why_of(facts())[0]
    assert told == (
        f"It was interrupted at 0:10: all its processes died, and none could say why; {RESUME}."
    )
    never = work_out(JobDir(Path("/jobs/demo-1")), SPEC, None, [], [], launched_s=0.0)
    assert why_of(never)[0].startswith("It has never begun")


def test_what_nobody_measured_is_said_to_be_unknown() -> None:
    told = why_of(facts(end=End.FINISHED))
    assert len(told) == MOST
    assert told[0].startswith("It finished")
    assert told[1] == "Whether a node was slow is not known: their times were not compared."
    assert told[2] == "It had 2 workers, as it was started with."


def test_what_a_person_asks_first_comes_first() -> None:
    scaled = ScaledEvent(t=20.0, role="worker", count=3, before=2)
    waits = status(waits_for="1 of 2 workers are ready")
    found = reasons_of(AskedWhy("demo-1", facts(scaled, runs=True), waits))
    assert [one.question for one in found if one.is_found] == [WhyQuestion.WAITS, WhyQuestion.SIZE]
    assert found[0].sentence == "It does not train now: 1 of 2 workers are ready."
    assert found[1].sentence == "It has 3 workers since 0:20: an order changed 2 to 3."


def test_a_node_that_has_no_place_is_why_it_waits() -> None:
    pending = NodeStatus(node="worker-1", role="worker", state="pending", note="0 of 4 are free")
    told = why_of(facts(runs=True), status(pending))
    assert told[0] == "Worker-1 is pending: 0 of 4 are free."
    assert why_now(status(pending)) == "worker-1 is pending: 0 of 4 are free"


def test_a_member_for_which_all_wait_is_named_until_the_job_goes_on() -> None:
    slow = MemberSlowEvent(t=30.0, node="worker-1", since_s=12.0, limit_s=60.0)
    told = why_of(facts(slow, runs=True), status())
    assert told[0].startswith("At 0:30 it stood still: all wait for worker-1")
    goes_on = GroupRunsEvent(t=40.0, members=("worker-0",), step=9)
    assert "stood still" not in why_of(facts(slow, goes_on, runs=True), status())[0]


def test_a_master_that_is_away_is_why_it_does_not_answer() -> None:
    assert why_of(facts(runs=True), None)[0].startswith("Its master does not answer")
    fresh = work_out(JobDir(Path("/jobs/demo-1")), SPEC, None, [], [], launched_s=0.0)
    assert why_of(structs.replace(fresh, runs=True))[0].startswith("It is starting")


def test_a_worker_that_was_left_out_is_why_the_job_is_small() -> None:
    left = LeftOutEvent(t=30.0, node="worker-1", inc=2, reason="it cannot read /data")
    told = why_of(facts(left, runs=True), status())
    assert "worker-1 was left out at 0:30: it cannot read /data." in told


def test_a_kill_is_named_with_what_it_cost() -> None:
    kill = [
        KilledEvent(t=20.0, node="worker-1", inc=2),
        RelaunchEvent(t=20.0, node="worker-1", inc=2, cause="signal 9", wait_s=0.0),
        ProcessUpEvent(t=21.5, node="worker-1", inc=3, pid=9),
    ]
    found = reasons_of(AskedWhy("demo-1", facts(*kill, end=End.FINISHED), None))
    assert [one.question for one in found if one.is_found] == [
        WhyQuestion.ENDED,
        WhyQuestion.WRONG,
    ]
    assert found[1].sentence == (
        "At 0:20 worker-1: killed by order, started again (back after 1.50 s)."
    )
    again = [structs.replace(event, t=event.t + 9.0) for event in kill]
    told = why_of(facts(*kill, *again, end=End.FINISHED))[1]
    assert told.endswith("; 1 more went wrong at less cost.")


def test_waits_for_data_are_named_as_measured() -> None:
    nodes = [
        NodeStatus(node=f"worker-{n}", role="worker", state="running", bpt_s=0.04, data_s=0.01)
        for n in range(2)
    ]
    told = why_of(facts(runs=True), status(*nodes))
    assert told[0] == "Its workers wait 10.0 ms of each batch's 40.0 ms for data (25 %)."


def test_the_live_view_has_what_is_slow_now_before_what_was() -> None:
    slow = SlowPart(
        culprit="computation", nodes=("worker-1",), ratio=2.5, since_s=5.0, done="nothing"
    )
    well = structs.replace(slow, until_s=50.0)
    assert why_now(status()) == ""
    assert why_now(status(relieved=(well,))) == (
        "was slow, is well again: worker-1 computes 2.50 times as long, from 0:05 to 0:50"
    )
    told = "slow since 0:05: worker-1 computes 2.50 times as long"
    assert why_now(status(slow=(slow,), relieved=(well,))) == told
