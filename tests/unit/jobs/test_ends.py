"""How jobs end: one table of ends and exit codes, and the words that follow from it."""

import signal
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.facts import work_out
from paceline.jobs.history import MetricsPoint
from paceline.jobs.in_words import paragraph
from paceline.jobs.outcome import ENDS, End, Outcome, code_of
from paceline.master.ending import Ending, ScriptsWork, failed, how_finished, stopped
from paceline.wire.events.job import FinishedEvent, MasterStartedEvent
from paceline.wire.events.state import GroupRunsEvent
from paceline.wire.spec import JobSpec

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "run.md"


def work(*, is_known: bool = True, loops: int = 1, unfinished: int = 0) -> ScriptsWork:
    return ScriptsWork(is_known=is_known, num_loops=loops, num_unfinished=unfinished)


DECIDED: list[tuple[Ending, End, int]] = [
    (Ending(end=how_finished(work())), End.FINISHED, 0),
    (Ending(end=how_finished(work(loops=3, unfinished=1))), End.STOPPED_EARLY, 3),
    (Ending(end=how_finished(work(loops=0))), End.NOT_TRAINED, 0),
    (Ending(end=how_finished(work(is_known=False, loops=0))), End.FINISHED, 0),
    (stopped(0), End.STOPPED, 4),
    (stopped(signal.SIGINT), End.INTERRUPTED, 130),
    (stopped(signal.SIGTERM), End.TERMINATED, 143),
    (stopped(signal.SIGUSR1), End.WARNED, 138),
    (failed("no room"), End.FAILED, 1),
    (failed("worker-0: ValueError", "Traceback", 7), End.SCRIPT_FAILED, 7),
]


@pytest.mark.parametrize(("ending", "end", "code"), DECIDED)
def test_an_end_decides_the_exit_code(ending: Ending, end: End, code: int) -> None:
    assert (ending.end, ending.exit_code) == (end, code)
    assert ending.state == ENDS[end].state


def test_every_end_of_a_job_has_a_row_here_and_a_code() -> None:
    assert set(ENDS) == set(End)
    assert {end for _, end, _ in DECIDED} == {end for end, row in ENDS.items() if row.state}
    assert code_of(End.SCRIPT_FAILED) == 1
    assert [code_of(end) for end in (End.ALREADY_FINISHED, End.REFUSED, End.LOST)] == [0, 2, 1]


def test_no_end_by_a_person_or_before_all_is_trained_has_the_code_of_success() -> None:
    by_signal = (End.INTERRUPTED, End.TERMINATED, End.WARNED)
    for end in (End.STOPPED, *by_signal, End.STOPPED_EARLY, End.SCRIPT_FAILED):
        assert code_of(end) != 0


def test_the_table_is_in_the_docs_row_by_row() -> None:
    text = HOWTO.read_text()
    for end, row in ENDS.items():
        code = "the script's own" if row.code is None else row.code
        assert f"| {code} | {row.meaning} |" in text, end


@pytest.mark.parametrize(
    ("state", "code", "end"),
    [
        ("finished", 0, End.FINISHED),
        ("stopped", 130, End.INTERRUPTED),
        ("stopped", 0, End.TERMINATED),
        ("failed", 1, End.FAILED),
        ("failed", 9, End.SCRIPT_FAILED),
    ],
)
def test_an_outcome_of_before_is_read_by_its_state_and_code(
    state: str, code: int, end: End
) -> None:
    assert Outcome(state=state, exit_code=code).how is end


# --------------------------------------------------------------------------- words


def said(strategy: str = "allreduce", **fields: object) -> str:
    """The last line of a job without incidents."""
    end = End(str(fields.pop("end")))
    outcome = Outcome(state=ENDS[end].state, exit_code=code_of(end), end=end, jct_s=12.0, **fields)  # type: ignore[arg-type]
    events = [
        MasterStartedEvent(t=0.0, restarted=False),
        GroupRunsEvent(t=2.0, members=("worker-0",), step=0),
        FinishedEvent(t=12.0),
    ]
    spec = JobSpec(script="/train.py", strategy=strategy)  # type: ignore[arg-type]
    points = [MetricsPoint(1.0, 0, 0.0)]
    told = work_out(JobDir(Path("/jobs/x")), spec, outcome, events, points, launched_s=0.0)
    return paragraph(told)


TOOK = "in 12.0 s, 10.0 s of it training (100 samples/s)."


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"end": End.FINISHED, "committed": 1000, "total": 1000},
            "Finished: 1,000 of 1,000 samples in the model after 12.0 s, 10.0 s of it training "
            "(100 samples/s). Nothing went wrong.",
        ),
        (
            {"end": End.STOPPED_EARLY, "committed": 1000, "total": 4000, "kept": 1000},
            f"Stopped early by the script after 1,000 of 4,000 samples, {TOOK}",
        ),
        (
            {"end": End.STOPPED_EARLY, "committed": 1000, "total": 4000, "kept": 900},
            f"Stopped early by the script after 1,000 of 4,000 samples, {TOOK} "
            "No cut on disk holds the last 100 of them.",
        ),
        (
            {"end": End.STOPPED_EARLY, "total": 4000, "kept": 0},
            "Stopped early by the script after 12.0 s, with 0 of 4,000 samples in the model.",
        ),
        (
            {"end": End.NOT_TRAINED, "joined": False},
            "Nothing was trained: the script never called pl.init(); it returned after 12.0 s.",
        ),
        (
            {"end": End.NOT_TRAINED},
            "Nothing was trained: the script ran no loop over job.batches; it returned after "
            "12.0 s.",
        ),
        (
            {"end": End.INTERRUPTED, "committed": 1000, "total": 4000},
            f"Stopped by Ctrl-C after 1,000 of 4,000 samples, {TOOK}",
        ),
        (
            {"end": End.TERMINATED, "committed": 1000, "total": 4000},
            f"Stopped by SIGTERM after 1,000 of 4,000 samples, {TOOK}",
        ),
        (
            {"end": End.STOPPED, "committed": 1000, "total": 4000},
            f"Stopped by `paceline stop` after 1,000 of 4,000 samples, {TOOK}",
        ),
        (
            {"end": End.SCRIPT_FAILED, "total": 4000},
            "Failed by an error of the script after 12.0 s, with 0 of 4,000 samples in the model.",
        ),
        (
            {"end": End.FAILED, "committed": 1000, "total": 4000},
            f"Failed after 1,000 of 4,000 samples, {TOOK}",
        ),
        (
            {"end": End.FINISHED, "strategy": "script"},
            "Finished after 12.0 s. Nothing went wrong.",
        ),
        ({"end": End.SCRIPT_FAILED, "strategy": "script"}, "Failed by an error of the script"),
    ],
)
def test_the_last_line_says_how_the_job_ended(fields: dict[str, object], words: str) -> None:
    line = said(**fields)  # type: ignore[arg-type]
    assert line.startswith(words)
    assert ("Nothing went wrong" in line) == (fields["end"] is End.FINISHED)
