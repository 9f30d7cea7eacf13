"""A policy is asked in a thread, one question at a time, and what it raises or misses is told."""

import threading
from pathlib import Path

from paceline.features.sizes.log import read_sizing
from paceline.features.sizes.loop import LATE_S, SizeLoop
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.steering_state import SteeringRules
from paceline.master.asking import Answered, PolicyAnswer, PolicyRaised, ask_in_thread
from paceline.policy.decisions.question import Question
from tests.unit.sizes.sizing import observation


def test_an_answer_in_time_counts_once() -> None:
    question = Question[str](5.0)
    question.ask(1, "now?", 10.0)
    assert question.is_open and question.missed(14.9) is None
    assert question.take(2) is None and question.is_open, "it answers another question"
    assert question.take(1) == "now?"
    assert question.take(1) is None and not question.is_open


def test_a_late_answer_is_missed_once_and_ends_the_question() -> None:
    question = Question[str](5.0)
    question.ask(1, "now?", 10.0)
    assert question.missed(15.0) == 1
    assert question.missed(99.0) is None and question.is_open
    assert question.take(1) is None and not question.is_open
    question.ask(2, "and now?", 100.0)
    assert question.take(2) == "and now?"


def ask(decide: object) -> PolicyAnswer[object] | PolicyRaised:
    """What comes back of a question that is answered in a thread."""
    posted, facts, taken = threading.Event(), list[Answered](), list[object]()

    def post(fact: Answered) -> None:
        facts.append(fact)
        posted.set()

    ask_in_thread("a test", decide, lambda *one: taken.append(one), post)  # type: ignore[arg-type]
    assert posted.wait(10.0) and not taken
    facts[0].take(7.0)
    ((answer, now_s),) = taken  # type: ignore[misc]
    assert now_s == 7.0
    return answer  # type: ignore[no-any-return]


def test_an_answer_comes_back_as_a_fact_and_so_does_what_is_raised() -> None:
    answer = ask(threading.current_thread)
    assert isinstance(answer, PolicyAnswer) and answer.took_s >= 0.0
    assert answer.value is not threading.current_thread()

    def leave() -> None:
        raise SystemExit(3)

    raised = ask(leave)
    assert isinstance(raised, PolicyRaised)
    assert raised.kind == "SystemExit" and "leave" in raised.traceback


def size_loop(log: Path) -> SizeLoop:
    return SizeLoop("none", {}, SteeringRules(), log, lambda: 1e9)


def test_a_step_of_the_size_loop_is_written_and_a_torn_log_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "sizing.jsonl"
    log.write_bytes(b'{"t":1.0,"poli')
    loop = size_loop(log)
    told = [Hold(cause="not_asked"), *[Hold(cause="asked_recently")] * 2]
    for hold in told:
        no, decide = loop.ask(observation(), 0.0)
        assert loop.answered(no, decide()) == (hold,)
    lines = read_sizing(log)
    assert [line.acts for line in lines] == [(hold,) for hold in told[:2]], "each cause once"
    assert {(line.t, line.policy) for line in lines} == {(1e9, "none")}


def test_a_plan_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    loop = size_loop(tmp_path / "sizing.jsonl")
    no, decide = loop.ask(observation(), 0.0)
    assert loop.question.missed(LATE_S) == no
    state = loop.state
    assert loop.answered(no, decide()) == () and loop.state is state
    assert read_sizing(tmp_path / "sizing.jsonl") == []
    assert not loop.question.is_open
