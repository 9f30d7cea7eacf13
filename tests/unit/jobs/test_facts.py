"""The report: facts worked out of events and measurements, and the page made of them."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import (
    Facts,
    LifeEnd,
    how_ended,
    read_facts,
    speeds,
    trained_s,
    work_out,
)
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.in_words import paragraph
from paceline.jobs.incidents import idle_s, stalled_s
from paceline.jobs.outcome import Outcome
from paceline.wire import spec as specs
from paceline.wire.events.base import Event
from paceline.wire.events.job import (
    FeatureFailedEvent,
    FeatureSlowEvent,
    FinishedEvent,
    MasterDiedEvent,
    MasterStartedEvent,
    NotKeptEvent,
    ResumedEvent,
    ScaledEvent,
    StoppedEvent,
    SupervisorStartedEvent,
)
from paceline.wire.events.nodes import (
    KilledEvent,
    KillRestartEvent,
    LeftLoopEvent,
    LeftOutEvent,
    NodeLostEvent,
    NodeStartedEvent,
    ProcessExitedEvent,
    ProcessUpEvent,
    RelaunchEvent,
    UnbackedEvent,
    Verdict,
)
from paceline.wire.events.state import CutValidEvent, EpochEvent, GroupRunsEvent, RestoredEvent
from paceline.wire.spec import JobSpec, Mode

START = [
    SupervisorStartedEvent(t=0.0, pid=7),
    MasterStartedEvent(t=0.2, restarted=False),
    NodeStartedEvent(t=1.0, node="server-0", inc=1),
    NodeStartedEvent(t=1.0, node="worker-0", inc=2),
    NodeStartedEvent(t=1.0, node="worker-1", inc=3),
    ProcessUpEvent(t=2.0, node="worker-0", inc=2, pid=7),
    ProcessUpEvent(t=2.0, node="worker-1", inc=3, pid=8),
    EpochEvent(t=3.0, epoch_no=1, cut_no=0, undone=0),
    RestoredEvent(t=3.5, epoch_no=1),
]
WORKER_KILLED = [
    KilledEvent(t=6.0, node="worker-1", inc=3),
    ProcessExitedEvent(
        t=6.1, node="worker-1", inc=3, verdict=Verdict.STOPPED, signal=9, reason="as ordered"
    ),
    RelaunchEvent(t=6.1, node="worker-1", inc=3, cause="as ordered", wait_s=0.0),
    NodeStartedEvent(t=6.1, node="worker-1", inc=4),
    ProcessUpEvent(t=6.5, node="worker-1", inc=4, pid=9),
]
SERVER_CRASHED = [
    ProcessExitedEvent(
        t=8.0, node="server-0", inc=1, verdict=Verdict.RETRYABLE, signal=9, reason="signal SIGKILL"
    ),
    RelaunchEvent(t=8.0, node="server-0", inc=1, cause="signal SIGKILL", wait_s=0.0),
    NodeStartedEvent(t=8.0, node="server-0", inc=5),
    ProcessUpEvent(t=8.4, node="server-0", inc=5, pid=10, address="shm"),
    EpochEvent(t=8.5, epoch_no=2, cut_no=3, undone=260),
    RestoredEvent(t=8.9, epoch_no=2),
]
END = [
    ProcessExitedEvent(
        t=12.0, node="worker-0", inc=2, verdict=Verdict.FINISHED, reason="the script returned"
    ),
    FinishedEvent(t=12.0),
    ProcessExitedEvent(
        t=12.2, node="server-0", inc=5, verdict=Verdict.STOPPED, reason="as ordered"
    ),
]


def points(counts: list[int]) -> list[MetricsPoint]:
    """One per second, from second 1 on."""
    return [
        MetricsPoint(float(t), n, 100.0, {"worker-0": NodePoint(samples=n, bpt_s=0.01 * t)})
        for t, n in enumerate(counts, start=1)
    ]


MEASURED = points([0, 0, 0, 100, 200, 300, 400, 500, 250, 350, 700, 1000])


def facts(*events: Event, outcome: Outcome | None = None, mode: Mode = "bsp") -> Facts:
    spec = JobSpec(script="/home/me/train.py", args=("--lr", "<0.1>"), mode=mode)
    return work_out(JobDir(Path("/jobs/demo-1")), spec, outcome, events, MEASURED, launched_s=0.0)


FINISHED = Outcome(state="finished", exit_code=0, jct_s=12.0, committed=1000, total=1000)
EVENTFUL = facts(*START, *WORKER_KILLED, *SERVER_CRASHED, *END, outcome=FINISHED)
QUIET = facts(*START, *END, outcome=FINISHED)


def test_a_feature_that_was_left_out_is_told() -> None:
    slow = FeatureSlowEvent(feature="greeting", seconds=2.0, t=103.0)
    failed = FeatureFailedEvent(feature="greeting", error="KeyError: 'x'", t=104.0)
    told = paragraph(facts(*START, slow, failed, *END, outcome=FINISHED))
    assert "feature greeting failed (KeyError: 'x'), it was left out" in told
    assert "feature greeting holds the master up, for 2.0 s just now" in told
    assert "Nothing went wrong" not in told


def test_what_a_silent_machine_cost_is_counted_from_the_last_step_before() -> None:
    """The model stands at 500 samples from second 8 on; the silence is noticed in second 10."""
    again = RelaunchEvent(t=10.0, node="worker-1", inc=3, cause="unreachable", wait_s=0.0)
    measured = points([0, 0, 0, 100, 200, 300, 400, 500, 500, 500, 700, 1000])
    for silent_s, unseen_s in ((5.0, 2.0), (1.5, 1.5), (None, 0.0)):
        lost = NodeLostEvent(
            t=10.0, node="worker-1", inc=3, reason="unreachable", silent_s=silent_s
        )
        spec = JobSpec(script="/home/me/train.py")
        job, events = JobDir(Path("/jobs/demo-1")), [*START, lost, again, *END]
        told = work_out(job, spec, FINISHED, events, measured, launched_s=0.0)
        (incident,) = told.incidents
        assert (incident.unseen_s, incident.stalled_s) == (unseen_s, 1.0)
        assert told.stalled_s == unseen_s + 1.0
        words = f"the job went on within 1.00 s, after {unseen_s:.2f} s of silence"
        assert (words in paragraph(told)) == bool(unseen_s)


def test_a_healthy_job_has_no_incidents() -> None:
    assert QUIET.incidents == ()
    assert (QUIET.num_relaunches, QUIET.num_restores) == (0, 0)
    assert QUIET.training_s == pytest.approx(12.0 - 3.5)
    assert paragraph(QUIET) == (
        "Finished: 1,000 of 1,000 samples in the model after 12.0 s, 8.50 s of it training "
        "(118 samples/s). Nothing went wrong."
    )


def test_each_loss_is_an_incident_with_what_was_done_and_what_it_cost() -> None:
    killed, crashed, restored = EVENTFUL.incidents
    assert killed.what == "worker-1: killed by order"
    assert killed.away_s == pytest.approx(0.4)
    assert killed.stalled_s == pytest.approx(0.9)  # 6.1 -> the point of second 7
    assert crashed.what == "server-0: signal SIGKILL"
    assert [one.kind for one in EVENTFUL.incidents] == ["kill", "lost", "restored"]
    assert restored.done == "the model and the ledger went back to cut 3"
    assert restored.undone == 260
    # From 8.5 on: no more than the 500 of second 8 until second 11.
    assert restored.stalled_s == pytest.approx(2.5)
    assert (EVENTFUL.num_relaunches, EVENTFUL.num_restores) == (2, 1)


def test_a_worker_that_left_its_loop_while_others_trained_on_is_named() -> None:
    left = LeftLoopEvent(t=5.4, node="worker-0", inc=2, step=7)
    told = facts(*START, left, *END, outcome=FINISHED)
    words = "worker-0 left its loop over job.batches at step 7, the others trained on"
    assert f"at 0:05 {words}." in paragraph(told)
    assert "Nothing went wrong" not in paragraph(told)
    together = structs.replace(left, t=11.5)  # all left it, or it was the last step
    assert facts(*START, together, *END, outcome=FINISHED).incidents == ()
    assert not together.is_news
    doubtful = structs.replace(together, miscount=8)
    assert doubtful.is_news
    (told,) = facts(*START, doubtful, *END, outcome=FINISHED).incidents
    assert told.what == "worker-0 left its loop over job.batches at step 7"
    assert told.done.startswith("if the script counts its batches, of which this life had 8, ")


JOINED = ScaledEvent(t=4.0, node="worker-2", role="worker", count=3, host="far")
LOST = NodeLostEvent(t=6.0, node="worker-2", inc=9, reason="silent for 1.5 s", silent_s=1.5)


@pytest.mark.parametrize(
    ("then", "done"),
    [
        ((), "the others went on (the job went on within 1.00 s)"),
        (
            (structs.replace(JOINED, t=7.5),),
            "another worker joined as worker-2 (back after 1.50 s, the job went on within 1.00 s)",
        ),
    ],
)
def test_a_worker_of_another_machine_that_was_lost_is_told(
    then: tuple[Event, ...], done: str
) -> None:
    words = "at 0:06 worker-2, which had joined from far, lost: silent for 1.5 s"
    told = paragraph(facts(*START, JOINED, LOST, *then, *END, outcome=FINISHED))
    assert f"{words}, {done}." in told
    assert "Nothing went wrong" not in told


def test_a_worker_whose_script_returned_while_others_trained_on_is_named() -> None:
    ended = ProcessExitedEvent(t=5.4, node="worker-0", inc=2, verdict=Verdict.FINISHED, reason="")
    told = facts(*START, ended, *END, outcome=FINISHED)
    words = "at 0:05 the script of worker-0 returned, the others trained on without it: have all"
    assert words in paragraph(told)
    assert [one.kind for one in told.troubles] == ["left"]
    left = LeftLoopEvent(t=5.3, node="worker-0", inc=2, step=7)
    assert len(facts(*START, left, ended, *END, outcome=FINISHED).troubles) == 1
    for event in (structs.replace(ended, t=11.5), structs.replace(ended, verdict=Verdict.STOPPED)):
        assert facts(*START, event, *END, outcome=FINISHED).troubles == ()


def test_a_worker_that_is_lost_and_started_again_is_told_once() -> None:
    again = RelaunchEvent(t=6.0, node="worker-2", inc=9, cause="unreachable", wait_s=0.0)
    for first in ((JOINED,), ()):
        told = facts(*START, *first, LOST, again, *END, outcome=FINISHED)
        assert [incident.what for incident in told.troubles] == ["worker-2: unreachable"]


@pytest.mark.parametrize(("mode", "named"), [("bsp", 2), ("asp", 0), ("ssp", 0)])
def test_workers_without_common_steps_that_all_leave_their_loops_leave_them_together(
    mode: Mode, named: int
) -> None:
    left = [LeftLoopEvent(t=t, node=f"worker-{n}", step=7) for n, t in ((0, 5.4), (1, 6.4))]
    assert len(facts(*START, *left, *END, outcome=FINISHED, mode=mode).incidents) == named
    again = [structs.replace(event, t=6.0) for event in START]
    stopped = StoppedEvent(t=5.9, signal=0)
    told = facts(*START, left[0], stopped, *again, left[1], *END, outcome=FINISHED, mode=mode)
    assert len(told.troubles) == 2, "in two runs: each time the other trained on"


@pytest.mark.parametrize("node", ["worker-0", "worker-1"])
def test_it_is_told_who_is_chief_where_the_first_worker_was_left_out(node: str) -> None:
    left = LeftOutEvent(t=5.4, node=node, inc=2, reason="it has another model")
    told = paragraph(facts(*START, left, *END, outcome=FINISHED))
    assert f"it has another model, {node} was left out, the others went on" in told
    assert ("the first of the others is the chief" in told) == (node == "worker-0")


def test_every_life_of_a_node_has_its_bar_and_its_end() -> None:
    ends = {(life.node, life.inc): life.how for life in EVENTFUL.lives}
    assert ends == {
        ("server-0", 1): "killed",
        ("worker-0", 2): "finished",
        ("worker-1", 3): "killed",
        ("worker-1", 4): "running",
        ("server-0", 5): "stopped",
    }


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (ProcessExitedEvent(verdict=Verdict.FINISHED), "finished"),
        (ProcessExitedEvent(verdict=Verdict.STOPPED, signal=9), "stopped"),
        (ProcessExitedEvent(verdict=Verdict.PREEMPTED, signal=15), "stopped"),
        (ProcessExitedEvent(verdict=Verdict.GIVEN_UP), "stopped"),
        (ProcessExitedEvent(verdict=Verdict.RETRYABLE, signal=9), "killed"),
        (ProcessExitedEvent(verdict=Verdict.OOM, signal=9), "out of memory"),
        (ProcessExitedEvent(verdict=Verdict.UNRETRYABLE), "failed"),
        (ProcessExitedEvent(verdict=Verdict.RETRYABLE, signal=11), "failed"),
        (ProcessExitedEvent(verdict=Verdict.NOT_STARTED), "failed"),
        (LeftOutEvent(reason="it has another model"), "failed"),
        (NodeLostEvent(reason="silent for 9.0 s", silent_s=9.0), "unreachable"),
        (None, "running"),
    ],
)
def test_the_last_event_says_how_a_life_ended(end: LifeEnd | None, how: str) -> None:
    assert how_ended(end, by_order=False) == how


def test_speeds_count_what_is_trained_anew_but_nothing_less_than_none() -> None:
    assert [value for _, value in speeds(points([0, 100, 50, 90]))] == [100, 0, 40]
    assert [value for _, value in speeds(points([0, 100, 200, 400]), 2.0)] == [100, 100, 150]
    assert speeds([]) == []


def test_a_lost_worker_is_idle_until_its_own_count_grows_again() -> None:
    def at(t: float, samples: int) -> MetricsPoint:
        return MetricsPoint(t, 0, 0.0, {"worker-1": NodePoint(samples=samples)})

    lost = RelaunchEvent(t=2.5, node="worker-1", inc=3, cause="signal SIGKILL", wait_s=0.0)
    # The report of second 3 still counts what the lost life did after second 2.
    assert idle_s(lost, [at(2, 100), at(3, 120), at(4, 120), at(5, 130)]) == pytest.approx(2.5)
    assert idle_s(lost, [at(2, 100), at(3, 120), at(4, 120)]) is None
    assert (
        idle_s(
            RelaunchEvent(t=2.5, node="server-0", inc=3, cause="signal SIGKILL", wait_s=0.0),
            [at(3, 5)],
        )
        is None
    )


RUN = (
    MasterStartedEvent(t=1.0, restarted=False),
    GroupRunsEvent(t=3.0, members=("worker-0",), step=0),
)


def signs(counts: dict[float, int]) -> list[MetricsPoint]:
    return [MetricsPoint(t, committed, 0.0) for t, committed in counts.items()]


@pytest.mark.parametrize(
    ("events", "counts", "expected_s"),
    [
        ((), {}, 0.0),
        (RUN, {4.0: 5, 9.0: 9}, 6.0),
        ((*RUN, FinishedEvent(t=8.0)), {9.0: 9}, 5.0),
        # Stopped, and resumed after a minute; while it leaves, a group may still form.
        (
            (
                *(
                    *RUN,
                    StoppedEvent(t=8.0, signal=0),
                    GroupRunsEvent(t=8.1, members=("worker-0",), step=0),
                ),
                *(
                    ProcessExitedEvent(t=8.3, verdict=Verdict.FINISHED),
                    MasterStartedEvent(t=70.0, restarted=False),
                ),
                *(RestoredEvent(t=72.0, epoch_no=1), FinishedEvent(t=80.0)),
            ),
            {},
            5.0 + 0.2 + 8.0,
        ),
        # All processes were killed after 9 s.
        (
            (
                *(
                    *RUN,
                    SupervisorStartedEvent(t=70.0, pid=7),
                    MasterStartedEvent(t=71.0, restarted=False),
                ),
                *(
                    GroupRunsEvent(t=75.0, members=("worker-0",), step=0),
                    GroupRunsEvent(t=76.0, members=("worker-0",), step=0),
                    FinishedEvent(t=80.0),
                ),
            ),
            {5.0: 5, 9.0: 9},
            6.0 + 5.0,
        ),
        # A master was away for 3 s, another one for 14 s: the workers went on.
        (
            (*RUN, MasterStartedEvent(t=9.0, restarted=False), FinishedEvent(t=40.0)),
            {6.0: 6, 10.0: 10, 20.0: 20, 30.0: 30},
            37.0,
        ),
        (
            (*RUN, MasterStartedEvent(t=20.0, restarted=False), FinishedEvent(t=40.0)),
            {6.0: 6, 20.5: 6, 21.0: 21, 30.0: 30},
            3.0 + 19.0,
        ),
    ],
)
def test_time_in_which_nobody_was_there_is_no_training(
    events: tuple[Event, ...], counts: dict[float, int], expected_s: float
) -> None:
    assert trained_s(events, signs(counts)) == pytest.approx(expected_s)


def test_a_job_that_never_went_on_has_no_stall_time() -> None:
    assert stalled_s(2.5, points([0, 10, 10, 10])) is None


def test_what_a_job_had_before_an_earlier_restore_says_nothing_of_a_later_one() -> None:
    assert stalled_s(4.5, points([0, 500, 100, 300, 310, 320])) == pytest.approx(0.5)


def test_a_model_that_goes_back_to_its_beginning_is_restored_too() -> None:
    lost = EpochEvent(t=8.5, epoch_no=2, cut_no=0, undone=200)
    told = facts(*START, lost, *END, outcome=FINISHED)
    assert told.num_restores == 1
    assert [incident.undone for incident in told.incidents] == [200]


STOPPED = [StoppedEvent(t=6.0, signal=0), CutValidEvent(t=6.2, cut_no=3, step=40)]
RESUMED = [
    *STOPPED,
    SupervisorStartedEvent(t=7.0, pid=7),
    MasterStartedEvent(t=7.1, restarted=True),
    ScaledEvent(t=7.1, role="worker", count=3),
]
LOADED = EpochEvent(t=8.5, epoch_no=2, cut_no=3, undone=0, resumed=True)


def test_a_stop_and_a_resume_are_told_and_did_not_go_wrong() -> None:
    resumed = [*STOPPED, ResumedEvent(t=6.9), *RESUMED[2:]]
    runs = RestoredEvent(t=8.6, epoch_no=2)
    well = facts(*START, *resumed, LOADED, runs, *END, outcome=FINISHED)
    stop, resume = well.incidents
    assert (stop.kind, stop.what) == ("stop", "stopped by paceline stop")
    assert stop.done == "its workers ended their step, cut 3 was made"
    assert (resume.kind, resume.done) == ("resume", "went on from cut 3, with 3 workers")
    assert resume.away_s == pytest.approx(8.6 - 6.9)
    assert (well.troubles, well.stalled_s, well.num_restores) == ((), 0.0, 0)
    told = paragraph(well)
    assert "Resumed: at 0:07 it went on from cut 3, with 3 workers, back after 1.70 s" in told
    assert told.endswith("Nothing went wrong.")
    assert well.stopped_s == pytest.approx(6.9 - STOPPED[-1].t)
    assert f"{well.stopped_s:.2f} s of it stopped and " in told


def test_samples_that_are_not_in_a_last_cut_are_told_of_a_stop() -> None:
    lost = NotKeptEvent(t=6.3, samples=12, cut_no=2)
    (stop,) = facts(*START, STOPPED[0], lost).incidents
    assert stop.done == "12 samples trained since cut 2 are in no cut on disk"


def test_loading_the_cut_of_a_job_that_is_resumed_is_no_trouble() -> None:
    runs = RestoredEvent(t=8.6, epoch_no=2)
    well = facts(*START, *RESUMED, LOADED, runs, *END, outcome=FINISHED)
    assert [one.kind for one in well.incidents] == ["stop", "resume"], "in a file of before, too"
    assert (well.num_restores, well.troubles) == (0, ())
    lost = structs.replace(LOADED, undone=40)
    (told,) = facts(*START, *RESUMED, lost, *END, outcome=FINISHED).troubles
    assert (told.undone, told.kind) == (40, "restored")


def test_a_master_that_was_killed_by_order_is_told_as_killed() -> None:
    died = MasterDiedEvent(t=6.1, reason="signal SIGKILL", deaths=1)
    again = MasterStartedEvent(t=7.0, restarted=True)
    by_order = facts(*START, KilledEvent(t=6.0, node="master"), died, again, *END)
    (killed,) = by_order.incidents
    assert (killed.kind, killed.what) == ("kill", "master: killed by order")
    own = facts(*START, KilledEvent(t=6.0, node="master"), died, again, died, again, *END)
    assert [one.kind for one in own.incidents] == ["kill", "master"]


def test_a_time_without_a_master_in_which_workers_trained_cost_nothing() -> None:
    killed = [
        KilledEvent(t=20.1, node="master"),
        MasterDiedEvent(t=20.1, reason="signal SIGKILL", deaths=1),
        MasterStartedEvent(t=23.0, restarted=True),
    ]
    before = {t: 100 * (t - 10) for t in range(11, 21)}
    trained = before | {24: 800, 25: 1500, 26: 1600}
    stood = before | {24: 800, 25: 1010, 26: 1110}
    job, spec = JobDir(Path("/jobs/demo-1")), JobSpec(script="/train.py")
    at = [[MetricsPoint(float(t), n, 0.0) for t, n in one.items()] for one in (trained, stood)]
    went_on, stopped = (work_out(job, spec, None, killed, one, launched_s=0.0) for one in at)
    assert went_on.incidents[0].done.endswith("training went on meanwhile")
    assert went_on.stalled_s == 0.0
    assert stopped.incidents[0].stalled_s == pytest.approx(4.9)


def test_another_number_of_workers_is_told_with_the_moment_it_took_effect() -> None:
    ordered = ScaledEvent(t=5.0, role="worker", count=3, before=2)
    runs = GroupRunsEvent(t=6.5, members=("worker-0", "worker-1", "worker-2"), step=40)
    (size,) = facts(*START, ordered, runs, *END, outcome=FINISHED).incidents
    assert (size.kind, size.what) == ("size", "workers 2 -> 3")
    assert size.done == "worker-0, worker-1, worker-2 train from step 41 on"
    assert size.away_s == pytest.approx(1.5)
    assert not size.went_wrong


def test_no_speed_is_higher_after_a_time_without_a_master() -> None:
    """The counts of a real job whose master was killed: the new one began with its journal's."""
    counts = {40: 25_000, 41: 27_500, 42: 30_000, 43: 32_500, 47: 28_000, 48: 45_000, 49: 47_500}
    found = speeds([MetricsPoint(float(t), n, 0.0) for t, n in counts.items()])
    assert [round(value) for _, value in found] == [2500] * 5
    late = [MetricsPoint(float(t), n, 0.0) for t, n in counts.items() if t >= 47]
    late += [MetricsPoint(50.0, 50_000, 0.0), MetricsPoint(51.0, 52_500, 0.0)]
    assert [round(value) for _, value in speeds(late)] == [2500] * 3, "also of a part drawn alone"


def test_a_job_without_an_end_or_a_start_can_be_told() -> None:
    assert "not ended" in paragraph(facts(*START)).lower()
    spec = JobSpec(script="/train.py")
    assert paragraph(work_out(JobDir(Path("/jobs/x")), spec, None, [], [], launched_s=0.0))


def test_a_report_counts_from_the_launch_as_all_else_does(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    specs.save(JobSpec(script="/train.py"), job.spec)
    os.utime(job.spec, (40.0, 40.0))
    job.events.write_text('{"t":39.0,"ev\n{"t":50.0,"event":"master_started"}\n')
    assert read_facts(job).started_s == job.launched_s() == 40.0


# --------------------------------------------------------------------------- the page


def test_a_restart_by_decision_is_called_one() -> None:
    decided = [
        KillRestartEvent(t=6.0, node="worker-1", inc=3, reason="slow"),
        *WORKER_KILLED[1:],
    ]
    (incident,) = facts(*START, *decided, *END, outcome=FINISHED).incidents
    assert incident.what == "worker-1: restarted by decision"


def test_a_node_that_worked_on_without_its_platform_is_told() -> None:
    lost = UnbackedEvent(t=6.0, node="worker-0", inc=2, reason="the actor died")
    told = paragraph(facts(*START, lost, *END, outcome=FINISHED))
    words = "worker-0 works on, though the platform calls it lost: the actor died"
    assert f"at 0:06 {words}, its agent worked on" in told
    assert "Nothing went wrong" not in told


def test_an_outcome_without_a_master_knows_of_no_samples() -> None:
    """The supervisor wrote it: what was measured last counts, and not that it names none."""
    failed = Outcome(state="failed", exit_code=1, error="the job goes on elsewhere", jct_s=12.0)
    found = facts(*START, outcome=failed)
    assert found.committed == 1000
    assert paragraph(found).startswith("Failed")
    assert "1,000" in paragraph(found).splitlines()[0]
